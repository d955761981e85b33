"""Opens a log for writing: resumed from a commit's state, or loaded and recovered as a starting broker does it.

*Resume.* A commit's LogState replaces what a broker keeps in memory; the files are not scanned.

Only committed data is kept. Bytes past the active segment's size, later segments, and snapshots, index entries and
leader epochs past the log end were left by a crashed writer, and are removed. If an index does not end at the last
entry recorded in the state, a power failure has damaged it, and it is rebuilt from the active segment.

*Long logs.* The directory of a long log has tens of thousands of names, and an append uses few of them. A process that
has committed to a log (`leave`) knows that no file was left above the log end. Its next commit of staged files does not
list the directory if nothing has changed: the image has the same state, the active `.log` is the same file with the
committed size, and no segment begins at the log end. A writer that was killed since has left bytes in the active
segment or a segment at the log end. A resume that removes these keeps such a sign until the last of them is removed.
A directory with few names is listed at each commit, a longer one once in so many commits that each pays for few names.
Only then does a commit find the staged files of other writes.

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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.index_file import TimeIndex
from pyspark_kafkalog.storage.artefacts.partition_listing import MarkedFile, PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.artefacts.transaction_index import TransactionIndex
from pyspark_kafkalog.storage.below_root import status_of
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
    child_path,
    offset_file_name,
    parse_metadata_snapshot,
    segment_file,
)
from pyspark_kafkalog.storage.segment.index_entries import SegmentCounters
from pyspark_kafkalog.storage.segment.recovery import recover_segment
from pyspark_kafkalog.storage.segment.segment import LogSegment, SegmentList

_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
#: The names for which a commit pays: it lists a directory with more of them only after as many times more commits.
_NAMES_A_COMMIT: Final = 256
_LEFT_LOGS_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A log after it was loaded or resumed.

    Records from offset `recovery_point` on may not be on disk yet; with `names_changed`, neither may file names.
    `local_log_start_offset` is that of the state from which the log was resumed, -1 without one.
    `is_recovered` is true if data of a crashed writer was cut off; `staged` holds the names of the directory's staged
    files. If the directory was not listed, `staged` holds those that the caller appends. `names`: see `ListedNames`.
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
    names: ListedNames | None = None


@dataclass(frozen=True, slots=True)
class ListedNames:
    """The number of names in a log's directory at its last listing, and of the resumes without a listing since."""

    count: int
    commits: int = 0

    @property
    def is_due(self) -> bool:
        """Whether the next commit lists the directory."""
        return self.count <= _NAMES_A_COMMIT * (self.commits + 1)


@dataclass(frozen=True, slots=True)
class LeftLog:
    """A log that this process has left without a file above its end. `log`: device and inode of the active `.log`."""

    directory: Path
    log: tuple[int, int]
    names: ListedNames


#: The logs that this process has left, with the committed states, by directory.
_left: dict[str, tuple[LogState, LeftLog]] = {}


def leave(left: LeftLog, state: LogState) -> None:
    """Remember a log whose `state` this process has committed. The caller holds the root's lock."""
    while len(_left) >= _LEFT_LOGS_MAX:
        _left.pop(next(iter(_left)), None)
    _left[str(left.directory)] = state, left


def _as_left(directory: Path, state: LogState, staged: Collection[str] | None) -> ListedNames | None:
    """The names of a log that is as this process has left it and has the `staged` files; None if it must be listed.

    A staged file with a second name may have become a segment.
    """
    known = _left.pop(str(directory), None)  # the commit puts it back
    if staged is None or known is None or known[0] != state or known[1].names.is_due:
        return None
    found = _status(segment_file(directory, state.active_base_offset, LOG_SUFFIX))
    if found is None or (found.st_dev, found.st_ino, found.st_size) != (*known[1].log, state.active_size_bytes):
        return None
    # A killed splice leaves indexes without a .log.
    following = [segment_file(directory, state.log_end_offset, each) for each in (LOG_SUFFIX, INDEX_SUFFIX)]
    if state.log_end_offset > state.active_base_offset and any(_status(each) is not None for each in following):
        return None
    with contextlib.suppress(FileNotFoundError):
        if all(child_path(directory, name).lstat().st_nlink == 1 for name in staged):
            return replace(known[1].names, commits=known[1].names.commits + 1)
    return None


def _status(path: Path) -> os.stat_result | None:
    """As `status_of`; None without a file."""
    try:
        return status_of(path)
    except FileNotFoundError:
        return None


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
    staged: Collection[str] | None = None,
) -> LoadedLog:
    """The log as described by `state`, ready for appends. `staged`: see `UnifiedLog.resume`.

    Raises CorruptRecordError if the active segment is shorter than in `state`.
    """
    names = _as_left(directory, state, staged)
    contents = _Contents.read(directory, state) if names is None else _Contents(names=names, staged=[*(staged or ())])
    contents.remove_names(directory, fs)
    active = LogSegment(
        directory,
        state.active_base_offset,
        config,
        fs=fs,
        created_ms=now_ms,
        jitter_ms=roll_jitter_ms(directory, state.active_base_offset, config),
        counters=_counters(state),
    )

    def closed_bases() -> list[int]:
        bases = contents.closed_bases
        if bases is None:
            bases = PartitionListing.read(directory).files[LOG_SUFFIX].keys()
        return sorted(base for base in bases if base < state.active_base_offset)

    def closed_segment(base_offset: int) -> LogSegment:
        return LogSegment(directory, base_offset, config, fs=fs, created_ms=now_ms)

    with contextlib.ExitStack() as undo:
        undo.callback(active.close_files)
        has_tail = _has_tail(active, state)
        _check_indexes(active, state, is_recovered=has_tail or bool(contents.uncommitted))
        # Last, so that a process killed before this leaves a sign that recovery is necessary: the tail, which is cut at
        # the very end, or the file at the log end, which is removed after those above it (`_as_left`).
        contents.remove_uncommitted(directory, fs)
        if has_tail:
            _cut_tail(active, state)
        epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT, fs=fs)
        epochs.truncate_above(state.leader_epoch)
        undo.pop_all()
    return LoadedLog(
        segments=SegmentList(active, closed=closed_bases, make=closed_segment),
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
        names=contents.names,
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
    killed writes of small files, `committed` are staged files that have become segments below the log end. Without a
    listing, `closed_bases` is None.
    """

    names: ListedNames
    staged: list[str]
    closed_bases: Collection[int] | None = None
    has_active: bool = True
    uncommitted: Sequence[str] = ()
    temporary: tuple[str, ...] = ()
    committed: Collection[str] = ()

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
            names=ListedNames(listing.count),
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
        # From the highest down and each .log last, so that after a crash in between the next resume finds the others.
        for name in sorted(self.uncommitted, key=lambda each: (each[:20], not each.endswith(LOG_SUFFIX)), reverse=True):
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
