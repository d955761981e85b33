"""Opens a log for writing: resumed from a commit's state, or loaded and recovered as a starting broker does it.

*Resume.* A commit's LogState replaces what a broker keeps in memory; the files are not scanned.

Only committed data is kept. Bytes past the active segment's size, later segments, and snapshots, index entries and
leader epochs past the log end were left by a crashed writer, and are removed. If an index does not end at the last
entry recorded in the state, a power failure has damaged it, and it is rebuilt from the active segment.

A large staged file becomes a segment by a second name (`UnifiedLog.append_staged`). After a crash, a committed file may
still have its first name, which is removed here so that the file is not taken for one that is still to be committed. A
file that was not committed loses its second name, never its bytes: its writer may retry.

*Load.* After an unclean shutdown:

    *.deleted, *.cleaned      unlinked
    *.swap                    renamed into place once the segments they replace are gone; unlinked when a .cleaned
                              with a base at or below theirs shows that a split of a segment was not finished
    index without its .log    unlinked
    .index missing            that segment is re-read, all its indexes rebuilt
    .txnindex torn or wrong   as well, see `has_usable_indexes`
    .timeindex alone missing  started empty
    unclean shutdown          segments from the recovery point on are re-read; at the first bad batch the file is
                              truncated, and later segments are deleted

Existing offset and time indexes are trusted, as by Kafka, though never against the log. Source of the rules:
org.apache.kafka.storage.internals.log.LogLoader.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.index_file import TimeIndex
from pyspark_kafkalog.storage.artefacts.partition_listing import MarkedFile, PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.artefacts.transaction_index import TransactionIndex
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import ResumedProducers, rebuild_producer_state
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_file_name,
    parse_metadata_snapshot,
    segment_file,
)
from pyspark_kafkalog.storage.segment.index_entries import SegmentCounters
from pyspark_kafkalog.storage.segment.recovery import recover_segment
from pyspark_kafkalog.storage.segment.segment import LogSegment

_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class SegmentList:
    """The segments of one log by base offset; each holds the offsets from its base to below the next one's.

    The last one is active: appends go only to it.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._segments: list[LogSegment] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(tuple(self._segments))

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(self._bases)

    @property
    def first(self) -> LogSegment:
        return self._segments[0]

    @property
    def active(self) -> LogSegment:
        return self._segments[-1]

    def add(self, segment: LogSegment) -> None:
        """Insert `segment` in order; replaces one with the same base offset."""
        at = bisect.bisect_left(self._bases, segment.base_offset)
        if at < len(self._bases) and self._bases[at] == segment.base_offset:
            self._segments[at] = segment
        else:
            self._bases.insert(at, segment.base_offset)
            self._segments.insert(at, segment)

    def remove(self, base_offset: int) -> LogSegment:
        """Remove a segment from the list; the caller deletes its files."""
        at = self._bases.index(base_offset)
        del self._bases[at]
        return self._segments.pop(at)

    def from_offset(self, offset: int) -> tuple[LogSegment, ...]:
        """The segment whose range contains `offset`, and all after it; all segments if `offset` is below the first."""
        at = bisect.bisect_right(self._bases, offset)
        return tuple(self._segments[max(at - 1, 0) :])

    def above(self, offset: int) -> tuple[LogSegment, ...]:
        """The segments whose base offset is above `offset`."""
        return tuple(self._segments[bisect.bisect_right(self._bases, offset) :])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A log after it was loaded or resumed.

    Records from offset `recovery_point` on may not be on disk yet; with `names_changed`, neither may file names.
    `local_log_start_offset` is that of the state from which the log was resumed, -1 without one.
    `is_recovered` is true if data of a crashed writer was cut off; `staged` holds the names of the directory's staged
    files.
    """

    segments: SegmentList
    producers: ProducerStateManager | ResumedProducers
    epochs: LeaderEpochCheckpoint
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    names_changed: bool
    local_log_start_offset: int = -1
    is_recovered: bool = False
    staged: tuple[str, ...] = ()


def load(
    directory: Path,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    producer_id_expiration_ms: int,
    now_ms: int,
    fs: FileSystem,
) -> LoadedLog:
    """Load the log in `directory`; `log_start_offset` and `recovery_point` come from the checkpoint files."""
    loader = _Loader(
        directory=directory,
        config=config,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean_shutdown=clean_shutdown,
        expiration_ms=producer_id_expiration_ms,
        now_ms=now_ms,
        fs=fs,
        segments=SegmentList(),
        epochs=LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT, fs=fs),
    )
    try:
        return loader.load()
    except BaseException:
        with contextlib.ExitStack() as closing:
            for segment in loader.segments:
                closing.callback(segment.close_files)
        raise


def kept_bases(directory: Path, recovery_point: int | None) -> tuple[int, ...]:
    """The segments that recovery from `recovery_point` on does not read again; all, without one."""
    bases = list_base_offsets(directory)
    if recovery_point is None:
        return tuple(bases)
    return tuple(bases[: max(bisect.bisect_right(bases, recovery_point) - 1, 0)])


def has_usable_indexes(directory: Path, base_offset: int) -> bool:
    """Whether `load` keeps the segment's indexes instead of reading its `.log` again and truncating it at a bad batch.

    Kafka's check at load: the offset index exists and the transaction index is valid; here it must also be whole.
    """
    if not segment_file(directory, base_offset, INDEX_SUFFIX).exists():
        return False
    path = segment_file(directory, base_offset, TXN_INDEX_SUFFIX)
    try:
        with TransactionIndex.open(path, base_offset) as index:
            index.sanity_check()
            return index.is_whole
    except CorruptIndexError:
        return False


def create_segment(directory: Path, base_offset: int, config: LogConfig, *, now_ms: int, fs: FileSystem) -> LogSegment:
    """A new, empty segment with preallocated indexes; existing files of that name are deleted."""
    segment = LogSegment(
        directory,
        base_offset,
        config,
        fs=fs,
        created_ms=now_ms,
        jitter_ms=roll_jitter_ms(directory, base_offset, config),
    )
    try:
        segment.create()
    except BaseException:
        segment.close_files()
        raise
    return segment


def roll_jitter_ms(directory: Path, base_offset: int, config: LogConfig) -> int:
    """How much earlier than segment.ms the segment rolls, in ms; always the same for a segment."""
    if not config.segment_jitter_ms:
        return 0  # Seeding a generator would take as long as all other computation of a small append.
    return config.random_segment_jitter_ms(random.Random(f"{directory.name}/{base_offset}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loader:
    directory: Path
    config: LogConfig
    recovery_point: int
    log_start_offset: int
    clean_shutdown: bool
    expiration_ms: int
    now_ms: int
    fs: FileSystem
    segments: SegmentList
    epochs: LeaderEpochCheckpoint

    def load(self) -> LoadedLog:
        self._finish_swaps(self._remove_temporary_files())
        self._load_segments()
        if not self.clean_shutdown:
            self._recover_unflushed()
        log_end_offset = self._log_end_or_none()
        if log_end_offset is None:
            self.segments.add(
                create_segment(self.directory, self.log_start_offset, self.config, now_ms=self.now_ms, fs=self.fs)
            )
            log_end_offset = self.log_start_offset
        self.segments.active.make_room()
        # A broker's clean shutdown leaves a closing time index entry; a commit of this package does not.
        self.segments.active.read_max_timestamp()
        self.epochs.truncate_from_end(log_end_offset)
        log_start_offset = max(self.log_start_offset, self.segments.first.base_offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        recovery_point = log_end_offset if self.clean_shutdown else min(self.recovery_point, log_end_offset)
        return LoadedLog(
            segments=self.segments,
            producers=self._load_producers(log_start_offset, log_end_offset),
            epochs=self.epochs,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=recovery_point,
            names_changed=True,
        )

    # Leftovers

    def _remove_temporary_files(self) -> list[MarkedFile]:
        """Remove the files that deletions and cleanings left behind; returns the swap files to finish.

        Renamed snapshots of the KRaft quorum (`<offset>-<epoch>.checkpoint.deleted`) stay: the quorum removes them.
        """
        listing = PartitionListing.read(self.directory)
        names = [each.name for each in (*listing.undecided_swaps, *sorted(listing.deleted))]
        for name in sorted(listing.others):
            if name.endswith(DELETED_SUFFIX) and parse_metadata_snapshot(name.removesuffix(DELETED_SUFFIX)) is None:
                names.append(name)
        # Last: without them, an undecided swap would count as decided.
        names += [each.name for each in sorted(listing.cleaned)]
        for name in names:
            if (self.directory / name).is_file():
                self.fs.unlink_if_there(self.directory / name)
        return listing.decided_swaps

    def _finish_swaps(self, swaps: list[MarkedFile]) -> None:
        """Remove the segments that the swap files replace, then rename the swap files into place."""
        ends = []
        for swap in swaps:
            if swap.suffix == LOG_SUFFIX:
                segment = self._segment(swap.offset, suffix=SWAP_SUFFIX)
                ends.append((segment.base_offset, segment.read_next_offset()))
                segment.close_files()
        if ends:
            first, end = min(base for base, _ in ends), max(end for _, end in ends)
            for suffix, offsets in PartitionListing.read(self.directory).files.items():
                for offset in offsets:
                    if first <= offset < end:
                        self.fs.unlink_if_there(self._path(offset, suffix))
        for swap in swaps:
            path = self.directory / swap.name
            if path.exists():
                self.fs.rename(path, self._path(swap.offset, swap.suffix))

    # Segments

    def _load_segments(self) -> None:
        files = PartitionListing.read(self.directory).files
        for suffix in _INDEX_SUFFIXES:
            for offset in sorted(files[suffix].keys() - files[LOG_SUFFIX].keys()):
                self.fs.unlink_if_there(self._path(offset, suffix))
        kept = kept_bases(self.directory, None if self.clean_shutdown else self.recovery_point)
        for base_offset in list_base_offsets(self.directory):
            segment = self._segment(base_offset)
            if base_offset in kept and not has_usable_indexes(self.directory, base_offset):
                self._recover(segment)
            elif not segment.path(TIME_INDEX_SUFFIX).exists():
                segment.time_index.resize(0)
            self.segments.add(segment)

    def _recover_unflushed(self) -> None:
        for segment in self.segments.from_offset(self.recovery_point):
            if self._recover(segment):
                for later in reversed(self.segments.above(segment.base_offset)):
                    self.segments.remove(later.base_offset)
                    later.delete()
                    self.fs.unlink_if_there(self._path(later.base_offset, PRODUCER_SNAPSHOT_SUFFIX))
                return

    def _recover(self, segment: LogSegment) -> int:
        """Re-read a segment; returns the number of bytes cut off."""
        producers = self._producers()
        rebuild_producer_state(
            producers,
            self.segments,
            log_start_offset=self.log_start_offset,
            end_offset=segment.base_offset,
            now_ms=self.now_ms,
        )
        cut_bytes = recover_segment(segment, producers, self.epochs)
        producers.take_snapshot()
        return cut_bytes

    def _log_end_or_none(self) -> int | None:
        """The offset after the last batch; None if no segment exists, or none reaches the log start offset."""
        if not len(self.segments):
            return None
        log_end_offset = self.segments.active.read_next_offset()
        if log_end_offset >= self.log_start_offset:
            return log_end_offset
        for segment in reversed(tuple(self.segments)):
            self.segments.remove(segment.base_offset)
            segment.delete()
        self.epochs.clear()
        self._producers().truncate_fully_and_start_at(self.log_start_offset)
        return None

    # Producers

    def _load_producers(self, log_start_offset: int, log_end_offset: int) -> ProducerStateManager:
        producers = self._producers()
        producers.snapshots.remove_strays(self.segments.base_offsets)
        rebuild_producer_state(
            producers,
            self.segments,
            log_start_offset=log_start_offset,
            end_offset=log_end_offset,
            now_ms=self.now_ms,
            clean_shutdown=self.clean_shutdown,
        )
        return producers

    def _producers(self) -> ProducerStateManager:
        return ProducerStateManager(self.directory, expiration_ms=self.expiration_ms, fs=self.fs)

    def _segment(self, base_offset: int, *, suffix: str = "") -> LogSegment:
        return LogSegment(
            self.directory,
            base_offset,
            self.config,
            fs=self.fs,
            created_ms=self.now_ms,
            jitter_ms=roll_jitter_ms(self.directory, base_offset, self.config),
            suffix=suffix,
        )

    def _path(self, offset: int, suffix: str) -> Path:
        return segment_file(self.directory, offset, suffix)


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
        local_log_start_offset=state.local_log_start_offset,
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


def _ends_rising(time_index: TimeIndex) -> bool:
    """Whether the last entry follows the one before: half of an entry that a power failure left seldom does."""
    if time_index.entries < 2:
        return True
    before, last = (time_index.entry(time_index.entries - at) for at in (2, 1))
    return before.timestamp_ms < last.timestamp_ms and before.offset <= last.offset


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
    is_late = time_index.last_entry.timestamp_ms > state.active_max_timestamp_ms
    if is_recovered or is_zeroed or not is_whole or is_late or not _ends_rising(time_index):
        active.rebuild_indexes()
    active.reserve_room()
