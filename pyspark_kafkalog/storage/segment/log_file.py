"""A segment's `.log` file as its writer sees it: batches back to back, read in bounded chunks.

    batch, batch, … each a 61-byte header and its records; nothing before, between or after

A writer keeps its own size and does not use the file's: bytes past it were left by a crash. A crash may leave a torn
last batch; `read_chunks` ends before it, and raises only for bytes that cannot be the start of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.header import (
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    check_length_and_magic,
)
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.storage.filesystem import FileSystem, preadv
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX, CHUNK_BYTES

_RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
_OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """Consecutive whole batches: `data` (uint8) starts at byte `position` of the file, `batches` has BATCH_DTYPE."""

    data: NDArray[np.uint8]
    position: int
    batches: NDArray[np.void]

    @property
    def end_position(self) -> int:
        """The byte after the last batch."""
        last = self.batches[-1]
        return int(last["position"]) + int(last["size_bytes"])


def read_range(fd: int, position: int, length: int) -> NDArray[np.uint8]:
    """Up to `length` bytes from byte `position` on; fewer only at the end of the file."""
    buffer = np.empty(length, dtype=np.uint8)
    view = memoryview(buffer.data)
    done = 0
    while done < length:
        count = preadv(fd, view[done:], position + done)
        if count == 0:
            break
        done += count
    return buffer[:done]


def read_chunks(
    fd: int, *, file: str, start: int, end: int, base_offset: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[BatchChunk]:
    """Yield the batches that are whole in bytes [start, end), in chunks of at most about `chunk_bytes`.

    Ends before an incomplete last batch. Offsets must increase, and lie within 2^31 of the segment's `base_offset`.
    Raises CorruptRecordError or UnsupportedFormatError at the first bad header, after the batches before it were
    yielded.
    """
    position = start
    min_offset = base_offset
    max_offset = min(base_offset + _RELATIVE_OFFSET_MAX, _OFFSET_MAX)
    length = chunk_bytes
    while position < end:
        data = read_range(fd, position, min(length, end - position))
        scan = scan_batches(data, file=file, file_position=position)
        length = chunk_bytes
        if len(scan.batches):
            _check_first_offset(scan.batches, min_offset, file=file)
            min_offset = int(scan.batches["last_offset"][-1]) + 1
            within = int(np.searchsorted(scan.batches["last_offset"], max_offset, side="right"))
            if within:
                yield BatchChunk(data, position, scan.batches[:within])
            if within < len(scan.batches):
                raise _out_of_reach(scan.batches[within], max_offset, file=file)
            position += scan.consumed_bytes
        if scan.fault is not None:
            raise scan.fault
        if not len(scan.batches):
            whole = _batch_bytes(data, file=file, position=position)
            if whole is None or whole > end - position or len(data) >= whole:
                return
            length = whole


def patch_headers(fs: FileSystem, fd: int, batches: NDArray[np.void], position: int) -> None:
    """Write base offset, length and leader epoch of each of `batches`, stored back to back from byte `position` on.

    The log assigns these 16 bytes; the CRC does not cover them.
    """
    heads = np.empty((len(batches), MAGIC_AT), dtype=np.uint8)
    heads[:, :LENGTH_AT] = batches["base_offset"].astype(">i8")[:, None].view(np.uint8)
    heads[:, LENGTH_AT:LEADER_EPOCH_AT] = (
        (batches["size_bytes"] - LOG_OVERHEAD_BYTES).astype(">i4")[:, None].view(np.uint8)
    )
    heads[:, LEADER_EPOCH_AT:] = batches["leader_epoch"].astype(">i4")[:, None].view(np.uint8)
    flat = heads.tobytes()
    sizes = batches["size_bytes"].astype(np.int64)
    positions = (position + np.cumsum(sizes) - sizes).tolist()
    for row, at in enumerate(positions):
        fs.pwrite_all(fd, flat[row * MAGIC_AT : (row + 1) * MAGIC_AT], at)


def _out_of_reach(batch: np.void, max_offset: int, *, file: str) -> CorruptRecordError:
    return CorruptRecordError(
        file=file,
        position=int(batch["position"]),
        expected=f"offsets of at most {max_offset}, which an index of the segment can tell",
        found=str(int(batch["last_offset"])),
    )


def _check_first_offset(batches: NDArray[np.void], min_offset: int, *, file: str) -> None:
    found = int(batches["base_offset"][0])
    if found < min_offset:
        raise CorruptRecordError(
            file=file,
            position=int(batches["position"][0]),
            expected=f"a base offset of at least {min_offset}",
            found=str(found),
        )


def _batch_bytes(data: NDArray[np.uint8], *, file: str, position: int) -> int | None:
    """Length of the batch that `data` starts with; None if even its length field is cut off."""
    if len(data) <= MAGIC_AT:
        return None
    batch_length = int.from_bytes(data[LENGTH_AT : LENGTH_AT + 4].tobytes(), "big", signed=True)
    check_length_and_magic(batch_length, int(data[MAGIC_AT].view(np.int8)), file=file, file_position=position)
    if batch_length + LOG_OVERHEAD_BYTES > BATCH_BYTES_MAX:
        raise CorruptRecordError(
            file=file,
            position=position + LENGTH_AT,
            expected=f"a batch of at most {BATCH_BYTES_MAX} bytes",
            found=str(batch_length + LOG_OVERHEAD_BYTES),
        )
    return batch_length + LOG_OVERHEAD_BYTES
