"""Going on from a commit's LogState: what a broker keeps in memory comes from the state, not from the files.

Nothing that the last commit did not cover is kept: bytes past the active segment's size, later segments, snapshots and
index entries past the log end are what a crashed writer left. An index that does not end where the state says its last
entry is has been lost in a power failure, and is built anew from the active segment.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.storage.append_info import LoadedLog
from pyspark_kafkalog.storage.append_plan import SegmentCounters
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.log_config import LogConfig
from pyspark_kafkalog.storage.log_loader import roll_jitter_ms
from pyspark_kafkalog.storage.log_segment import LogSegment
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    parse_segment_file,
)
from pyspark_kafkalog.storage.resumed_producers import ResumedProducers
from pyspark_kafkalog.storage.segment_list import SegmentList


def resume(
    directory: Path,
    config: LogConfig,
    state: LogState,
    *,
    now_ms: int,
    fs: FileSystem,
    rng: random.Random | None,
    producer_id_expiration_ms: int,
) -> LoadedLog:
    """The log as `state` says it is, ready to be appended to.

    Raises CorruptRecordError when the active segment is shorter than the state says.
    """
    bases = _remove_later_files(directory, state, fs)
    segments = SegmentList()
    for base_offset in bases:
        segments.add(LogSegment(directory, base_offset, config, fs=fs, created_ms=now_ms))
    active = LogSegment(
        directory,
        state.active_base_offset,
        config,
        fs=fs,
        created_ms=now_ms,
        jitter_ms=roll_jitter_ms(directory, state.active_base_offset, config, rng),
        counters=_counters(state),
    )
    segments.add(active)
    is_new = not active.log_path.exists() or state.active_size_bytes == 0
    _cut_to_state(active, state)
    _check_indexes(active, state)
    epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT, fs=fs)
    return LoadedLog(
        segments=segments,
        producers=ResumedProducers(
            directory,
            state.producer,
            log_start_offset=state.log_start_offset,
            expiration_ms=producer_id_expiration_ms,
            fs=fs,
            first_undecided_offset=None if state.first_unstable_offset < 0 else state.first_unstable_offset,
        ),
        epochs=epochs,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        recovery_point=state.log_end_offset,
        names_changed=is_new,
    )


def _counters(state: LogState) -> SegmentCounters:
    return SegmentCounters(
        size_bytes=state.active_size_bytes,
        first_timestamp_ms=state.active_first_timestamp_ms,
        max_timestamp_ms=state.active_max_timestamp_ms,
        max_timestamp_offset=state.active_max_timestamp_offset,
        bytes_since_last_index_entry=state.bytes_since_last_index_entry,
    )


def _remove_later_files(directory: Path, state: LogState, fs: FileSystem) -> list[int]:
    """Remove segment files above the active segment and snapshots above the log end; returns the bases that stay."""
    bases = []
    later = []
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file(entry.name)
            if parsed is None:
                continue
            offset, suffix = parsed
            last = state.log_end_offset if suffix == PRODUCER_SNAPSHOT_SUFFIX else state.active_base_offset
            if offset > last:
                later.append(entry.name)
            elif suffix == LOG_SUFFIX and offset < state.active_base_offset:
                bases.append(offset)
    # From the highest down and a .log before its indexes, so that a crash in between leaves nothing to be mistaken.
    for name in sorted(later, key=lambda each: (each[:20], each.endswith(LOG_SUFFIX)), reverse=True):
        fs.unlink_if_there(directory / name)
    return bases


def _cut_to_state(active: LogSegment, state: LogState) -> None:
    found = os.fstat(active.fd).st_size
    if found < state.active_size_bytes:
        raise CorruptRecordError(
            file=str(active.log_path),
            position=found,
            expected=f"at least the {state.active_size_bytes} bytes that have been committed",
            found=f"{found} bytes",
            advice="restore the file from a backup: committed records are missing",
        )
    if found > state.active_size_bytes == 0:
        active.begin_log_anew()
    elif found > state.active_size_bytes:
        active.cut(state.active_size_bytes)


def _check_indexes(active: LogSegment, state: LogState) -> None:
    """Drop index entries past the log end, and rebuild the indexes if one does not end where it should."""
    offset_index, time_index = active.offset_index, active.time_index
    if offset_index.entries and offset_index.last_offset >= state.log_end_offset:
        offset_index.truncate_to(state.log_end_offset)
    # Time index entries come with offset index entries; one after the last of those closed a segment in a roll that was
    # not committed.
    last_indexed_offset = offset_index.last_offset if offset_index.entries else active.base_offset - 1
    time_index.truncate_to(last_indexed_offset + 1)
    active.txn_index.truncate_to(state.log_end_offset)
    position = offset_index.entry(offset_index.entries - 1).position if offset_index.entries else 0
    is_whole = position + state.bytes_since_last_index_entry == state.active_size_bytes
    if not is_whole or time_index.last_entry.timestamp_ms > state.active_max_timestamp_ms:
        active.rebuild_indexes()
    active.make_room()
