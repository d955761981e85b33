"""Resumes a log from a commit's LogState: the state replaces what a broker keeps in memory; the files are not scanned.

Only committed data is kept. Bytes past the active segment's size, later segments, and snapshots, index entries and
leader epochs past the log end were left by a crashed writer, and are removed. If an index does not end at the last
entry recorded in the state, a power failure has damaged it, and it is rebuilt from the active segment.

A large staged file becomes a segment by a second name (`UnifiedLog.append_staged`). After a crash, a committed file may
still have its first name, which is removed here so that the file is not taken for one that is still to be committed. A
file that was not committed loses its second name, never its bytes: its writer may retry.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.loader import LoadedLog, SegmentList, roll_jitter_ms
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import ResumedProducers
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    offset_file_name,
)
from pyspark_kafkalog.storage.segment.index_entries import SegmentCounters
from pyspark_kafkalog.storage.segment.segment import LogSegment


def resume(
    directory: Path,
    config: LogConfig,
    state: LogState,
    *,
    now_ms: int,
    fs: FileSystem,
    producer_id_expiration_ms: int,
) -> LoadedLog:
    """The log as described by `state`, ready for appends.

    Raises CorruptRecordError if the active segment is shorter than in `state`.
    """
    contents = _Contents.read(directory, state)
    contents.remove_names(directory, fs)
    segments = SegmentList()
    for base_offset in contents.closed_bases:
        segments.add(LogSegment(directory, base_offset, config, fs=fs, created_ms=now_ms))
    active = LogSegment(
        directory,
        state.active_base_offset,
        config,
        fs=fs,
        created_ms=now_ms,
        jitter_ms=roll_jitter_ms(directory, state.active_base_offset, config),
        counters=_counters(state),
    )
    segments.add(active)
    with contextlib.ExitStack() as undo:
        undo.callback(active.close_files)
        has_tail = _has_tail(active, state)
        _check_indexes(active, state, is_recovered=has_tail or bool(contents.uncommitted))
        # Last, so that a process killed before this leaves a sign that recovery is necessary.
        if has_tail:
            _cut_tail(active, state)
        contents.remove_uncommitted(directory, fs)
        epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT, fs=fs)
        epochs.truncate_above(state.leader_epoch)
        undo.pop_all()
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
        # Indexes are shortened by replacing the file, which changes names, too.
        names_changed=(
            not contents.has_active
            or state.active_size_bytes == 0
            or active.offset_index.is_changed
            or active.time_index.is_changed
            or bool(contents.uncommitted)
        ),
        is_recovered=has_tail or bool(contents.uncommitted),
        staged=tuple(name for name in contents.staged if name not in contents.committed),
    )


def _counters(state: LogState) -> SegmentCounters:
    return SegmentCounters(
        size_bytes=state.active_size_bytes,
        first_timestamp_ms=state.active_first_timestamp_ms,
        max_timestamp_ms=state.active_max_timestamp_ms,
        max_timestamp_offset=state.active_max_timestamp_offset,
        bytes_since_last_index_entry=state.bytes_since_last_index_entry,
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """The files of the directory, as far as they matter for resuming.

    `uncommitted` are files above the active segment and snapshots above the log end, `temporary` are temporary files of
    killed writes of small files, `committed` are staged files that have become segments below the log end.
    """

    closed_bases: list[int]
    has_active: bool
    uncommitted: list[str]
    temporary: tuple[str, ...]
    staged: list[str]
    committed: set[str]

    @classmethod
    def read(cls, directory: Path, state: LogState) -> _Contents:
        listing = PartitionListing.read(directory, only_logs_below=state.active_base_offset)
        uncommitted = []
        for suffix, offsets in listing.files.items():
            last = state.log_end_offset if suffix == PRODUCER_SNAPSHOT_SUFFIX else state.active_base_offset
            uncommitted += [offset_file_name(offset, suffix) for offset in offsets if offset > last]
        logs = listing.files[LOG_SUFFIX]
        closed_bases = [base for base in logs if base < state.active_base_offset]
        log_inodes = {logs[base] for base in closed_bases}
        if state.active_base_offset in logs and state.active_size_bytes:
            log_inodes.add(logs[state.active_base_offset])
        return cls(
            closed_bases=closed_bases,
            has_active=state.active_base_offset in logs,
            uncommitted=uncommitted,
            temporary=listing.temporary,
            staged=[*listing.staged],
            committed={name for name, inode in listing.staged.items() if inode in log_inodes},
        )

    def remove_names(self, directory: Path, fs: FileSystem) -> None:
        """Remove the second names of committed files, and temporary files."""
        for name in (*self.committed, *self.temporary):
            fs.unlink_if_there(directory / name)

    def remove_uncommitted(self, directory: Path, fs: FileSystem) -> None:
        """Remove the files above the committed end."""
        # From the highest down and each .log before its indexes, so that a crash in between leaves nothing ambiguous.
        for name in sorted(self.uncommitted, key=lambda each: (each[:20], each.endswith(LOG_SUFFIX)), reverse=True):
            fs.unlink_if_there(directory / name)


def _has_tail(active: LogSegment, state: LogState) -> bool:
    """Whether the active segment has data past its committed end. Raises CorruptRecordError if it is shorter."""
    found = os.fstat(active.fd).st_size
    if found < state.active_size_bytes:
        raise CorruptRecordError(
            file=str(active.log_path),
            position=found,
            expected=f"at least the {state.active_size_bytes} bytes that have been committed",
            found=f"{found} bytes",
            advice="restore the file from a backup: committed records are missing",
        )
    return found > state.active_size_bytes


def _cut_tail(active: LogSegment, state: LogState) -> None:
    if state.active_size_bytes == 0:
        active.replace_log_by_empty()
    else:
        active.cut(state.active_size_bytes)


def _check_indexes(active: LogSegment, state: LogState, *, is_recovered: bool) -> None:
    """Drop index entries past the log end, and rebuild the indexes if one does not begin or end where it should.

    If data of a crashed writer was cut off, they are always rebuilt, as in Kafka's recovery: the last entry may be half
    written, and then resemble that of an earlier batch.
    """
    offset_index, time_index = active.offset_index, active.time_index
    if offset_index.entries and offset_index.last_offset >= state.log_end_offset:
        offset_index.truncate_to(state.log_end_offset)
    # Time index entries are added with offset index entries; one after the last of those closed a segment in a roll
    # that was not committed.
    last_indexed_offset = offset_index.last_offset if offset_index.entries else active.base_offset - 1
    time_index.truncate_to(last_indexed_offset + 1)
    active.txn_index.truncate_to(state.log_end_offset)
    position = offset_index.entry(offset_index.entries - 1).position if offset_index.entries else 0
    is_whole = position + state.bytes_since_last_index_entry == state.active_size_bytes
    # A segment's first batch has no entry: one at position 0 is a page of zeros that a power failure left.
    is_zeroed = offset_index.entries > 0 and offset_index.entry(0).position == 0
    if is_recovered or is_zeroed or not is_whole or time_index.last_entry.timestamp_ms > state.active_max_timestamp_ms:
        active.rebuild_indexes()
    active.reserve_room()
