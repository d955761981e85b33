"""Loads a partition directory for writing, as a starting broker does, and recovers it after an unclean shutdown.

    *.deleted, *.cleaned      unlinked
    *.swap                    renamed into place once the segments they replace are gone; unlinked when a .cleaned
                              with a base at or below theirs shows that a split of a segment was not finished
    index without its .log    unlinked
    .index missing            that segment is re-read, all its indexes rebuilt
    .timeindex alone missing  started empty
    unclean shutdown          segments from the recovery point on are re-read; at the first bad batch the file is
                              truncated, and later segments are deleted

Existing offset and time indexes are trusted, as by Kafka, though never against the log. Source of the rules:
org.apache.kafka.storage.internals.log.LogLoader.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.partition_listing import MarkedFile, PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.filesystem import FileSystem
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
    parse_metadata_snapshot,
    segment_file,
)
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
    return loader.load()


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
        for base_offset in list_base_offsets(self.directory):
            segment = self._segment(base_offset)
            if not self._has_usable_indexes(segment):
                self._recover(segment)
            self.segments.add(segment)

    def _has_usable_indexes(self, segment: LogSegment) -> bool:
        """Kafka's check at load: the offset index exists and the transaction index is valid."""
        if not segment.path(INDEX_SUFFIX).exists():
            return False
        if not segment.path(TIME_INDEX_SUFFIX).exists():
            segment.time_index.resize(0)
        try:
            segment.txn_index.sanity_check()
        except CorruptIndexError:
            return False
        return True

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
        producers.remove_stray_snapshots(self.segments.base_offsets)
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
