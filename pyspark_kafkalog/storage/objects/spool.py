"""Data objects that several readers want parts of, each got once and kept in a scratch file.

A merge reads the runs of many partitions, which lie side by side in the same objects. The first read of an object gets
the planned range of it, in windows of `WINDOW_BYTES`; later reads, of whichever partition, are answered from the file.
Bytes outside of the planned ranges are got as without a spool. The file has no name after it is opened, so a crash
leaves nothing.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.filesystem import LOCAL, pread
from pyspark_kafkalog.storage.objects.run_source import ObjectBytes
from pyspark_kafkalog.units import MIB

#: What one request gets at most, and how many objects are got at once: their product bounds the memory.
WINDOW_BYTES: Final = 16 * MIB
_AT_ONCE: Final = 4


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
