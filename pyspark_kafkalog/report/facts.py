"""The contents of a report on a log directory, as plain values. Times in ms (-1: none), sizes in bytes.

The facts of a partition come from its files: segments with sizes and times, bytes due for cleaner and retention, and
staged files. They cost one listing of the directory, and two small reads (first batch header, last time index entry)
for each segment that is shown by itself. In a long log neighbouring segments are shown together, which bounds time and
memory.

The facts of a partition in an object store come from the image: segments, then the runs that are not merged yet. They
cost no request, unless a topic has a compaction lag. When a segment or run begins is not known without reading it, so
the largest timestamp of the one before counts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.maintenance.cleaner.objects import CleanedObjects
from pyspark_kafkalog.maintenance.cleaner.plan import CleanPlan, plan_cleaning
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRun
from pyspark_kafkalog.maintenance.retention.plan import StoredPart, plan_retention, segment_parts, stored_extents
from pyspark_kafkalog.maintenance.tier import only_local, why_not
from pyspark_kafkalog.maintenance.verify.findings import Finding
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.notebook.tables import SegmentInfo, max_timestamp_ms
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, parse_header
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import pread
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment.stored import StoredSegment, stored_segments
from pyspark_kafkalog.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The inputs for one partition: `state` is that of the root's newest commit, or derived from a broker's files.

    `image` is that commit's state of a partition of a native root.
    """

    topic_partition: TopicPartition
    directory: Path
    state: LogState
    config: LogConfig
    cleaner_offset: int | None
    remote_offsets: int = 0
    offsets_above_high_watermark: int = 0
    image: PartitionImage | None = None


def file_facts(files: PartitionFiles, *, now_ms: int, runs_max: int) -> PartitionFacts:
    """The facts of one partition, with at most `runs_max` segment runs.

    Raises DiskFormatError or OSError when its files cannot be read.
    """
    state = files.state
    # A broker's partition may have no segment yet: the base offset of the active one is then -1.
    listing: PartitionListing | None = None
    with contextlib.suppress(FileNotFoundError):
        listing = PartitionListing.read(files.directory)
    stored = stored_segments(files.directory, state, listing=listing)
    segments = [each for each in stored if each.base_offset >= 0]
    times = _Times(files)
    # How old a remote segment without timestamps is, only its store could tell: it counts as young.
    remote = [] if files.image is None else segment_parts(files.image, lambda _: now_ms)
    retention = plan_retention(segments, remote, times.largest_part_ms, files.config, state, now_ms=now_ms)
    staged = [] if listing is None else _staged_files(files.directory, listing)
    is_tiered = files.image is not None and why_not(files.topic_partition.topic, files.config) is None
    waiting = only_local(files.image, segments[:-1]) if files.image is not None and is_tiered else []
    return PartitionFacts(
        topic_partition=files.topic_partition,
        leader_epoch=state.leader_epoch,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        last_stable_offset=state.last_stable_offset,
        runs=tuple(_run(group, times) for group in together(segments, runs_max)),
        size_bins=size_bins(segments),
        cleaner=_cleaner_facts(files, segments, now_ms) if files.config.compact else None,
        due_segments=retention.local_deleted_count,
        due_bytes=retention.local_deleted_bytes,
        future_segment=retention.future_base_offset,
        staged_files=len(staged),
        staged_bytes=sum(size_bytes for size_bytes, _ in staged),
        oldest_staged_ms=min((modified_ms for _, modified_ms in staged), default=NO_TIME_MS),
        remote_offsets=files.remote_offsets,
        remote_segments=len(remote),
        remote_bytes=sum(each.size_bytes for each in remote),
        copy_lag_segments=len(waiting),
        copy_lag_bytes=sum(each.size_bytes for each in waiting),
        offsets_above_high_watermark=files.offsets_above_high_watermark,
    )


class _Times:
    """Times of a partition's segments, each looked up once."""

    def __init__(self, files: PartitionFiles) -> None:
        self._files = files
        self._largest_ms: dict[int, int] = {}

    def largest_part_ms(self, part: StoredSegment | StoredPart) -> int:
        """The largest timestamp of a local or remote segment, -1 if there is none."""
        return part.max_timestamp_ms if isinstance(part, StoredPart) else self.largest_ms(part)

    def largest_ms(self, segment: StoredSegment) -> int:
        """The largest timestamp, -1 if there is none."""
        found = self._largest_ms.get(segment.base_offset)
        if found is None:
            found = self._largest_ms[segment.base_offset] = self._look_up(segment)
        return found

    def _look_up(self, segment: StoredSegment) -> int:
        state, directory = self._files.state, self._files.directory
        is_active = segment.base_offset == state.active_base_offset
        if is_active and self._files.image is not None:
            return state.active_max_timestamp_ms
        if segment.size_bytes <= 0:
            return NO_TIME_MS
        info = SegmentInfo(
            base_offset=segment.base_offset,
            end_offset=state.log_end_offset,
            size_bytes=segment.size_bytes,
            state="active" if is_active else "closed",
        )
        return max_timestamp_ms(directory, info)

    def first_ms(self, segment: StoredSegment) -> int:
        """The first record's timestamp, -1 without one. For a cleaned batch the largest: its header has no other."""
        if segment.size_bytes < RECORD_BATCH_OVERHEAD_BYTES:
            return NO_TIME_MS
        path = segment_file(self._files.directory, segment.base_offset, LOG_SUFFIX)
        fd = open_file(path)
        try:
            head = pread(fd, RECORD_BATCH_OVERHEAD_BYTES, 0)
        finally:
            os.close(fd)
        header = parse_header(head, 0, file=str(path), file_position=0)
        return header.base_timestamp_ms if header.delete_horizon_ms is None else header.max_timestamp_ms


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


_Segment = TypeVar("_Segment", bound=_Sized)


def together(segments: Sequence[_Segment], runs_max: int) -> list[Sequence[_Segment]]:
    """The segments in at most `runs_max` groups of neighbours; the last group is the active segment alone."""
    if not segments:
        return []
    closed = segments[:-1]
    step = -(-len(closed) // max(runs_max - 1, 1)) or 1
    return [*(closed[at : at + step] for at in range(0, len(closed), step)), segments[-1:]]


def _run(group: Sequence[StoredSegment], times: _Times) -> SegmentRun:
    first_ms = last_ms = NO_TIME_MS
    # Deleted since it was listed, or damaged: its size still counts. `kafkalog verify` reports damage.
    with contextlib.suppress(FileNotFoundError, DiskFormatError):
        first_ms = times.first_ms(group[0])
        last_ms = times.largest_ms(group[-1])
    return SegmentRun(
        base_offset=group[0].base_offset,
        segments=len(group),
        size_bytes=sum(max(each.size_bytes, 0) for each in group),
        first_ms=first_ms,
        last_ms=last_ms,
    )


def size_bins(segments: Sequence[_Sized]) -> Mapping[int, tuple[int, int]]:
    """The numbers and bytes of the segments by the power of two that their sizes are below."""
    bins: dict[int, tuple[int, int]] = {}
    for each in segments:
        size_bytes = max(each.size_bytes, 0)
        count, total = bins.get(size_bytes.bit_length(), (0, 0))
        bins[size_bytes.bit_length()] = (count + 1, total + size_bytes)
    return bins


def _cleaner_facts(files: PartitionFiles, segments: Sequence[StoredSegment], now_ms: int) -> CleanerFacts:
    plan = plan_cleaning(
        segments[:-1],
        files.state,
        files.config,
        checkpoint_offset=files.cleaner_offset,
        now_ms=now_ms,
        largest_timestamp_ms=lambda segment: segment.largest_timestamp_ms(files.directory),
        first_timestamp_ms=lambda segment: segment.first_timestamp_ms(files.directory),
    )
    return CleanerFacts.of(plan, files.config)


def _staged_files(directory: Path, listing: PartitionListing) -> list[tuple[int, int]]:
    """The size in bytes and the modification time in ms of each staged file."""
    found = []
    for name in listing.staged:
        with contextlib.suppress(FileNotFoundError):
            status = (directory / name).stat()
            found.append((status.st_size, status.st_mtime_ns // NS_PER_MS))
    return found


NO_TIME_MS = -1


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """One segment, or `segments` neighbouring ones of a partition shown together; `base_offset` is that of the first.

    `first_ms` is the time of the first record, `last_ms` the largest timestamp.
    """

    base_offset: int
    segments: int
    size_bytes: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerFacts:
    """What the cleaner would find in a partition of a compacted topic: clean bytes, and dirty bytes to clean.

    `is_due`: the topic's configuration calls for a cleaning.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_due: bool

    @classmethod
    def of(cls, plan: CleanPlan, config: LogConfig) -> CleanerFacts:
        """What the plan of a cleaning says."""
        return cls(
            first_dirty_offset=plan.first_dirty_offset,
            first_uncleanable_offset=plan.first_uncleanable_offset,
            clean_bytes=plan.clean_bytes,
            cleanable_bytes=plan.cleanable_bytes,
            is_due=plan.needs_cleaning(config.min_cleanable_dirty_ratio),
        )

    @property
    def dirty_percent(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return 100 * self.cleanable_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition. The last of `runs` is the active segment alone. `error` says why the other facts are unknown.

    `due_bytes` in `due_segments` segments are what retention would delete now. `staged_bytes` belong to writes that are
    not committed; the oldest of them is of `oldest_staged_ms`. `unstable_since_ms` is when the oldest open transaction
    began. `remote_offsets` are below `log_start_offset`, in the remote storage of a broker with tiered storage.
    `remote_bytes` in `remote_segments` are what the root itself has copied there, and `copy_lag_bytes` in
    `copy_lag_segments` closed segments what it has not copied yet. In an object store `unmerged_bytes` in
    `unmerged_runs` are not merged into segments yet. `offsets_above_high_watermark` are those that a broker's
    checkpoint does not cover. `size_bins` counts segments and bytes by the power of two that a segment's size is below.
    """

    topic_partition: TopicPartition
    leader_epoch: int = -1
    log_start_offset: int = 0
    high_watermark: int = 0
    last_stable_offset: int = 0
    runs: tuple[SegmentRun, ...] = ()
    size_bins: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    cleaner: CleanerFacts | None = None
    due_segments: int = 0
    due_bytes: int = 0
    future_segment: int | None = None
    staged_files: int = 0
    staged_bytes: int = 0
    oldest_staged_ms: int = NO_TIME_MS
    unstable_since_ms: int = NO_TIME_MS
    remote_offsets: int = 0
    remote_segments: int = 0
    remote_bytes: int = 0
    copy_lag_segments: int = 0
    copy_lag_bytes: int = 0
    unmerged_runs: int = 0
    unmerged_bytes: int = 0
    offsets_above_high_watermark: int = 0
    error: str | None = None

    @property
    def offsets_count(self) -> int:
        """The number of readable offsets; in a compacted or transactional log some of them have no record."""
        return self.high_watermark - self.log_start_offset

    @property
    def is_empty(self) -> bool:
        """Whether it has neither bytes nor readable offsets, and no error."""
        return self.error is None and not self.size_bytes and not self.offsets_count

    @property
    def segments(self) -> int:
        return sum(each.segments for each in self.runs)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.runs)

    @property
    def first_ms(self) -> int:
        return min((each.first_ms for each in self.runs if each.first_ms >= 0), default=NO_TIME_MS)

    @property
    def last_ms(self) -> int:
        return max((each.last_ms for each in self.runs), default=NO_TIME_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic: configuration overrides, cleanup.policy in force, partitions in order."""

    name: str
    topic_id: str | None
    configs: Mapping[str, str]
    cleanup_policy: tuple[str, ...]
    segment_bytes: int
    partitions: tuple[PartitionFacts, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)


#: What makes a key stand out in a sample: its share, and how many times as much it has as the others on average.
KEY_SHARE_MIN = 0.1
KEY_TIMES_OTHERS = 5
KEY_RECORDS_MIN = 100


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A key's records in a sample, and the bytes of their keys and values. None: records without a key."""

    key: bytes | None
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySample:
    """A sample of the newest records of a topic: how many, how large, and the heaviest keys among them.

    `partitions` is the number of partitions sampled. `error_records` is the most by which a key's records can be
    undercounted.
    """

    topic: str
    partitions: int
    records: int
    bytes: int
    distinct_keys: int
    error_records: int
    by_records: tuple[HeavyKey, ...]
    by_bytes: tuple[HeavyKey, ...]

    def outstanding(self) -> tuple[HeavyKey, ...]:
        """The keys that stand out by their records or bytes, the one with the largest share first.

        Such a key has KEY_SHARE_MIN of the sample, and KEY_TIMES_OTHERS as much as the other keys on average. A sample
        of fewer than KEY_RECORDS_MIN records has none. Records without a key spread over partitions: they do not count.
        """
        if self.records < KEY_RECORDS_MIN:
            return ()
        keys = {each.key: each for each in (*self.by_records, *self.by_bytes) if each.key is not None}
        return tuple(sorted(filter(self._stands_out, keys.values()), key=self._share, reverse=True))

    def _share(self, key: HeavyKey) -> float:
        return max(key.records / self.records, key.bytes / max(self.bytes, 1))

    def _stands_out(self, key: HeavyKey) -> bool:
        others = self.distinct_keys - 1
        return any(
            weight * others > 0
            and weight >= KEY_SHARE_MIN * total
            and weight * others >= KEY_TIMES_OTHERS * (total - weight)
            for weight, total in ((key.records, self.records), (key.bytes, self.bytes))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """A commit: its offset in the commit log, time, operation, the topics it changed and the amount written."""

    offset: int
    timestamp_ms: int
    operation: str
    topics: tuple[str, ...]
    records: int
    bytes: int
    transactional_id: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Numbers over time in `buckets` of `bucket_ms` each from `start_ms` on, by topic: the largest and all others."""

    start_ms: int
    bucket_ms: int
    buckets: int
    commits: tuple[int, ...]
    topics: tuple[str, ...]
    records: tuple[tuple[int, ...], ...]
    bytes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteHistory:
    """The newest `commits_read` commits; `is_whole` when the commit log keeps no others.

    `newest` are some of them, newest first; `maintenance` those made by retention or delete-records.
    """

    commits_read: int
    is_whole: bool
    series: Series | None
    newest: tuple[CommitFacts, ...]
    maintenance: tuple[CommitFacts, ...]

    def never_saw(self, operation: str) -> bool:
        """Whether there was never a commit of this operation of maintenance, as far as the commit log tells."""
        return self.is_whole and all(each.operation != operation for each in self.maintenance)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group's committed offset in a partition, and its lag; None where unknown."""

    group: str
    topic_partition: TopicPartition
    committed_offset: int
    log_start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    commit_ms: int


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice of a report to an operator. `severity` is one of FINDING_SEVERITIES; `topic` the one concerned, if any."""

    severity: str
    title: str
    text: str
    topic: str | None = None


#: The operation of commits of the retention job.
RETENTION = "retention"

FINDING_SEVERITIES = ("problem", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the report has read and what not, in words. `are_batches_checked`: it includes a verification."""

    read: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    are_batches_checked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFacts:
    """All contents of a report. `path` is a URL for a root in an object store.

    `is_foreign`: the root is a broker's directory, which this package does not maintain.

    `damage` are the findings of `kafkalog verify`, or those of them that need no batch: `coverage` says which. Without
    `is_opened` there is nothing but those of the metadata log. `failures` say which parts of the report could not be
    made. `staging_retention_ms` and `transaction_max_ms` bound the age of staged files and of open transactions; they
    are None for a broker's directory.

    `following`: which leader the root follows, since when; None for one that takes writes. `uncleanable` says why the
    last cleaning of a partition failed; `runs` are rows of the table of maintenance runs.
    `notes` state in sentences what was omitted or sampled.
    """

    path: Path | str
    is_foreign: bool
    cluster_id: str | None
    node_id: int | None
    now_ms: int
    topics: tuple[TopicFacts, ...]
    is_opened: bool = True
    coverage: Coverage = Coverage()
    damage: tuple[Finding, ...] = ()
    failures: tuple[Advice, ...] = ()
    staging_retention_ms: int | None = None
    transaction_max_ms: int | None = None
    following: str | None = None
    deleted_directories: int = 0
    stray_directories: int = 0
    history: WriteHistory | None = None
    groups: tuple[GroupLag, ...] = ()
    last_cleaning: CleanerRun | None = None
    uncleanable: Mapping[TopicPartition, str] = field(default_factory=dict)
    runs: tuple[Mapping[str, object], ...] = ()
    keys: tuple[KeySample, ...] = ()
    findings: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()


# Partitions in an object store


def object_facts(root: ObjectRoot, topic_partition: TopicPartition, *, now_ms: int, parts_max: int) -> PartitionFacts:
    """The facts of one partition as of the root's last refresh, with at most `parts_max` segments or runs.

    Raises UnknownTopicError, and the errors of inspecting a partition for the cleaner.
    """
    partition = root.store.image.partition(topic_partition.topic, topic_partition.partition)
    state, config = partition.state, root.log_config(topic_partition.topic)
    parts = stored_extents(root, topic_partition, now_ms)
    retention = plan_retention((), parts, lambda each: each.max_timestamp_ms, config, state, now_ms=now_ms)
    return PartitionFacts(
        topic_partition=topic_partition,
        leader_epoch=state.leader_epoch,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        last_stable_offset=state.last_stable_offset,
        runs=tuple(_shown(parts, parts_max)),
        size_bins=size_bins(parts),
        cleaner=_object_cleaner_facts(root, topic_partition, now_ms) if config.compact else None,
        due_segments=retention.deleted_count,
        due_bytes=retention.deleted_bytes,
        future_segment=retention.future_base_offset,
        unmerged_runs=len(partition.runs),
        unmerged_bytes=partition.runs.size_bytes,
    )


def _shown(parts: Sequence[StoredPart], parts_max: int) -> list[SegmentRun]:
    shown: list[SegmentRun] = []
    before_ms = NO_TIME_MS
    for group in together(parts, parts_max):
        last_ms = max(each.max_timestamp_ms for each in group)
        first_ms = before_ms if 0 <= before_ms <= last_ms else last_ms
        size_bytes = sum(each.size_bytes for each in group)
        shown.append(SegmentRun(group[0].base_offset, len(group), size_bytes, first_ms, last_ms))
        before_ms = last_ms
    return shown


def _object_cleaner_facts(root: ObjectRoot, topic_partition: TopicPartition, now_ms: int) -> CleanerFacts:
    log = CleanedObjects(root, now_ms).inspect(topic_partition)
    return CleanerFacts.of(log.plan, log.config)
