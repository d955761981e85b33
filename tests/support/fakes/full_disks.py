"""Disks without room: a small one that is really mounted, where that is permitted, and one that only counts.

Both are filled to the last block, or the last inode, and give back what is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fakes.stopping_filesystem import StoppingFileSystem

_BLOCK_BYTES: Final = 4096
FILLER: Final = "filler"


class CountingDisk(StoppingFileSystem):
    """A file system with `blocks` and `inodes` left; None: as many as anybody wants. It may stop a writer, too.

    Files take the blocks that they have on the disk below; names take none.
    """

    def __init__(self, blocks: int | None = None, inodes: int | None = None, **stops: Any) -> None:
        super().__init__(**stops)
        self.blocks = blocks
        self.inodes = inodes

    def on_change(self, name: str, arguments: tuple[Any, ...]) -> None:
        super().on_change(name, arguments)
        getattr(self, f"_on_{name}", lambda *_: None)(*arguments)

    def _take(self, blocks: int, inodes: int) -> None:
        enough = (self.blocks is None or blocks <= self.blocks) and (self.inodes is None or inodes <= self.inodes)
        if not enough and (blocks > 0 or inodes > 0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.blocks is not None:
            self.blocks -= blocks
        if self.inodes is not None:
            self.inodes -= inodes

    def _on_open(self, path: Path, flags: int, mode: int = 0) -> None:
        if flags & os.O_CREAT and not path.exists():
            self._take(0, 1)

    def _on_pwrite_all(self, fd: int, data: Any, position: int) -> None:
        self._take(max(_blocks(position + memoryview(data).nbytes) - _allocated(os.fstat(fd)), 0), 0)

    _on_pwrite_direct = _on_pwrite_all

    def _on_copy_range(self, _source: int, _at: int, fd: int, position: int, length: int) -> None:
        self._take(max(_blocks(position + length) - _allocated(os.fstat(fd)), 0), 0)

    def _on_truncate(self, fd: int, length: int) -> None:
        self._take(min(_blocks(length) - _allocated(os.fstat(fd)), 0), 0)

    def _on_unlink(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            if status.st_nlink == 1:
                self._take(-_allocated(status), -1)

    def _on_rename(self, source: Path, target: Path) -> None:
        if source.exists():
            self._on_unlink(target)

    def _on_mkdir(self, path: Path) -> None:
        self._take(1, 1)

    def _on_rmdir(self, path: Path) -> None:
        self._take(-1, -1)


def _blocks(length: int) -> int:
    return -(-length // _BLOCK_BYTES)


def _allocated(status: os.stat_result) -> int:
    return _blocks(status.st_blocks * 512)


@contextlib.contextmanager
def mounted(kind: str, home: Path) -> Iterator[Path]:
    """A small file system of its own, `ext4` on a loop device or `tmpfs`. PermissionError where that may not be."""
    home.mkdir()
    place = home / "mounted"
    place.mkdir()
    if not {"ext4": _mount_ext4, "tmpfs": _mount_tmpfs}[kind](home / "image", place):
        raise PermissionError(f"mounting a file system of type {kind} is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _mount_ext4(image: Path, place: Path) -> bool:
    with image.open("wb") as file:
        file.truncate(16 << 20)
    # Without blocks that only root may take: tests run as root.
    made = shutil.which("mkfs.ext4") and _run("mkfs.ext4", "-q", "-m", "0", "-b", "4096", "-N", "600", str(image))
    return bool(made) and _run("mount", "-o", "loop", str(image), str(place))


def _mount_tmpfs(_: Path, place: Path) -> bool:
    return _run("mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=600", "tmpfs", str(place))


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def fill_blocks(place: Path) -> None:
    """Take all blocks that are left, to the last one."""
    with (place / FILLER).open("ab", buffering=0) as file:
        for step in (1 << 20, _BLOCK_BYTES):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(step))
                    os.fsync(file.fileno())


def fill_inodes(place: Path) -> None:
    """Take all inodes that are left."""
    directory = place / f"{FILLER}-inodes"
    with contextlib.suppress(OSError):
        directory.mkdir(exist_ok=True)
        while True:
            (directory / uuid.uuid4().hex).touch()
