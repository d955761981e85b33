"""What the processes of one host share of an object root: one turn to commit, and the newest commit.

    <directory>/            of the host alone, while its processes run (server/workers.py)
      next, turn            locks
      newest-commit         the object of the last commit that one of them has made, and when the host's turn ends

The workers of a host and their committer are writers of one root. Without a lock they would race each other, as writers
of different hosts do, at the cost of two requests a race and of pauses (turns.py). So a writer holds `turn` from before
it looks at the log until its commit is made. It waits for `turn` with `next` in its hands, so that a writer which
commits again and again cannot take `turn` twice while another one waits.

To other hosts all of them are one writer: they pass one turn on. Each takes over the commits of the
others from `newest-commit`, whose object holds earlier ones too, so that it need not ask the store.

Nothing but time and the number of requests depends on this: the create decides. A writer waits for a bounded time, as
the one that holds the turn may be stopped, and then commits without it. A killed process holds no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pyspark_kafkalog.object_store.retries import Waiting

_NEXT: Final = "next"
_TURN: Final = "turn"
_NEWEST: Final = "newest-commit"
#: The fields of a SharedCommit, and the directory id of its root.
_HEAD: Final = struct.Struct("<qdd?22s")
#: A larger object is not shared: the others ask the store for it.
_SHARED_BYTES_MAX: Final = 1 << 20
#: A writer waits so long for its turn at most, and after it has waited in vain, until it gets one.
_LONGEST_WAIT_S: Final = 3.0
_SHORTEST_WAIT_S: Final = 0.02
_POLL_S: Final = 0.002


class SharedCommit(NamedTuple):
    """The object of a commit that a process of this host has made, and the turn that the host is in.

    Times are seconds of the monotonic clock, which all processes of a host share. `turn_ends_s` is `made_s` after the
    end of a turn. `had_turn`: the host has to look for claims of other writers after it.
    """

    base_offset: int
    made_s: float
    turn_ends_s: float
    had_turn: bool
    body: bytes


class HostShare:
    """What one process shares with the others of its host, in `directory`; thread-safe.

    `root_id` is the directory id of the root.
    """

    def __init__(self, directory: Path, root_id: str, waiting: Waiting) -> None:
        self._directory = directory
        self._root_id = root_id.encode("ascii")
        self._waiting = waiting
        #: What the host is called in commits.
        self.writer = zlib.crc32(bytes(directory)) - (1 << 31)
        self._wait_s = _LONGEST_WAIT_S
        self._seen: tuple[int, int] | None = None
        self._newest: SharedCommit | None = None

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let the other writers of the host wait for the end of the block, but not for very long."""
        until_s = self._waiting.monotonic() + self._wait_s
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError), contextlib.ExitStack() as queued:  # without a directory there is no host
                has_turn = self._lock(_NEXT, until_s, queued) and self._lock(_TURN, until_s, held)
                self._wait_s = _LONGEST_WAIT_S if has_turn else _SHORTEST_WAIT_S
            yield

    def _lock(self, name: str, until_s: float, held: contextlib.ExitStack) -> bool:
        """Whether the lock could be taken until then. Raises OSError."""
        fd = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.callback(os.close, fd)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._waiting.monotonic() >= until_s:
                    return False
                self._waiting.sleep(_POLL_S)
            else:
                return True

    def put(self, commit: SharedCommit) -> None:
        """Tell the others of a commit, unless it is too large."""
        if len(commit.body) > _SHARED_BYTES_MAX:
            return
        head = _HEAD.pack(*commit[:-1], self._root_id)
        new = self._directory / f"{_NEWEST}-{os.getpid()}-{threading.get_ident()}"
        with contextlib.suppress(OSError):
            new.write_bytes(head + commit.body)
            os.replace(new, self._directory / _NEWEST)

    def newest(self) -> SharedCommit | None:
        """The last commit of which a process of the host has told; None if there is none."""
        try:
            with open(self._directory / _NEWEST, "rb") as file:
                status = os.fstat(file.fileno())
                seen = status.st_ino, status.st_mtime_ns
                if seen != self._seen:
                    data = file.read(_HEAD.size + _SHARED_BYTES_MAX)
                    base_offset, made_s, turn_ends_s, had_turn, root_id = _HEAD.unpack_from(data)
                    commit = SharedCommit(base_offset, made_s, turn_ends_s, had_turn, data[_HEAD.size :])
                    self._newest = commit if root_id == self._root_id else None
                    self._seen = seen
        except (OSError, struct.error):
            return None
        return self._newest
