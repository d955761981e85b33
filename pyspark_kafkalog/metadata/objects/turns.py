"""When a writer of an object root gives way to others, so that none of them waits for ever.

Writers race to create the next name (log.py). The one that has just won knows the end of the log some requests earlier
than those that have lost, so with enough to commit it would win again and again, and the others would wait all that
time. So a writer makes some commits in a row, and then waits about as long as the others need for theirs:

    others' commits were met lately    after `COMMITS_A_TURN` commits in a row it waits for as many commits as the
                                       others made between its last two turns, `GAP_COMMITS` at least
    none were met                      it has won every race, if there was any: after `ALONE_SECONDS` of commits one
                                       after the other it waits for `GAP_COMMITS`, in which another can win

In the gap a loser reads the winners' commits, one to three requests, and tries again. If its requests take much longer
than the winner's, it comes in seldom.

A writer that has been idle so long, or has met others' commits since its last one, does not wait. What is to be
committed gathers meanwhile, and makes one commit. Nothing but time depends on the turns: the create decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

COMMITS_A_TURN: Final = 4
#: A gap is as long as so many creates.
GAP_COMMITS: Final = 10
#: A writer that meets no others commits so long before it leaves a gap, which takes a few hundredths of its time.
ALONE_SECONDS: Final = 5.0
#: Others that have made no commit for so long are gone.
_RECENT_SECONDS: Final = 10.0
_LONGEST_PAUSE_SECONDS: Final = 2.0
#: The weight of the newest value in a mean.
_WEIGHT: Final = 0.25


class WriterTurns:
    """The turns of one writer, a client of the root in this process; thread-safe. `monotonic` gives seconds.

    `jitter` gives numbers from 0 to 1, which keep writers from waiting in step.
    """

    def __init__(self, monotonic: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._jitter = jitter
        self._lock = threading.Lock()
        self._commit_seconds = 0.0  # the mean time that the create of this writer's commits takes
        self._others = 0.0  # the mean of others' commits between two turns
        self._met = 0  # others' commits since this writer's last one
        self._met_at: float | None = None
        self._in_row = 0  # commits of this writer since it gave way, or met others'
        self._row_began = 0.0
        self._last_end = 0.0

    def met_others(self, commits: int) -> None:
        """Note that so many commits of others were found."""
        with self._lock:
            self._met += commits
            self._met_at = self._monotonic()
            self._in_row = 0

    def lost(self, seconds: float) -> None:
        """Note a lost race, in which a create failed and the winner's commit was read: two requests, `seconds` long."""
        with self._lock:
            if not self._commit_seconds:
                self._commit_seconds = seconds / 2

    def committed(self, seconds: float) -> None:
        """Note a commit of this writer, whose create took `seconds`."""
        with self._lock:
            now = self._monotonic()
            self._commit_seconds = _mean(self._commit_seconds, seconds)
            if self._in_row == 0:
                self._row_began = now
                self._others = _mean(self._others, self._met)
                self._met = 0
            self._in_row += 1
            self._last_end = now

    def pause_seconds(self) -> float:
        """How long to wait before the next commit. The caller waits: unless this is 0 the next commit begins a turn."""
        with self._lock:
            if not self._in_row:
                return 0.0
            now = self._monotonic()
            if self._met_at is not None and now - self._met_at < _RECENT_SECONDS:
                if self._in_row < COMMITS_A_TURN:
                    return 0.0
                commits = max(self._others, GAP_COMMITS) * (0.75 + self._jitter() / 2)
            elif now - self._row_began > ALONE_SECONDS:
                commits = GAP_COMMITS
            else:
                return 0.0
            self._in_row = 0
            pause = commits * self._commit_seconds - (now - self._last_end)
            return max(0.0, min(pause, _LONGEST_PAUSE_SECONDS))

    def back_off_seconds(self, attempt: int) -> float:
        """How long to wait after a lost race, the first of a commit being attempt 0.

        The winner knows the new end at the same time, and gives way if it has won often: there is no reason to wait
        long. Several losers try again at different times.
        """
        return self._jitter() * self._commit_seconds if attempt else 0.0


def _mean(mean: float, value: float) -> float:
    return value if mean == 0 else mean + _WEIGHT * (value - mean)
