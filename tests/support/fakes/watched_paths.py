"""Which paths this process opens, renames, creates and removes, and what happens in directories that it must not touch.

`WatchedPaths` sees the calls of Python code by audit events, with their paths: what was used outside of given places.
`Untouched` sees by inotify each use of some directories, by whatever process and language.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

#: The arguments of an event that are paths. Those of `open` are followed, unless the flags say no.
_EVENTS: Final = {
    "open": (0,),
    "os.listdir": (0,),
    "os.scandir": (0,),
    "os.rename": (0, 1),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.remove": (0,),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "shutil.move": (0, 1),
    "shutil.rmtree": (0,),
}
_FOLLOWED: Final = frozenset({"open", "os.listdir", "os.scandir", "os.truncate", "os.utime", "os.chmod", "os.chown"})
_CHANGING_FLAGS: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_watches: set[WatchedPaths] = set()
_is_hooked = False


class WatchedPaths:
    """The calls of a block that use a path outside of `inside`, and those of them that change something.

    A name without a directory is one in a directory that was opened before, and is left out.
    """

    def __init__(self, *inside: Path) -> None:
        self._inside = tuple(os.path.realpath(each) for each in inside)
        self._busy = threading.local()
        self.used: list[str] = []
        self.changed: list[str] = []

    def __enter__(self) -> WatchedPaths:
        global _is_hooked
        if not _is_hooked:
            sys.addaudithook(_audit)  # for the rest of the process
            _is_hooked = True
        _watches.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _watches.discard(self)

    def below(self, place: Path) -> list[str]:
        """The uses of paths in and below `place`."""
        top = os.path.realpath(place)
        return [each for each in self.used if _is_in(each.split(" ", 1)[1], top)]

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            for at in _EVENTS[event]:
                path = arguments[at]
                if isinstance(path, bytes):
                    path = os.fsdecode(path)
                if not isinstance(path, (str, os.PathLike)):
                    continue
                path = os.fspath(path)
                flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
                if os.sep not in path:
                    continue
                folder, name = os.path.split(os.path.abspath(path))
                real = os.path.join(os.path.realpath(folder), name)
                if event in _FOLLOWED and not flags & os.O_NOFOLLOW:
                    real = os.path.realpath(real)
                if any(_is_in(real, each) for each in self._inside):
                    continue
                self.used.append(f"{event} {real}")
                if event not in ("open", "os.listdir", "os.scandir") or flags & _CHANGING_FLAGS:
                    self.changed.append(f"{event} {real}")
        finally:
            self._busy.now = False


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(place + os.sep)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for each in tuple(_watches):
        each.see(event, arguments)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_EVENT: Final = struct.Struct("iIII")
#: What inotify calls access, modify, attrib, open, moved from and to, create, delete.
_KINDS: Final = {
    0x1: "read",
    0x2: "write",
    0x4: "attributes",
    0x20: "open",
    0x40: "rename",
    0x80: "rename",
    0x100: "create",
    0x200: "remove",
}
_IN_NONBLOCK: Final = os.O_NONBLOCK


class Untouched:
    """Notes each use of the files in `directories`, and of these themselves, within a block."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._fd = _LIBC.inotify_init1(_IN_NONBLOCK)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())
        mask = sum(_KINDS)
        self._names = {_LIBC.inotify_add_watch(self._fd, os.fsencode(each), mask): str(each) for each in directories}
        assert -1 not in self._names, os.strerror(ctypes.get_errno())

    def __enter__(self) -> Untouched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def uses(self) -> list[str]:
        """The uses since the last call."""
        found = []
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode()
                at += _EVENT.size + length
                what = " ".join(word for bit, word in _KINDS.items() if mask & bit)
                if what:
                    found.append(f"{what} {self._names[watch]}/{name}")
