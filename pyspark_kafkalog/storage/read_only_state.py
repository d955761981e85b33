"""What can be said of a partition that is not ours to write: a stopped broker's, a live one's, a backup.

Nothing is written, nothing is locked, and files may grow, appear and go while this reads. The log ends where the last
valid batch of the active segment does: only what follows its last index entry is read and CRC-checked. A torn tail, or
a batch that a live broker is just writing, is not part of the log yet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, parse_header
from pyspark_kafkalog.record.scan import first_bad_crc
from pyspark_kafkalog.storage.listing import list_base_offsets
from pyspark_kafkalog.storage.log_file import read_chunks
from pyspark_kafkalog.storage.mapped_index import MAX_INDEX_BYTES
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, segment_file
from pyspark_kafkalog.storage.offset_index import OffsetIndex
from pyspark_kafkalog.storage.producer_rebuild import producer_state_at

_LISTING_TRIES: Final = 10
_PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class ReadOnlyState:
    """A foreign partition as it was found: base offsets of its segments, and [log start, log end)."""

    base_offsets: tuple[int, ...]
    log_start_offset: int
    log_end_offset: int


def load_read_only(directory: Path, *, log_start_offset: int = 0) -> ReadOnlyState:
    """Look at the partition in `directory`; `log_start_offset` is what log-start-offset-checkpoint says, 0 if nothing.

    Raises OSError when the directory cannot be read, UnsupportedFormatError for batches of an older record format.
    """
    for _ in range(_LISTING_TRIES - 1):
        base_offsets = list_base_offsets(directory)
        try:
            return _look(directory, base_offsets, log_start_offset)
        except FileNotFoundError:
            continue  # Retention or the cleaner has taken the segment since it was listed.
    return _look(directory, list_base_offsets(directory), log_start_offset)


def last_stable_offset(
    directory: Path,
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    producer_id_expiration_ms: int = _PRODUCER_ID_EXPIRATION_MS,
) -> int:
    """Where read_committed ends: the first offset of the oldest transaction not ended below `high_watermark`, or that.

    Reads the latest usable snapshot and the batches between it and `high_watermark`. Raises DiskFormatError for damage
    in those.
    """
    producers = producer_state_at(
        directory,
        high_watermark,
        log_start_offset=log_start_offset,
        expiration_ms=producer_id_expiration_ms,
        now_ms=now_ms,
    )
    first_open = producers.first_undecided_offset
    if first_open is None:
        return high_watermark
    return min(max(first_open, log_start_offset), high_watermark)


def _look(directory: Path, base_offsets: list[int], log_start_offset: int) -> ReadOnlyState:
    if not base_offsets:
        return ReadOnlyState((), log_start_offset, log_start_offset)
    log_start_offset = max(log_start_offset, base_offsets[0])
    log_end_offset = max(_end_offset(directory, base_offsets[-1]), log_start_offset)
    return ReadOnlyState(tuple(base_offsets), log_start_offset, log_end_offset)


def _end_offset(directory: Path, base_offset: int) -> int:
    """The offset after the last valid batch of the segment; its base offset when there is none."""
    path = segment_file(directory, base_offset, LOG_SUFFIX)
    file = str(path)
    end_offset = base_offset
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(fd).st_size
        start = _last_indexed_position(directory, base_offset, fd, size_bytes)
        for chunk in read_chunks(fd, file=file, start=start, end=size_bytes, min_base_offset=base_offset):
            bad = first_bad_crc(chunk.data, chunk.batches, chunk.position)
            valid = chunk.batches if bad < 0 else chunk.batches[:bad]
            if len(valid):
                end_offset = int(valid["last_offset"][-1]) + 1
            if bad >= 0:
                break
    except CorruptRecordError:
        pass  # No batch begins there: the log ends before it.
    finally:
        os.close(fd)
    return end_offset


def _last_indexed_position(directory: Path, base_offset: int, fd: int, size_bytes: int) -> int:
    """Where the batch of the last index entry that its batch confirms starts; 0 when there is none to trust."""
    try:
        index = OffsetIndex.open(
            segment_file(directory, base_offset, INDEX_SUFFIX), base_offset, max_index_bytes=MAX_INDEX_BYTES
        )
    except (OSError, DiskFormatError):
        return 0
    try:
        if not index.entries:
            return 0
        entry = index.entry(index.entries - 1)
        if not 0 < entry.position < size_bytes:
            return 0
        head = os.pread(fd, RECORD_BATCH_OVERHEAD_BYTES, entry.position)
        header = parse_header(head, 0, file="", file_position=entry.position)
        return entry.position if header.last_offset == entry.offset else 0
    except DiskFormatError:
        return 0
    finally:
        index.close_handler()
