"""Whole batches at an offset: searches the extents of a log, beside jobs that replace extents, and reads one of them.

Retention, the cleaner, merges and tiering may delete or replace an extent between its listing and its opening: then
the extents are listed again. Batches are found by their headers; CRCs are left to the reader. Nothing is stored, so a
crash loses nothing.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, OffsetOutOfRangeError
from pyspark_kafkalog.record.kernels.scan import walk_headers
from pyspark_kafkalog.storage.direct_io import memory_for
from pyspark_kafkalog.storage.log.reader import PartitionExtents
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX, Extent, SegmentReader

_LOST_EXTENT_TRIES: Final = 10
_BASE_OFFSET: Final = attrgetter("base_offset")
_T = TypeVar("_T")


def search_listed(extents: PartitionExtents, search: Callable[[Sequence[Extent]], _T]) -> _T:
    """What `search` returns for the extents; it is called again when it has raised LostExtentError.

    Raises FileNotFoundError if they are replaced faster than they can be opened.
    """
    current = extents.current()
    for _ in range(_LOST_EXTENT_TRIES):
        try:
            return search(current)
        except LostExtentError as lost:
            current = extents.after_loss(lost.extent)
    raise FileNotFoundError(f"the segments of {extents.name} are replaced faster than they can be opened")


def search_from(
    extents: PartitionExtents,
    offset: int,
    end_offset: int,
    look: Callable[[Extent], _T | None],
    *,
    partition: object,
    high_watermark: int,
) -> _T | None:
    """The first that `look` finds in an extent, from the one with `offset` on and below `end_offset`; else None.

    `look` raises FileNotFoundError for an extent that is gone. Raises OffsetOutOfRangeError for an offset below all
    extents, and CorruptRecordError for one above all of them, which says that committed records are missing.
    """

    def search(current: Sequence[Extent]) -> _T | None:
        at = bisect.bisect_right(current, offset, key=_BASE_OFFSET) - 1
        if at < 0:
            start = current[0].base_offset if current else high_watermark
            raise OffsetOutOfRangeError(f"offset {offset} of {partition} is below {start}, its first segment")
        for extent in (current[each] for each in range(at, len(current))):  # bounded: the extents
            if extent.base_offset >= end_offset:
                break
            if extent.end_offset is not None and extent.end_offset <= offset:
                continue
            try:
                found = look(extent)
            except FileNotFoundError:
                raise LostExtentError(extent) from None
            if found is not None:
                return found
        last = current[-1].end_offset
        if last is not None and last <= offset:
            raise CorruptRecordError(
                file=extents.name,
                position=0,
                expected=f"a segment with offset {offset}",
                found=f"the end of the log at offset {last}",
                advice="committed records are missing: run kafkalog verify",
            )
        return None

    return search_listed(extents, search)


def open_at(extent: Extent, offset: int) -> tuple[SegmentReader, int] | None:
    """A reader of the extent, and the position of its first batch that ends above `offset`; None if it has none.

    Raises FileNotFoundError for an extent that is gone, CorruptRecordError, ObjectStoreError, OSError.
    """
    reader = SegmentReader(extent)
    try:
        located = reader.locate(offset)
        if located is not None:
            return reader, located[0]
    except DiskFormatError as error:
        reader.close()
        raise reader.placed(error) from None
    except BaseException:
        reader.close()
        raise
    reader.close()
    return None


class BatchBytes(NamedTuple):
    """Whole batches, their last offset, and the attributes of all. `is_cut`: the first one is larger than allowed."""

    data: memoryview = memoryview(b"")
    last_offset: int = -1
    attributes: int = 0
    is_cut: bool = False


def whole_batches(
    reader: SegmentReader,
    position: int,
    offset: int,
    *,
    end_position: int,
    end_offset: int,
    piece_bytes: int,
    max_bytes: int,
    may_exceed: bool,
    memory: Callable[[int, int], NDArray[np.uint8]] = memory_for,
) -> BatchBytes:
    """The batches from `position` on, of which the first holds `offset` or a later one; none from `end_offset` on.

    The bytes up to `end_position` are committed. At most `piece_bytes`; a first batch that is larger is returned alone
    if it has at most `max_bytes`, or if it `may_exceed` them. `memory` is as `memory_for`.
    Raises CorruptRecordError, UnsupportedFormatError where a message of an older format begins, ObjectStoreError,
    OSError.
    """
    left_bytes = end_position - position
    found = _walked(reader, position, end_offset, min(piece_bytes, max_bytes, left_bytes), memory)
    if len(found.data):
        return found
    header = reader.header_at(position)
    if header.last_offset >= end_offset:
        return found
    if header.size_bytes <= min(left_bytes, BATCH_BYTES_MAX) and header.last_offset >= offset:
        if header.size_bytes > max_bytes and not may_exceed:
            return BatchBytes(is_cut=True)
        found = _walked(reader, position, end_offset, header.size_bytes, memory)
        if len(found.data):
            return found
    reader.refuse_old(position)
    raise CorruptRecordError(
        file=reader.file,
        position=position,
        expected=f"a whole batch with offset {offset} or a later one, of at most {BATCH_BYTES_MAX} bytes",
        found=f"one of {header.size_bytes} bytes up to offset {header.last_offset}, and {left_bytes} bytes to the end",
    )


def _walked(
    reader: SegmentReader,
    position: int,
    end_offset: int,
    size_bytes: int,
    memory: Callable[[int, int], NDArray[np.uint8]],
) -> BatchBytes:
    if size_bytes <= 0:
        return BatchBytes()
    buffer = memory(position, size_bytes)  # segments of a copy begin where those of the original do, mostly
    count = reader.read_into(position, buffer.data)
    end, last_offset, attributes, _ = walk_headers(buffer[:count], 0, count, reader.base_offset - 1, end_offset)
    return BatchBytes(buffer.data[:end], last_offset, attributes) if end else BatchBytes()


class LostExtentError(Exception):
    """An extent was deleted or replaced since it was listed."""

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
