"""File systems that look at each change, or stop a writer at one of them, within the test's own process.

tests/crash kills whole processes at every call; here a single part of the package is stopped where it can be watched.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Final

from pyspark_kafkalog.storage.filesystem import FileSystem

CHANGES: Final = (
    "open",
    "pwrite_all",
    "pwrite_direct",
    "copy_range",
    "truncate",
    "fsync",
    "fsync_dir",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "touch",
)


class Killed(BaseException):
    """The process is gone: no `except Exception` repairs anything after it, and no change works any more."""


def broken_disk() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class WatchedFileSystem(FileSystem):
    """Calls `before` ahead of each change; opening a file just to read it is none."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def on_change(self, name: str, arguments: tuple[Any, ...]) -> None:
        self._before()


class StoppingFileSystem(WatchedFileSystem):
    """Lets `stops_at` changes through (None: all); at the next one, and at all after it, `error` is raised.

    `once`: those after it work again. `torn`: when the call that is stopped moves bytes, half of them are written.
    `changes` counts what was tried.
    """

    def __init__(
        self,
        stops_at: int | None = None,
        *,
        error: Callable[[], BaseException] = Killed,
        once: bool = False,
        torn: bool = False,
    ) -> None:
        self.stops_at = stops_at
        self.changes = 0
        self._error = error
        self._once = once
        self._torn = torn

    @property
    def has_stopped(self) -> bool:
        return self.stops_at is not None and self.changes > self.stops_at

    def on_change(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self.stops_at is None:
            return
        self.changes += 1
        if self.changes <= self.stops_at or (self._once and self.changes > self.stops_at + 1):
            return
        if self._torn and self.changes == self.stops_at + 1:
            write_half(name, arguments)
        raise self._error()


def write_half(name: str, arguments: tuple[Any, ...]) -> None:
    """Do the first half of a call that moves bytes; nothing of another one."""
    if name in ("pwrite_all", "pwrite_direct"):
        fd, data, position = arguments
        view = memoryview(data).cast("B")
        os.pwrite(fd, view[: len(view) // 2], position)
    elif name == "copy_range":
        source_fd, source_position, fd, position, length = arguments
        os.copy_file_range(source_fd, fd, length // 2, source_position, position)


def _watched(name: str) -> Callable[..., Any]:
    original = getattr(FileSystem, name)

    def call(self: WatchedFileSystem, *arguments: Any, **named: Any) -> Any:
        if name != "open" or arguments[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            self.on_change(name, arguments)
        return original(self, *arguments, **named)

    return call


for _name in CHANGES:
    setattr(WatchedFileSystem, _name, _watched(_name))
