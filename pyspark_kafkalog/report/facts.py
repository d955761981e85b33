"""The contents of a report on a log directory, as plain values. Times in ms (-1: none), sizes in bytes, offsets
absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_kafkalog.maintenance.jobs.last_run import CleanerRun
from pyspark_kafkalog.storage.names import TopicPartition

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

    @property
    def dirty_percent(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return 100 * self.cleanable_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition. The last of `runs` is the active segment alone. `error` says why the other facts are unknown.

    `due_bytes` in `due_segments` segments are what retention would delete now. `staged_bytes` belong to writes that are
    not committed. `remote_offsets` are below `log_start_offset`, in the remote storage of a broker with tiered storage;
    `offsets_above_high_watermark` are those that a broker's checkpoint does not cover. `size_bins` counts segments and
    bytes by the power of two that a segment's size is below.
    """

    where: TopicPartition
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
    remote_offsets: int = 0
    offsets_above_high_watermark: int = 0
    error: str | None = None

    @property
    def offsets_count(self) -> int:
        """The number of readable offsets; in a compacted or transactional log some of them have no record."""
        return self.high_watermark - self.log_start_offset

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


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group's committed offset in a partition, and its lag; None where unknown."""

    group: str
    where: TopicPartition
    committed_offset: int
    log_start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    commit_ms: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a report. `severity` is one of FINDING_SEVERITIES; `topic` is the topic concerned, if any."""

    severity: str
    title: str
    text: str
    topic: str | None = None


FINDING_SEVERITIES = ("problem", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFacts:
    """All contents of a report.

    `uncleanable` says why the last cleaning of a partition failed; `runs` are rows of the table of maintenance runs.
    `notes` state in sentences what was omitted or sampled.
    """

    path: Path
    is_foreign: bool
    cluster_id: str | None
    node_id: int | None
    now_ms: int
    topics: tuple[TopicFacts, ...]
    deleted_directories: int = 0
    stray_directories: int = 0
    history: WriteHistory | None = None
    groups: tuple[GroupLag, ...] = ()
    last_cleaning: CleanerRun | None = None
    uncleanable: Mapping[TopicPartition, str] = field(default_factory=dict)
    runs: tuple[Mapping[str, object], ...] = ()
    keys: tuple[KeySample, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
