"""The append of a commit: batches of a `.staged` file become part of the log; the kernel moves their bytes.

    staged, offsets from 0   ->   active segment, from its end on: copy, then 16 header bytes per batch
                             or   a separate segment: header bytes in place, then a link

The CRC does not cover base offset and leader epoch, so nothing is decoded. Index entries and rolls are computed from
the batch table that comes with the file. A crash leaves bytes past the committed end, or a segment above it; the next
`resume` removes both. With LogAppendTime the timestamp is that of the commit, and headers and CRCs are recomputed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.record.header import (
    BATCH_DTYPE,
    CONTROL_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    TimestampType,
    parse_header,
)
from pyspark_kafkalog.storage.filesystem import READ_FLAGS
from pyspark_kafkalog.storage.log.append_info import AppendInfo
from pyspark_kafkalog.storage.log.validator import check_batch_size, stamp
from pyspark_kafkalog.storage.segment.reader import CHUNK_BYTES
from pyspark_kafkalog.storage.segment.segment import read_range
from pyspark_kafkalog.storage.staging.staged_file import StagedFile

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.unified_log import UnifiedLog

#: Staged files from this size on become a separate segment instead of being copied: copying data that is already on
#: disk, and syncing it again, cost a quarter of a write. Copying less than this costs some milliseconds.
ADOPT_BYTES: Final = 16 << 20


def append_staged(log: UnifiedLog, staged: StagedFile, *, leader_epoch: int, durable: bool) -> AppendInfo:
    """Store the batches of `staged` from the log end on; the file stays until the caller has committed.

    Raises InvalidRecordError for batches that the topic does not accept, ProducerFencedError, and CorruptRecordError if
    the file does not match its table.
    """
    if not len(staged.batches):
        return AppendInfo.nothing(log.log_end_offset)
    path = log.directory / staged.name
    now_ms = log.clock()
    first_offset = log.log_end_offset
    stamps = log.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    batches = _final_table(log, staged, leader_epoch, now_ms if stamps else None)
    log.check_producers(batches)
    log.assign_epoch(leader_epoch, first_offset)
    fd = os.open(path, READ_FLAGS)
    try:
        _check_size(fd, staged, path)
        if stamps:
            _append_stamped(log, fd, batches, path)
        elif not _adopt(log, path, fd, batches):
            _append_copied(log, fd, batches)
    finally:
        os.close(fd)
    if durable:
        log.flush()
    return log.appended(first_offset, now_ms if stamps else None)


def _final_table(
    log: UnifiedLog, staged: StagedFile, leader_epoch: int, log_append_time_ms: int | None
) -> NDArray[np.void]:
    """The staged table as it will be stored: with offsets, epoch, and timestamps if the log sets them."""
    table = staged.batches
    special = (table["attributes"] & (CONTROL_MASK | TRANSACTIONAL_MASK)) != 0
    if special.any():
        raise InvalidRecordError(f"{staged.name} holds transactional or control batches, which cannot be staged")
    check_batch_size(int(table["size_bytes"].max()), log.config)
    batches = np.array(table, dtype=BATCH_DTYPE)
    batches["base_offset"] += log.log_end_offset
    batches["last_offset"] += log.log_end_offset
    batches["leader_epoch"] = leader_epoch
    if log_append_time_ms is not None:
        batches["max_timestamp_ms"] = log_append_time_ms
        batches["attributes"] |= TIMESTAMP_TYPE_MASK
    return batches


def _adopt(log: UnifiedLog, path: Path, fd: int, batches: NDArray[np.void]) -> bool:
    """Make the file a separate segment if it is large and contains no roll; returns whether it did.

    Both names then refer to the same bytes. A file that already has another name is therefore left unchanged: the
    purpose of that name is unknown, and the headers under it must not change.
    """
    size_bytes = int(batches["size_bytes"].sum())
    if size_bytes < min(ADOPT_BYTES, log.config.segment_bytes // 2) or os.fstat(fd).st_nlink > 1:
        return False
    segment = log.roll()
    if segment.plan(batches, now_ms=log.clock()).count < len(batches):
        return False
    segment.adopt(path, batches, now_ms=log.clock())
    log.names_changed = True
    log.run_stored(batches)
    log.count_producers(batches)
    return True


def _append_copied(log: UnifiedLog, fd: int, batches: NDArray[np.void]) -> None:
    rest = batches
    while len(rest):
        plan = log.next_run(rest)
        run = rest[: plan.count]
        log.active_segment.append_from_file(fd, int(run["position"][0]), run, plan)
        log.run_stored(run)
        log.count_producers(run)
        rest = rest[plan.count :]


def _append_stamped(log: UnifiedLog, fd: int, batches: NDArray[np.void], path: Path) -> None:
    """Append with the log's timestamp in each batch: in bounded pieces through memory, to recompute the CRCs."""
    rest = batches
    while len(rest):
        plan = log.next_run(rest[: _count_within(rest, CHUNK_BYTES)])
        run = rest[: plan.count]
        position = int(run["position"][0])
        data = read_range(fd, position, int(run["size_bytes"].sum()))
        for row in run:
            at = int(row["position"]) - position
            header = parse_header(data, at, file=str(path), file_position=int(row["position"]))
            header = replace(header, base_offset=int(row["base_offset"]), leader_epoch=int(row["leader_epoch"]))
            stamp(
                data[at : at + header.size_bytes], header, TimestampType.LOG_APPEND_TIME, int(row["max_timestamp_ms"])
            )
        log.active_segment.append(data, plan)
        log.run_stored(run)
        log.count_producers(run)
        rest = rest[plan.count :]


def _count_within(batches: NDArray[np.void], limit_bytes: int) -> int:
    """The number of first batches that fit into `limit_bytes`, at least one."""
    return max(1, int(np.searchsorted(np.cumsum(batches["size_bytes"]), limit_bytes, side="right")))


def _check_size(fd: int, staged: StagedFile, path: Path) -> None:
    found = os.fstat(fd).st_size
    if found != staged.size_bytes:
        raise CorruptRecordError(
            file=str(path),
            position=min(found, staged.size_bytes),
            expected=f"a staged file of {staged.size_bytes} bytes",
            found=f"{found} bytes",
            advice="write the data again",
        )
