"""Where a partition's log starts and ends, as the files of a stopped broker, a running one, or a backup show it.

Reading the files writes and locks nothing; files may grow, appear and disappear meanwhile. The log ends after the last
valid batch of the active segment: only the batches after its last index entry are read and CRC-checked. A torn tail, or
a batch that a running broker is still writing, is not part of the log yet.

Batches above the high watermark were appended, but not checkpointed as committed, and after a power failure parts of
them may never have reached the disk. `checked_end_offset` therefore reads and CRC-checks each of them, and the log ends
before the first damaged one, as in a broker's recovery. An abort marker may lack its entry in the transaction index,
which a broker writes after the marker: readers take aborted transactions from the log (isolation.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, crc32c
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader
from pyspark_kafkalog.units import INT64_MAX
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.producers import ProducerStateManager

_LISTING_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class ReadOnlyState:
    """The state of a broker's partition: base offsets of its segments, and the offsets at which its log starts and
    ends."""

    base_offsets: tuple[int, ...]
    local_log_start_offset: int
    log_end_offset: int


def load_read_only(directory: Path, *, log_start_offset: int = 0) -> ReadOnlyState:
    """Read the state of the partition in `directory`; `log_start_offset` is from its checkpoint, 0 without a line.

    Raises OSError if the directory cannot be read.
    """
    for _ in range(_LISTING_TRIES - 1):
        base_offsets = list_base_offsets(directory)
        try:
            return _read_state(directory, base_offsets, log_start_offset)
        except FileNotFoundError:
            continue  # retention or the cleaner has deleted the segment since it was listed
    return _read_state(directory, list_base_offsets(directory), log_start_offset)


def last_stable_offset(
    directory: Path,
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
) -> int:
    """The end for read_committed: the first offset of the oldest transaction not ended below `high_watermark`.

    Without such a transaction, `high_watermark`. Reads the latest usable snapshot and the batches between it and
    `high_watermark`. Raises DiskFormatError for damage in those.
    """
    from pyspark_kafkalog.storage.log.producer_replay import producer_state_at  # heavy: imports numba

    producers = producer_state_at(
        directory,
        high_watermark,
        log_start_offset=log_start_offset,
        expiration_ms=producer_id_expiration_ms,
        now_ms=now_ms,
    )
    return stable_offset_of(producers, log_start_offset, high_watermark)


def stable_offset_of(producers: ProducerStateManager, log_start_offset: int, high_watermark: int) -> int:
    """The last stable offset, from the state of the producers at the high watermark."""
    first_open = producers.first_undecided_offset
    if first_open is None:
        return high_watermark
    return min(max(first_open, log_start_offset), high_watermark)


def _read_state(directory: Path, base_offsets: list[int], log_start_offset: int) -> ReadOnlyState:
    if not base_offsets:
        return ReadOnlyState((), log_start_offset, log_start_offset)
    local_log_start_offset = max(log_start_offset, base_offsets[0])
    log_end_offset = max(_end_offset(directory, base_offsets[-1]), local_log_start_offset)
    return ReadOnlyState(tuple(base_offsets), local_log_start_offset, log_end_offset)


def _end_offset(directory: Path, base_offset: int) -> int:
    """The offset after the last valid batch of the segment; its base offset without one."""
    with SegmentReader(LocalExtent(directory, base_offset)) as reader:
        # From the last index entry back to one that points at a valid batch: the indexed batch may be the torn one.
        below = INT64_MAX
        while True:
            position = reader.position_for_offset(below)
            end_offset = _end_offset_from(reader, position)
            if end_offset is not None or position == 0:
                return base_offset if end_offset is None else end_offset
            below = reader.header_at(position).last_offset - 1


def _end_offset_from(reader: SegmentReader, position: int) -> int | None:
    """The offset after the last of the valid batches from `position` on; None if the first one is not valid."""
    end_offset = None
    try:
        for at, header in reader.headers(position):
            is_rising = header.base_offset >= (reader.base_offset if end_offset is None else end_offset)
            if not is_rising or crc32c(memoryview(reader.batch_at(at, header))[ATTRIBUTES_AT:]) != header.crc:
                break
            end_offset = header.next_offset
    except CorruptRecordError:
        pass  # no batch begins at that position: the log ends before it
    return end_offset


@dataclass(frozen=True, slots=True)
class _CheckedSegment:
    """The offset after a segment's last valid batch; `is_whole`: no damaged bytes follow."""

    end_offset: int
    is_whole: bool


def checked_end_offset(directory: Path, base_offsets: Sequence[int], start_offset: int) -> int:
    """The offset after the last of the whole, valid batches that follow `start_offset` without a gap.

    `base_offsets` are those of the segments. Reads only from `start_offset` on. Raises FileNotFoundError if a segment
    was deleted meanwhile.
    """
    end_offset = start_offset
    for base_offset, next_base in pairwise([*base_offsets, None]):
        assert base_offset is not None
        if next_base is not None and next_base <= start_offset:
            continue
        found = _check_segment(directory, base_offset, end_offset)
        end_offset = max(end_offset, found.end_offset)
        if not found.is_whole:
            break
    return end_offset


def _check_segment(directory: Path, base_offset: int, start_offset: int) -> _CheckedSegment:
    """Check the batches of a segment from `start_offset` on."""
    end_offset, end_position = base_offset, 0
    with SegmentReader(LocalExtent(directory, base_offset)) as reader:
        try:
            end_position = reader.position_for_offset(start_offset)
            for position, header in reader.headers(end_position):
                if header.base_offset < end_offset:
                    break
                if header.last_offset >= start_offset:
                    data = memoryview(reader.batch_at(position, header))
                    if crc32c(data[ATTRIBUTES_AT:]) != header.crc:
                        break
                end_offset, end_position = header.next_offset, position + header.size_bytes
        except CorruptRecordError:
            pass  # no batch begins at that position: the log ends before it
        return _CheckedSegment(end_offset, is_whole=end_position == reader.size_bytes)
