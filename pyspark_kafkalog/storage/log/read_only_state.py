"""The state of a partition that is only read: of a stopped broker, a running one, or a backup.

Nothing is written or locked, and files may grow, appear and disappear during the read. The log ends at the end of the
last valid batch of the active segment; only the batches after its last index entry are read and CRC-checked. A torn
tail, or a batch that a running broker is still writing, is not part of the log yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, crc32c
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.segment.reader import SegmentReader

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.producers import ProducerStateManager

_LISTING_TRIES: Final = 10
_MAX_OFFSET: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReadOnlyState:
    """The state of a broker's partition: base offsets of its segments, and the offsets at which its log starts and
    ends."""

    base_offsets: tuple[int, ...]
    local_log_start_offset: int
    log_end_offset: int


def load_read_only(directory: Path, *, log_start_offset: int = 0) -> ReadOnlyState:
    """Read the state of the partition in `directory`; `log_start_offset` is from its checkpoint, 0 without a line.

    Raises OSError if the directory cannot be read, UnsupportedFormatError for batches of an older record format.
    """
    for _ in range(_LISTING_TRIES - 1):
        base_offsets = list_base_offsets(directory)
        try:
            return _look(directory, base_offsets, log_start_offset)
        except FileNotFoundError:
            continue  # retention or the cleaner has deleted the segment since it was listed
    return _look(directory, list_base_offsets(directory), log_start_offset)


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
    from pyspark_kafkalog.storage.log.producer_replay import producer_state_at  # imports compiled code

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


def _look(directory: Path, base_offsets: list[int], log_start_offset: int) -> ReadOnlyState:
    if not base_offsets:
        return ReadOnlyState((), log_start_offset, log_start_offset)
    local_log_start_offset = max(log_start_offset, base_offsets[0])
    log_end_offset = max(_end_offset(directory, base_offsets[-1]), local_log_start_offset)
    return ReadOnlyState(tuple(base_offsets), local_log_start_offset, log_end_offset)


def _end_offset(directory: Path, base_offset: int) -> int:
    """The offset after the last valid batch of the segment; its base offset without one."""
    with SegmentReader(directory, base_offset) as reader:
        # From the last index entry back to one that points at a valid batch: the indexed batch may be the torn one.
        below = _MAX_OFFSET
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
        pass  # no batch begins there: the log ends before it
    return end_offset
