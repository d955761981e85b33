"""File systems that stop a writer at one call in particular: killed there, or told that the disk is full or broken.

Every public method of FileSystem is a fault point, found by reflection so that a new one cannot be forgotten; those in
`COMPOSED` only call others. Calls are numbered from 1 in the order in which they come, over all threads. The writers'
fsyncs are counted and left out: a kill loses nothing that was written (`crash_power` is about power).
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pyspark_kafkalog.storage.filesystem import FileSystem

#: These call the others, or only read.
COMPOSED: Final = frozenset({"write_file_atomic", "unlink_if_there", "pwrite_uncached"})
POINTS: Final = tuple(
    name
    for name, member in vars(FileSystem).items()
    if callable(member) and not name.startswith("_") and name not in COMPOSED
)
#: Calls that move bytes, so that they can be half done.
DATA_POINTS: Final = frozenset({"pwrite_all", "pwrite_direct", "copy_range"})
_SYNCS: Final = frozenset({"fsync", "fsync_dir", "start_writeback"})

#: Told to tests that look for changes made past the seam.
inside_seam = threading.local()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the seam: its number from 1, its method and arguments."""

    number: int
    name: str
    arguments: tuple[Any, ...]


class SeamFileSystem(FileSystem):
    """Hands every call to `on_call`, which makes it by calling `act`."""

    def __init__(self) -> None:
        self._count = 0
        self._counting = threading.Lock()
        self.armed = True

    @property
    def calls(self) -> int:
        """How many calls there have been so far."""
        return self._count

    def on_call(self, call: Call, act: Callable[[], Any]) -> Any:
        return act()

    def _called(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        # A call within a call, as that of pwrite_all by copy_range, is part of it.
        if getattr(inside_seam, "now", False):
            return act()
        inside_seam.now = True
        try:
            if not self.armed:
                return None if name in _SYNCS else act()
            with self._counting:
                self._count += 1
                number = self._count
            return self.on_call(Call(number, name, arguments), act)
        finally:
            inside_seam.now = False


def _point(name: str) -> Callable[..., Any]:
    original = getattr(FileSystem, name)

    def method(self: SeamFileSystem, *arguments: Any, **named: Any) -> Any:
        return self._called(name, (*arguments, *named.values()), lambda: original(self, *arguments, **named))

    method.__name__ = name
    return method


for _name in POINTS:
    setattr(SeamFileSystem, _name, _point(_name))


class CountingFileSystem(SeamFileSystem):
    """Notes the names of the calls and lets all through, syncs apart."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def on_call(self, call: Call, act: Callable[[], Any]) -> Any:
        self.names.append(call.name)
        return None if call.name in _SYNCS else act()


class KillingFileSystem(SeamFileSystem):
    """Kills this process at call number `at`: before it, or with `torn` when half of its bytes are written.

    A torn call that writes no bytes is done whole before the kill.
    """

    def __init__(self, at: int, *, torn: bool = False) -> None:
        super().__init__()
        self._at = at
        self._torn = torn

    def on_call(self, call: Call, act: Callable[[], Any]) -> Any:
        if call.number == self._at:
            if self._torn:
                half_done(self, call, act)
            kill_self()
        return None if call.name in _SYNCS else act()


class FailingFileSystem(SeamFileSystem):
    """Fails call number `at` with `code`; with `torn` half of its bytes are written before it fails.

    `close` closes and then fails, as on Linux. `found` names the call that failed.
    """

    def __init__(self, at: int, code: int, *, torn: bool = False) -> None:
        super().__init__()
        self._at = at
        self._code = code
        self._torn = torn
        self.found: str | None = None

    def on_call(self, call: Call, act: Callable[[], Any]) -> Any:
        if call.number == self._at:
            self.found = call.name
            if call.name == "close":
                act()
            elif self._torn and call.name in DATA_POINTS:
                half_done(self, call, act)
            raise OSError(self._code, os.strerror(self._code), str(call.arguments[0]))
        return None if call.name in _SYNCS else act()


class ShortFileSystem(SeamFileSystem):
    """In call number `at` the kernel takes a third of the bytes at a time, at least one; the caller does the rest."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at
        self.found: str | None = None

    def on_call(self, call: Call, act: Callable[[], Any]) -> Any:
        if call.number != self._at:
            return None if call.name in _SYNCS else act()
        self.found = call.name
        pwrite, copy_file_range = os.pwrite, os.copy_file_range

        def short_pwrite(fd: int, data: Any, position: int) -> int:
            view = memoryview(data).cast("B")
            return pwrite(fd, view[: max(1, len(view) // 3)], position)

        def short_copy(source: int, target: int, count: int, *positions: int) -> int:
            return copy_file_range(source, target, max(1, count // 3), *positions)

        with patch.object(os, "pwrite", short_pwrite), patch.object(os, "copy_file_range", short_copy):
            return act()


class ReadOnlyFileSystem(SeamFileSystem):
    """For a reader, which must change nothing: any call is an error, but for opening to read and closing."""

    def on_call(self, call: Call, act: Callable[[], Any]) -> Any:
        if call.name == "close" or (call.name == "open" and not call.arguments[1] & (os.O_WRONLY | os.O_RDWR)):
            return act()
        raise AssertionError(f"a reader called {call.name}{call.arguments}")


class UnsyncedFileSystem(FileSystem):
    """The plain file system without its waits for the disk: nobody cuts the power in these tests."""

    def fsync(self, fd: int) -> None:
        pass

    def fsync_dir(self, directory: Path) -> None:
        pass

    def start_writeback(self, fd: int, position: int, length: int) -> None:
        pass


UNSYNCED: Final = UnsyncedFileSystem()


def half_done(fs: FileSystem, call: Call, act: Callable[[], Any]) -> None:
    """Do the first half of a call that moves bytes; another one wholly."""
    if call.name in ("pwrite_all", "pwrite_direct"):
        fd, data, position = call.arguments
        view = memoryview(data).cast("B")
        os.pwrite(fd, view[: len(view) // 2], position)
    elif call.name == "copy_range":
        source_fd, source_position, fd, position, length = call.arguments
        os.copy_file_range(source_fd, fd, length // 2, source_position, position)
    else:
        act()


def kill_self() -> None:
    """SIGKILL: no handler, no `finally`, no buffer written out."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


ENOSPC: Final = errno.ENOSPC
EIO: Final = errno.EIO
