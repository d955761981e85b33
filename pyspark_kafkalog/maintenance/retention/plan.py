"""Which parts of a log retention deletes: segments of a log on a file system, segment objects and runs in a store.

Segments are chosen by Kafka's rules, in three passes, each from the oldest segment on, each ending at the first segment
that stays:

    log start   the next segment begins at or below the log start offset: also if cleanup.policy is only compact
    size        without it the log still has retention.bytes
    time        its largest timestamp is more than retention.ms ago; without timestamps, its last modification

The active segment is included if it qualifies and is not empty; a new one is rolled first. Timestamps in the future
keep a segment, and all after it, until their time has come. Source of the rules: deleteOldSegments, deletableSegments
and deleteSegments of org.apache.kafka.storage.internals.log.UnifiedLog.

The parts of a log in an object store are all closed, so none of them is active, and nothing has to be rolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.root.log_starts import LogStartMove
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition


class LogPart(Protocol):
    """What is deleted as a whole: a segment, or a run in an object store."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def modified_ms(self) -> int:
        """When it was written; stands for the timestamp of records without one."""
        ...


Part = TypeVar("Part", bound=LogPart)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The segments to delete: the `deleted_count` oldest, by pass.

    `rolls`: the active segment is among them. `log_start_offset` is the resulting one. `future_base_offset` is the
    segment that stays because of timestamps in the future, None if there is none.
    """

    by_log_start_count: int
    by_size_count: int
    by_time_count: int
    log_start_offset: int
    rolls: bool
    future_base_offset: int | None = None

    @property
    def deleted_count(self) -> int:
        """The number of segments to delete."""
        return self.by_log_start_count + self.by_size_count + self.by_time_count


def plan_retention(
    segments: Sequence[Part],
    largest_timestamp_ms: Callable[[Part], int],
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
) -> RetentionPlan:
    """The plan for a log with `segments` in order, the active one last. The whole log is below the high watermark.

    `largest_timestamp_ms` returns a segment's largest timestamp, -1 if it has none; it is called for as few segments as
    necessary.
    """
    by_log_start = _below_log_start(segments, log_start_offset)
    by_size = by_time = 0
    future: LogPart | None = None
    if config.delete and not _is_to_be_tiered(config):
        by_size = _above_size(segments[by_log_start:], config.retention_bytes)
        rest = segments[by_log_start + by_size :]
        by_time, future = _older(rest, largest_timestamp_ms, config.retention_ms, now_ms)
    count = by_log_start + by_size + by_time
    are_all_due = count == len(segments)
    first_kept_offset = log_end_offset if are_all_due else segments[count].base_offset
    return RetentionPlan(
        by_log_start_count=by_log_start,
        by_size_count=by_size,
        by_time_count=by_time,
        log_start_offset=max(log_start_offset, first_kept_offset) if count else log_start_offset,
        rolls=are_all_due and count > 0,
        future_base_offset=None if future is None else future.base_offset,
    )


def _is_to_be_tiered(config: LogConfig) -> bool:
    """Whether segments have to be in remote storage before size or age may delete them here."""
    return config.remote_storage_enable and not config.remote_log_copy_disable


def _below_log_start(segments: Sequence[LogPart], log_start_offset: int) -> int:
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= log_start_offset:
        count += 1
    return count


def _above_size(segments: Sequence[LogPart], retention_bytes: int) -> int:
    spare_bytes = sum(each.size_bytes for each in segments) - retention_bytes
    if retention_bytes < 0 or spare_bytes < 0:
        return 0
    count = 0
    while _may_go(segments, count) and spare_bytes >= segments[count].size_bytes:
        spare_bytes -= segments[count].size_bytes
        count += 1
    return count


def _older(
    segments: Sequence[Part],
    largest_timestamp_ms: Callable[[Part], int],
    retention_ms: int,
    now_ms: int,
) -> tuple[int, Part | None]:
    if retention_ms < 0:
        return 0, None
    count = 0
    while _may_go(segments, count):
        segment = segments[count]
        timestamp_ms = largest_timestamp_ms(segment)
        if timestamp_ms < 0:
            timestamp_ms = segment.modified_ms
        if now_ms - timestamp_ms <= retention_ms:
            return count, segment if timestamp_ms > now_ms else None
        count += 1
    return count, None


def _may_go(segments: Sequence[LogPart], at: int) -> bool:
    """Whether there is a segment `at` that may be deleted; an empty active one never is."""
    return at + 1 < len(segments) or (at < len(segments) and segments[at].size_bytes > 0)


@dataclass(frozen=True, slots=True)
class PlannedRetention:
    """One partition before its commit."""

    topic_partition: TopicPartition
    topic_id: str
    state: LogState
    config: LogConfig
    segments: Sequence[LogPart]
    plan: RetentionPlan

    @property
    def dropped_bytes(self) -> int:
        return sum(each.size_bytes for each in self.segments[: self.plan.deleted_count])

    @property
    def kept_bytes(self) -> int:
        return sum(each.size_bytes for each in self.segments[self.plan.deleted_count :])

    @property
    def move(self) -> LogStartMove | None:
        """The change to commit; None if the log start offset does not change."""
        if self.plan.log_start_offset == self.state.log_start_offset and not self.plan.rolls:
            return None
        return LogStartMove(
            topic_partition=self.topic_partition,
            topic_id=self.topic_id,
            log_start_offset=self.plan.log_start_offset,
            rolls_from=self.state if self.plan.rolls else None,
        )


class RetainedLogs(Protocol):
    """What retention does with the logs of one kind of root."""

    def take(self, topic_partition: TopicPartition, locks: ExitStack) -> bool:
        """Keep other runs from the partition until `locks` end; False when another run has it."""
        ...

    def plan(self, topic_partition: TopicPartition) -> PlannedRetention:
        """The plan, from the image of the last refresh. Raises UnknownTopicError, KafkalogError, OSError."""
        ...

    def remove_dropped(self, planned: PlannedRetention) -> None:
        """Remove what the image no longer contains, whichever run committed that. Raises KafkalogError, OSError."""
        ...

    def end_commit(self) -> None:
        """Called once after a commit, when `remove_dropped` was called for its partitions."""
        ...

    def finish(self, now_ms: int | None) -> None:
        """Called once after the run over all partitions. Raises KafkalogError, OSError."""
        ...
