"""Scratch space on this machine: directories, and a file for objects that several readers want parts of.

*Directories* are below TMPDIR. A process that is killed leaves its own; the next process of the same user on this
machine that needs scratch space, and the clean-up of an object root, remove those that are a day old. The lock of a
directory shows whether its process is alive.

*The spool* gets each object once. A merge reads the runs of many partitions, which lie side by side in the same
objects. The first read of an object gets the planned range of it, in windows of `WINDOW_BYTES`; later reads, of
whichever partition, are answered from the file. Bytes outside of the planned ranges are got as without a spool. The
file has no name after it is opened, so a crash leaves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Final

from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.filesystem import LOCAL, pread
from pyspark_kafkalog.storage.objects.run_source import ObjectBytes
from pyspark_kafkalog.units import MIB
from pyspark_kafkalog.values import dataclass

#: What one request gets at most, and how many objects are got at once: their product bounds the memory.
WINDOW_BYTES: Final = 16 * MIB
_AT_ONCE: Final = 4
_PREFIX: Final = "kafkalog-"
_PURPOSES: Final = ("stage", "merge", "clean", "reindex")
#: The names that `tempfile` makes, also those of protocol/client.py.
_SCRATCH: Final = re.compile(rf"{_PREFIX}(?:{'|'.join(_PURPOSES)}|tls)-[a-z0-9_]{{8}}")
_KEPT_S: Final = 24 * 60 * 60

_LOG: Final = logging.getLogger(__name__)


class ScratchDirectory:
    """A new directory below `within`, or TMPDIR; removed by `cleanup`, or at the end of the block.

    `purpose` is one of `_PURPOSES`.
    """

    def __init__(self, purpose: str, *, within: Path | None = None) -> None:
        if purpose not in _PURPOSES:
            raise ValueError(f"expected one of {', '.join(_PURPOSES)}, found {purpose!r}")
        _remove_once()
        self._directory = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{purpose}-", dir=within)
        self.path = Path(self._directory.name)
        self._lock_fd: int | None = _locked(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the directory with all that is in it."""
        self._directory.cleanup()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def remove_abandoned(*, now_s: float | None = None, folder: Path | None = None) -> int:
    """Remove scratch directories of this user that killed processes have left a day ago; returns how many.

    Errors leave a directory to the next run.
    """
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    oldest_s = (time.time() if now_s is None else now_s) - _KEPT_S
    count = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _SCRATCH.fullmatch(entry.name) and _is_abandoned(entry.stat(follow_symlinks=False), oldest_s):
                    count += _remove(Path(entry.path))
    if count:
        _LOG.info("removed %d scratch directories that killed processes have left in %s", count, folder)
    return count


def _is_abandoned(status: os.stat_result, oldest_s: float) -> bool:
    """Whether it is a private directory of this user, as old as that."""
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return is_own and status.st_mtime < oldest_s


def _remove(directory: Path) -> bool:
    lock_fd = _locked(directory)
    if lock_fd is None:
        return False
    try:
        shutil.rmtree(directory)  # follows no links
        return True
    finally:
        os.close(lock_fd)


def _locked(directory: Path) -> int | None:
    """A descriptor of the directory, locked until it is closed; None while another process has it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


@functools.cache
def _remove_once() -> None:
    remove_abandoned()


class Spool:
    """The scratch file for the `ranges` of objects, by their ids; used from several threads. A context manager."""

    def __init__(self, ranges: Mapping[int, ByteRange], directory: Path) -> None:
        self._ranges = ranges
        self._places: dict[int, int] = {}
        end = 0
        for object_id, each in ranges.items():
            self._places[object_id] = end
            end += each.size_bytes
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  # closed by __exit__
        self._got: dict[int, Future[bool]] = {}
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(_AT_ONCE)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def over(self, objects: ObjectBytes) -> SpooledBytes:
        """`objects`, with this spool before them."""
        return SpooledBytes(objects, self)

    def read(self, objects: ObjectBytes, object_id: int, start: int, size_bytes: int) -> Buffer:
        """See ObjectBytes."""
        planned = self._ranges.get(object_id)
        is_inside = planned is not None and planned.start <= start and start + size_bytes <= planned.end
        if planned is None or not is_inside or not self._has(objects, object_id, planned):
            return objects.read(object_id, start, size_bytes)
        return pread(self._file.fileno(), size_bytes, self._places[object_id] + start - planned.start)

    def _has(self, objects: ObjectBytes, object_id: int, planned: ByteRange) -> bool:
        """Whether the range is in the file, which the first call sees to; errors are those of the request."""
        with self._lock:
            got = self._got.get(object_id)
            is_first = got is None
            if got is None:
                got = self._got[object_id] = Future()
        if is_first:
            try:
                with self._turns:
                    got.set_result(self._get(objects, object_id, planned))
            except BaseException as error:
                with self._lock:
                    del self._got[object_id]  # the next reader asks again
                got.set_exception(error)
        return got.result()

    def _get(self, objects: ObjectBytes, object_id: int, planned: ByteRange) -> bool:
        """Get the range; False if the store gives less than that, which the reader of the missing bytes reports."""
        place = self._places[object_id]
        for start in range(planned.start, planned.end, WINDOW_BYTES):
            size_bytes = min(WINDOW_BYTES, planned.end - start)
            data = objects.read(object_id, start, size_bytes)
            if len(data) != size_bytes:
                return False
            LOCAL.pwrite_all(self._file.fileno(), data, place + start - planned.start)
        return True


@dataclass(frozen=True, slots=True)
class SpooledBytes:
    """An ObjectBytes over another one, through a spool."""

    objects: ObjectBytes
    spool: Spool

    def name(self, object_id: int) -> str:
        return self.objects.name(object_id)

    def read(self, object_id: int, start: int, size_bytes: int) -> Buffer:
        return self.spool.read(self.objects, object_id, start, size_bytes)
