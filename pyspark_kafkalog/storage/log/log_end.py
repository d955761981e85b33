"""The end of a broker's log for a reader that reads beyond the high watermark.

Batches above the high watermark were appended, but not checkpointed as committed, and after a power failure parts of
them may never have reached the disk. Each batch from the high watermark on is therefore read and its CRC checked, and
the log ends before the first damaged one, as in a broker's recovery. It also ends before an abort marker that has no
entry in the transaction index, which a broker writes after the marker: without the entry, records of the aborted
transaction would be taken for committed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, crc32c
from pyspark_kafkalog.storage.segment.reader import SegmentReader


@dataclass(frozen=True, slots=True)
class _CheckedSegment:
    """The offset after a segment's last valid batch, and whether transaction markers are among the checked batches.

    `is_whole`: no damaged bytes follow.
    """

    end_offset: int
    has_markers: bool
    is_whole: bool


def checked_end_offset(
    directory: Path, base_offsets: Sequence[int], start_offset: int, *, log_start_offset: int, now_ms: int
) -> int:
    """The offset after the last of the whole, valid batches that follow `start_offset` without a gap.

    `base_offsets` are those of the segments. Reads only from `start_offset` on. Raises FileNotFoundError if a segment
    was deleted meanwhile.
    """
    end_offset = start_offset
    has_markers = False
    for base_offset, next_base in pairwise([*base_offsets, None]):
        assert base_offset is not None
        if next_base is not None and next_base <= start_offset:
            continue
        found = _check_segment(directory, base_offset, end_offset)
        has_markers |= found.has_markers
        end_offset = max(end_offset, found.end_offset)
        if not found.is_whole:
            break
    if has_markers:
        unindexed = _first_unindexed_abort(directory, start_offset, end_offset, log_start_offset, now_ms)
        end_offset = end_offset if unindexed is None else unindexed
    return end_offset


def _check_segment(directory: Path, base_offset: int, start_offset: int) -> _CheckedSegment:
    """Check the batches of a segment from `start_offset` on."""
    end_offset, end_position, has_markers = base_offset, 0, False
    with SegmentReader(directory, base_offset) as reader:
        try:
            end_position = reader.position_for_offset(start_offset)
            for position, header in reader.headers(end_position):
                if header.base_offset < end_offset:
                    break
                if header.last_offset >= start_offset:
                    data = memoryview(reader.batch_at(position, header))
                    if crc32c(data[ATTRIBUTES_AT:]) != header.crc:
                        break
                    has_markers |= header.is_control and header.is_transactional
                end_offset, end_position = header.next_offset, position + header.size_bytes
        except CorruptRecordError:
            pass  # no batch begins there: the log ends before it
        return _CheckedSegment(end_offset, has_markers, is_whole=end_position == reader.size_bytes)


def _first_unindexed_abort(
    directory: Path, start_offset: int, end_offset: int, log_start_offset: int, now_ms: int
) -> int | None:
    """The offset of the first abort marker in the range that is missing in the transaction indexes."""
    from pyspark_kafkalog.storage.log.isolation import AbortedTransactions  # imports compiled code
    from pyspark_kafkalog.storage.log.producer_append import CompletedTransaction
    from pyspark_kafkalog.storage.log.producer_replay import producer_state_at

    aborted: list[CompletedTransaction] = []
    producer_state_at(
        directory,
        end_offset,
        log_start_offset=log_start_offset,
        expiration_ms=PRODUCER_ID_EXPIRATION_MS,
        now_ms=now_ms,
        on_completed=aborted.append,
    )
    indexed = AbortedTransactions.overlapping(directory, start_offset, end_offset).transactions
    known = {(each.producer_id, each.last_offset) for each in indexed}
    missing = (
        each.last_offset
        for each in aborted
        if each.is_aborted and each.last_offset >= start_offset and (each.producer_id, each.last_offset) not in known
    )
    return min(missing, default=None)
