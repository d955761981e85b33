"""When a writer of an object root commits, and when it gives way to others.

Writers race to create the next name (log.py). A lost race costs two requests. The winner knows the new end some
requests earlier than the losers, so without rules it would win again and again. So busy writers take turns, by what
they read in the log anyway:

    in each commit     its writer, how long a request of the writer takes, and how long its turn still lasts after the
                       commit (`WriterTurn` in the CommitRecord; -1: the writer may not come back)
    a claim            `kafkalog-waiting-<writer>-<ms of a request>`, a small object beside the commits: a writer whom
                       the others do not know, or who keeps losing, asks for the next turn. A listing of the commits
                       shows the claims, as their names come after those of commits

*A turn* is a row of commits, each of which costs one create. It lasts as long as four to ten requests, the longer the
fewer writers are busy. A writer is busy if it begins a commit soon after the one before has ended. After its turn it
waits as long as the turns of the others should take, then it looks at the log. The writer whose last commit is the
oldest is next; claims go first. A writer that does not come when it is awaited is not awaited again until it commits. A
writer alone looks for claims after each 30 commits, as long as it commits without a break; after ten if these take
long.

*A writer that is not busy* commits at once. Only if it loses the race it waits for the end of the winner's turn.

Nothing but time and the number of requests depends on the turns: the create decides. Each wait is bounded, also if
other writers state nonsense, were killed, or are of an earlier version and state nothing. Durations of other machines
are used, but never their clocks. The writer of a claim deletes it after its commit; if the writer does not come, the
writer that has awaited it deletes the claim.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from pyspark_kafkalog.metadata.backend import Look, Pause
from pyspark_kafkalog.metadata.messages.metadata_records import WriterTurn
from pyspark_kafkalog.metadata.objects.host import SharedCommit
from pyspark_kafkalog.values import dataclass

#: The turns of all busy writers together last as long as so many requests of the fastest, within the limits of each.
REQUESTS_A_ROUND: Final = 28
SHORTEST_TURN: Final = 4
LONGEST_TURN: Final = 10
_LONGEST_TURN_S: Final = 0.35
#: A writer that meets no others looks for claims after so many requests.
ALONE_TURN: Final = 30
_LONGEST_ALONE_S: Final = 2.0
#: The turn of a writer that has claimed it, as the others do not know it: two requests, and two that end the claim.
_CLAIMED_TURN: Final = 4

#: A writer that rests no longer between two commits is busy: seconds, and requests.
_SHORTEST_REST_S: Final = 0.02
_SHORTEST_REST: Final = 3
#: Others that have made no commit for so long are not awaited,
_AWAITED_S: Final = 3.0
#: and after so long they are forgotten.
_RECENT_S: Final = 10.0
#: All pauses between two creates together.
LONGEST_WAIT_S: Final = 3.0

#: How many requests before its turn a writer looks at the log: a listing, a commit, and half of one more.
_LEAD: Final = 2.5
#: From the end of a turn to the first commit of the next: a writer that asks for each commit, and one that is too slow
#: for that and lists them.
_HANDOVER: Final = 1.5
_SLOW_HANDOVER: Final = 3.0
#: A writer is slow if its requests take so many times as long as those of the others.
_SLOW: Final = 1.5
#: How many requests a turn may last longer than stated.
_OVERDUE: Final = 3.0

#: Commits that a process reads one after the other before it lists the later ones: at least, and at most.
_ONE_BY_ONE: Final = 2
_ONE_BY_ONE_MAX: Final = 64
#: Listings are slow if they take as long as so many other requests, which are not compared more closely than this.
_SLOW_LISTING: Final = 8
_SHORT_S: Final = 0.01

#: Looks between two creates, if the clock stands still.
_LOOKS_MAX: Final = 32

_CLAIM: Final = re.compile(r"kafkalog-waiting-([0-9a-f]{8})-([0-9]{1,5})")
_WRITERS_MAX: Final = 256
_LONGEST_REQUEST_S: Final = 1.0
#: The weight of the newest value in a mean.
_WEIGHT: Final = 0.25


@dataclass(slots=True)
class _Other:
    """Another writer by its last commit, or by its claim (offset -1). Times are this process's."""

    offset: int
    seen_s: float
    request_s: float
    left_s: float  # of its turn, after the commit; less than 0: it was in none
    is_busy: bool
    missed: int = 0  # how often it was awaited in vain

    def is_awaited(self, now: float) -> bool:
        return self.is_busy and now - self.seen_s < _AWAITED_S


class _Plan(NamedTuple):
    pause: Pause
    awaited: list[_Other]


class WriterTurns:
    """The turns of `writer`, a client of the root in this process; thread-safe. `monotonic` gives seconds."""

    def __init__(self, monotonic: Callable[[], float], writer: int) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._writer = writer
        self._request_s = 0.0  # the mean time that the create of this writer's commits takes; 0: unknown
        self._get_s = self._list_s = 0.0  # the mean times that reading a commit and a listing take
        self._others: dict[int, _Other] = {}
        self._claims: dict[str, _Other] = {}
        self._end = -1  # the offset of the newest commit seen,
        self._last: int | None = None  # and its writer
        self._has_host = False  # other processes are the same writer
        self._is_seen = False  # a look at the log has followed the last commit of this writer
        self._met = self._expected = 0  # commits of others since this writer's last one, and before it
        self._has_looked = False  # before the last create
        # this writer
        self._offset = -1  # of its last commit
        self._ended_s = float("-inf")  # when that returned
        self._is_busy = False
        self._is_known = False  # its last commit has told the others that it is busy
        self._turn_ends_s: float | None = None  # None: not in a turn
        self._had_turn = False  # of commits without a break, since it has looked for claims
        self._left_ms = -1  # as it was stated last
        self._alone_turn = LONGEST_TURN
        self._row = 0  # of commits without a break, since it has looked at the log for others
        self._claim: str | None = None
        self._must_put = False
        self._stale: list[str] = []

    def join_host(self, writer: int) -> None:
        """Be one writer, called `writer`, with the other processes of this host."""
        self._writer = writer
        self._has_host = True

    # What is seen of others

    def saw(self, base_offset: int, turn: WriterTurn | None, at_s: float) -> None:
        """Note a commit that was read by a request sent at `at_s`; `turn`: what it states, None in earlier versions."""
        with self._lock:
            if base_offset <= self._end:
                return
            if turn is None:  # of an earlier version, which comes in when the others pause
                turn = WriterTurn(writer=0, request_ms=round(1000 * self._request_s), left_ms=0)
            writer, request_ms, left_ms = turn.writer, turn.request_ms, turn.left_ms
            self._end, self._last = base_offset, writer
            if writer == self._writer:
                return
            self._met += 1
            self._turn_ends_s = None
            self._alone_turn = LONGEST_TURN
            for name, claim in self._claims.items():
                claim.is_busy = claim.is_busy and not name.startswith(_claim_of(writer))
            left_s = min(max(left_ms, -1) / 1000, _LONGEST_ALONE_S)
            self._others.pop(writer, None)
            self._others[writer] = _Other(base_offset, at_s, _request_s(request_ms), left_s, left_ms >= 0)
            if len(self._others) > _WRITERS_MAX:
                del self._others[next(iter(self._others))]

    def saw_of_host(self, commit: SharedCommit) -> None:
        """Note a commit that another process of this host has made: its turn continues here."""
        with self._lock:
            if commit.base_offset <= self._end:
                return
            self._end = self._offset = commit.base_offset
            self._last = self._writer
            self._is_seen = False
            self._met, self._expected = 0, self._met
            self._row += 1
            self._ended_s, self._had_turn = commit.made_s, commit.had_turn
            self._is_known = commit.turn_ends_s > commit.made_s
            self._turn_ends_s = commit.turn_ends_s if self._is_known else None

    def shared(self, base_offset: int, body: bytes) -> SharedCommit:
        """The last commit of this writer, whose object is `body`, for the other processes of this host."""
        with self._lock:
            ends_s = self._ended_s if self._turn_ends_s is None else self._turn_ends_s
            return SharedCommit(base_offset, self._ended_s, ends_s, self._had_turn, body)

    def saw_claims(self, names: Iterable[str], at_s: float, took_s: float = 0.0) -> None:
        """Note the claims that a listing has shown, which took `took_s` seconds; `names` may hold others."""
        with self._lock:
            self._list_s = _mean_of(self._list_s, took_s)
            claims: dict[str, _Other] = {}
            own = _claim_of(self._writer)
            for name in names:
                match = _CLAIM.fullmatch(name)
                if match is not None and not name.startswith(own) and len(claims) < _WRITERS_MAX:
                    request_s = _request_s(int(match[2]))
                    claims[name] = self._claims.get(name) or _Other(-1, at_s, request_s, 0.0, is_busy=True)
            self._claims = claims

    def looked(self) -> None:
        """Note a look at the log."""
        with self._lock:
            self._is_seen = True

    # What this writer does

    def asked(self, seconds: float) -> None:
        """Note how long it took to read a commit, which tells how long requests take until there was a create."""
        with self._lock:
            self._get_s = _mean_of(self._get_s, seconds)
            self._request_s = self._request_s or min(seconds, _LONGEST_REQUEST_S)

    @property
    def one_by_one(self) -> int:
        """How many commits are read one after the other before the later ones are listed: as long as that would take.

        Some stores read a whole folder for each listing.
        """
        return min(max(_ONE_BY_ONE, int(self._list_s / max(self._get_s, _SHORT_S))), _ONE_BY_ONE_MAX)

    @property
    def lists_slowly(self) -> bool:
        """Whether listings take so long that a writer does without them where it can."""
        return self.one_by_one >= _SLOW_LISTING

    def announce(self) -> WriterTurn:
        """What the next commit of this writer states."""
        with self._lock:
            now = self._monotonic()
            if self._turn_ends_s is None and self._is_busy:
                self._turn_ends_s = now + self._turn_s(now)
                self._had_turn = True
                self._alone_turn = min(2 * self._alone_turn, ALONE_TURN)
            elif self._turn_ends_s is None and self._claim is not None:
                self._turn_ends_s = now + _CLAIMED_TURN * self._request_s
                self._had_turn = True
            self._left_ms = -1
            if self._turn_ends_s is not None:
                self._left_ms = max(0, round(1000 * (self._turn_ends_s - now - 1.5 * self._request_s)))
            return WriterTurn(
                writer=self._writer,
                request_ms=min(round(1000 * self._request_s), 1000),
                left_ms=min(self._left_ms, round(1000 * _LONGEST_ALONE_S)),
            )

    def committed(self, base_offset: int, seconds: float) -> None:
        """Note a commit of this writer, whose create took `seconds`."""
        with self._lock:
            self._request_s = _mean_of(self._request_s, min(seconds, _LONGEST_REQUEST_S))
            self._end = self._offset = base_offset
            self._last = self._writer
            self._row += 1
            self._is_seen = False
            self._met, self._expected = 0, self._met
            self._is_known = self._left_ms >= 0
            self._ended_s = self._monotonic()
            if self._left_ms <= 0 and self._turn_ends_s is not None:
                self._turn_ends_s = min(self._turn_ends_s, self._ended_s)  # so the others read

    def ended(self) -> None:
        """Note that all work of a commit is done."""
        with self._lock:
            self._ended_s = self._monotonic()

    def claim_to_put(self) -> str | None:
        """The name of the claim that is to be put now, once."""
        with self._lock:
            must_put, self._must_put = self._must_put, False
            return self._claim if must_put else None

    def claims_to_delete(self, *, own: bool = False) -> list[str]:
        """The names of claims that no writer waits for any more, once; `own`: that of this writer, which has committed.

        Its commit makes it known to the others.
        """
        with self._lock:
            if own:
                claim, self._claim = self._claim, None
                return [] if claim is None else [claim]
            stale, self._stale = self._stale, []
            return stale

    # When it commits

    def pauses(self, lost: int, jitter: Callable[[], float]) -> Iterator[Pause]:
        """The pauses before the create that follows `lost` lost races; after each the caller looks at the log.

        `jitter` gives numbers from 0 to 1, which keep losers from trying again in step.
        """
        if self._has_host and not lost:
            yield Pause(0.0, Look.KNOWN)
            self._is_seen = False  # what the host knows is no look at the log
        began = self._monotonic()
        is_ignored = has_claimed = False
        must: Look | None = None  # at least such a look
        if lost:
            before, self._turn_ends_s = self._last, None
            in_step = lost > 1 and self._claim is None
            yield Pause(jitter() * min(lost, 2) * self._request_s if in_step else 0.0, Look.KNOWN)
            is_ignored = before == self._last and self._left_of(before) > 0
            must = Look.FAR if lost > 1 else None if self._has_looked else self._cheapest()
        elif not self._may_have_to_wait(began):
            return
        self._has_looked = False
        for _ in range(_LOOKS_MAX):
            with self._lock:
                now = self._monotonic()
                plan = self._plan(now)
                if must is not None and (plan is None or must is Look.FAR):
                    plan = _Plan(Pause(0.0 if plan is None else plan.pause.seconds, must), plan.awaited if plan else [])
                if plan is None or now >= began + LONGEST_WAIT_S:
                    return
                self._has_looked = True
                if not has_claimed and (is_ignored or self._should_claim(lost, now)):
                    has_claimed = self._must_put = True
                    self._claim = self._claim or f"{_claim_of(self._writer)}{round(1000 * self._request_s)}"
                end, last, left_s = self._end, self._last, self._left_of(self._last)
            yield plan.pause._replace(seconds=min(plan.pause.seconds, began + LONGEST_WAIT_S - now))
            with self._lock:
                has_moved = end != self._end
                self._missed(plan.awaited, has_moved=has_moved)
                # the same writer again: it does not know that others wait
                is_ignored = is_ignored or (last == self._last and 0 < left_s < self._left_of(last))
                is_turn = self._left_of(self._last) >= 0
                must = Look.FAR if plan.pause.look is Look.NEXT and has_moved and not is_turn else None

    def _may_have_to_wait(self, now: float) -> bool:
        """Whether a writer that begins a commit must look at the log before."""
        with self._lock:
            self._is_busy = now - self._ended_s < max(_SHORTEST_REST_S, _SHORTEST_REST * self._request_s)
            if self._is_busy:
                if self._turn_ends_s is not None and now < self._turn_ends_s:
                    return False
                # A few commits that take long use up the time of a turn: a writer alone makes some more of them.
                if self._row < self._alone_turn // 3 and not self._has_company(now):
                    return False
            self._row = 0
            self._turn_ends_s = None
            self._had_turn = self._had_turn and self._is_busy
            return self._had_turn if self._is_busy else self._met + self._expected > 0

    def _has_company(self, now: float) -> bool:
        """Whether others were busy of late, or claim a turn."""
        are_busy = (each.is_busy and now - each.seen_s < _RECENT_S for each in self._others.values())
        return any(are_busy) or any(each.is_busy for each in self._claims.values())

    def _plan(self, now: float) -> _Plan | None:
        """What to wait for; None: nothing, this writer is next."""
        holder = self._others.get(self._last) if self._last is not None else None
        since, left_s = (self._ended_s, 0.0) if holder is None else (holder.seen_s, max(0.0, holder.left_s))
        ahead = self._ahead(holder, now)
        if ahead:
            slots_s = sum(self._slot_s(each, now) for each in ahead)
            claimed_s = [each.seen_s for each in ahead if each.offset < 0]
            if claimed_s:
                since, lead = max(since, *(each - left_s for each in claimed_s)), 0.0
            else:
                lead = _LEAD
            return _wait(since + left_s + slots_s - lead * self._request_s - now, Look.FAR, ahead)
        if holder is not None and left_s > 0:
            left_s += holder.seen_s - now
            if left_s > -_OVERDUE * max(holder.request_s, self._request_s):
                if self._request_s > _SLOW * holder.request_s:  # cannot keep up with it
                    return _wait(left_s - self._request_s / 2, Look.FAR)
                if left_s > _LEAD * holder.request_s:
                    return _wait(left_s - _LEAD * self._request_s, Look.FAR)
                return _wait(0.0, Look.NEXT)
            holder.left_s = 0.0
        elif not self._is_seen:
            return _wait(0.0, self._cheapest())
        return None

    def _cheapest(self) -> Look:
        """The look that takes the fewest requests if others commit as often as before."""
        if self._had_turn:
            return Look.LISTED
        return Look.FAR if self._is_busy or self._expected > 1 else Look.NEXT

    def _ahead(self, holder: _Other | None, now: float) -> list[_Other]:
        """The writers whose turns come before this one's."""
        claims = [
            each for name, each in self._claims.items() if each.is_busy and (self._claim is None or name < self._claim)
        ]
        if self._claim is not None:
            return claims
        others = self._others.values()
        return claims + [o for o in others if o is not holder and o.offset < self._offset and o.is_awaited(now)]

    def _slot_s(self, other: _Other, now: float) -> float:
        """How long it takes until the turn of `other` has ended, from the end of the one before."""
        is_slow = other.request_s > _SLOW * self._fastest_s(now)
        turn_s = 2 * other.request_s if other.offset < 0 else max(self._turn_s(now), other.request_s)
        return turn_s + (_SLOW_HANDOVER if is_slow else _HANDOVER) * other.request_s

    def _fastest_s(self, now: float) -> float:
        return min([self._request_s, *(each.request_s for each in self._others.values() if each.is_awaited(now))])

    def _turn_s(self, now: float) -> float:
        """How long a turn lasts."""
        busy = sum(each.is_awaited(now) for each in (*self._others.values(), *self._claims.values()))
        if not busy:
            has_others = any(now - each.seen_s < _RECENT_S for each in self._others.values())
            return min((LONGEST_TURN if has_others else self._alone_turn) * self._request_s, _LONGEST_ALONE_S)
        fastest_s = self._fastest_s(now)
        requests = min(REQUESTS_A_ROUND / (busy + 1), LONGEST_TURN)
        return max(SHORTEST_TURN * fastest_s, min(requests * fastest_s, _LONGEST_TURN_S))

    def _left_of(self, writer: int | None) -> float:
        other = None if writer is None else self._others.get(writer)
        return 0.0 if other is None else other.left_s

    def _should_claim(self, lost: int, now: float) -> bool:
        """Whether the others would not let this writer in without a claim."""
        holder = None if self._last is None else self._others.get(self._last)
        if lost > 1 and (lost > 3 or (holder is not None and holder.is_busy)):
            return True
        if holder is None or holder.left_s <= 0 or (self._is_known and now - self._ended_s < _AWAITED_S):
            return False
        return holder.left_s > _LONGEST_TURN_S or self._request_s > _SLOW * holder.request_s

    def _missed(self, awaited: Iterable[_Other], *, has_moved: bool) -> None:
        """Note that a look at the log has followed the time at which the writers were awaited."""
        for each in awaited:
            each.missed += 1
            if not has_moved or (each.offset >= 0 and each.missed > 1):
                each.is_busy = False
        if not has_moved:
            self._stale += [name for name, each in self._claims.items() if any(each is other for other in awaited)]


def _mean_of(mean: float, newest: float) -> float:
    """A mean with one more value, of which the newest count most; 0: there was none before."""
    return mean + (_WEIGHT if mean else 1) * (newest - mean)


def _wait(seconds: float, look: Look, awaited: Iterable[_Other] = ()) -> _Plan:
    return _Plan(Pause(max(0.0, seconds), look), list(awaited))


def _claim_of(writer: int) -> str:
    return f"kafkalog-waiting-{writer & 0xFFFFFFFF:08x}-"


def _request_s(milliseconds: int) -> float:
    return min(max(milliseconds, 1) / 1000, _LONGEST_REQUEST_S)
