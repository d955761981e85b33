"""Which parts of a log retention deletes: segments on a file system, segment objects and runs in a store.

A log is the parts in a store, then the local segments that reach beyond them: each offset counts once. Parts of it are
chosen by Kafka's rules, in three passes, each from the oldest part on, each ending at the first part that stays:

    log start   it ends at or below the log start offset: also if cleanup.policy is only compact
    size        without it the log still has retention.bytes
    time        its largest timestamp is more than retention.ms ago; without timestamps, its last modification

The active segment is included if it qualifies and is not empty; a new one is rolled first. Timestamps in the future
keep a part, and all after it, until their time has come. Source of the rules: deleteOldSegments, deletableSegments
and deleteSegments of org.apache.kafka.storage.internals.log.UnifiedLog; for parts in a store
RemoteLogManager.RLMExpirationTask, whose choice is the same.

While segments are being copied to a store (remote.storage.enable without remote.log.copy.disable), size and time delete
only what has been copied. The same passes over the local segments alone then choose, by local.retention.bytes and
local.retention.ms, which copied segments the file system need not have any more: these move the local log start only.
If all closed segments are due and the active one is due too, it is rolled, so that it can be copied.

The parts of a log in an object root are all in the store, so none of them is active, and nothing has to be rolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.root.commit.log_starts import LogStartMove
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.own_segments import OwnLayout, log_key

#: A limit of local retention that means: as for the whole log.
_AS_TOTAL: Final = -2


class RetainedPart(Protocol):
    """What is deleted as a whole: a segment, local or in a store, or a run in an object store."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def modified_ms(self) -> int:
        """When it was written; stands for the timestamp of records without one."""
        ...


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A segment in a store, or a run; `written_ms` asks when it was written."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    written_ms: Callable[[], int]

    @property
    def modified_ms(self) -> int:
        """When it was written, by the store's clock. Takes a request. Raises ObjectStoreError."""
        return self.written_ms()


def segment_parts(partition: PartitionImage, written_ms: Callable[[SegmentObject], int]) -> list[StoredPart]:
    """The segments of the partition in the store, in offset order; `written_ms` asks when one was put there."""
    return [
        StoredPart(each.base_offset, each.end_offset, each.size_bytes, each.max_timestamp_ms, partial(written_ms, each))
        for each in partition.segments
    ]


def stored_extents(root: ObjectRoot, topic_partition: TopicPartition, now_ms: int) -> list[StoredPart]:
    """The partition's segments and then its runs, in the root's present image.

    `now_ms` counts as the time of what has meanwhile been replaced.
    """
    image = root.store.image
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    of = ObjectLog.of(image, topic_partition).topic_id_partition

    def put_ms(key: str) -> int:
        return root.objects.head(key).last_modified_ms

    def written_ms(object_id: int) -> int:
        """When the data of a run were written; of those inside a commit, when it was made."""
        found = image.objects.find(object_id)
        if found is None or not found.is_inline:
            return now_ms if found is None else put_ms(found.key)
        commit = root.store.log.read(found.commit_offset)
        return now_ms if commit is None else commit.timestamp_ms

    segments = segment_parts(partition, lambda each: put_ms(log_key(of, each, OwnLayout.AIVEN)))
    rows = partition.runs.table
    names = ("base_offset", "end_offset", "size_bytes", "max_timestamp_ms", "object_id")
    columns = (rows[name].tolist() for name in names)
    runs = [
        StoredPart(base_offset, end_offset, size_bytes, max_timestamp_ms, partial(written_ms, object_id))
        for base_offset, end_offset, size_bytes, max_timestamp_ms, object_id in zip(*columns, strict=True)
    ]
    return [*segments, *runs]


Part = TypeVar("Part", bound=RetainedPart)
Local = TypeVar("Local", bound=RetainedPart)
Remote = TypeVar("Remote", bound=RetainedPart)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What is to be deleted: the `deleted_count` oldest parts of the log, and the `local_deleted_count` oldest local
    segments, some of which may still be in a store.

    `log_start_offset` and `local_log_start_offset` are the resulting ones. `rolls`: an empty active segment begins at
    the log end. `future_base_offset` is the part that stays because of timestamps in the future, None if there is none.
    """

    log_start_offset: int
    local_log_start_offset: int
    rolls: bool
    deleted_count: int
    deleted_bytes: int
    kept_bytes: int
    local_deleted_count: int
    local_deleted_bytes: int
    future_base_offset: int | None = None


def plan_retention(
    local: Sequence[Local],
    remote: Sequence[Remote],
    largest_timestamp_ms: Callable[[Local | Remote], int],
    config: LogConfig,
    state: LogState,
    *,
    now_ms: int,
) -> RetentionPlan:
    """The plan for a log with the `local` segments in order, the active one last, and the `remote` parts in order.

    The whole log is below the high watermark. `largest_timestamp_ms` returns a part's largest timestamp, -1 if it has
    none; it is called for as few parts as necessary.
    """
    remote_end = remote[-1].end_offset if remote else 0
    log: list[Local | Remote] = [
        *remote,
        *(each for each in local if each.end_offset > remote_end or each.base_offset >= remote_end),
    ]
    is_tiering = config.remote_storage_enable and not config.remote_log_copy_disable
    count = _below(log, state.log_start_offset)
    future: RetainedPart | None = None
    if config.delete:
        limit = max(len(remote) - count, 0) if is_tiering else len(log) - count
        due = _due(log[count:], limit, largest_timestamp_ms, config.retention_bytes, config.retention_ms, now_ms)
        count, future = count + due.count, due.future
    log_start = max(state.log_start_offset, log[count - 1].end_offset) if count else state.log_start_offset
    rolls = len(local) > 0 and count == len(log)
    local_start = max(state.local_log_start_offset, log_start)
    local_count = len(local) if rolls else _below(local, local_start)
    if config.delete and is_tiering:
        due = _due_locally(local[local_count:], remote_end, largest_timestamp_ms, config, now_ms)
        local_count += due.count
        rolls = due.is_whole
        local_start = max(local_start, local[local_count - 1].end_offset) if due.count else local_start
        if rolls and local[-1].end_offset <= local_start:
            local_count = len(local)
        future = due.future if future is None else future
    return RetentionPlan(
        log_start_offset=log_start,
        local_log_start_offset=local_start,
        rolls=rolls,
        deleted_count=count,
        deleted_bytes=_bytes(log[:count]),
        kept_bytes=_bytes(log[count:]),
        local_deleted_count=local_count,
        local_deleted_bytes=_bytes(local[:local_count]),
        future_base_offset=None if future is None else future.base_offset,
    )


@dataclass(frozen=True, slots=True)
class _Due:
    """The `count` oldest parts are due. `is_whole`: with those that may not go, all of them are."""

    count: int
    future: RetainedPart | None
    is_whole: bool = False


def _due_locally(
    local: Sequence[Part], remote_end: int, largest_timestamp_ms: Callable[[Part], int], config: LogConfig, now_ms: int
) -> _Due:
    """The segments that local retention deletes: only what is in remote storage, and so never the active one."""
    copied_count = sum(each.end_offset <= remote_end for each in local[:-1])
    is_all_closed = copied_count == len(local) - 1
    retention_bytes = _local_limit(config.local_retention_bytes, config.retention_bytes)
    retention_ms = _local_limit(config.local_retention_ms, config.retention_ms)
    due = _due(
        local,
        len(local) if is_all_closed else copied_count,
        largest_timestamp_ms,
        retention_bytes,
        retention_ms,
        now_ms,
    )
    return _Due(min(due.count, copied_count), due.future, is_whole=is_all_closed and due.count == len(local) > 0)


def _local_limit(local: int, total: int) -> int:
    return total if local == _AS_TOTAL else local


def _due(
    parts: Sequence[Part],
    limit: int,
    largest_timestamp_ms: Callable[[Part], int],
    retention_bytes: int,
    retention_ms: int,
    now_ms: int,
) -> _Due:
    """The oldest of `parts`, at most `limit`, that go by size and then by time; an empty last one never does."""
    if limit == len(parts) > 0 and not parts[-1].size_bytes:
        limit -= 1
    by_size = _above_size(parts, limit, retention_bytes)
    by_time, future = _older(parts[by_size:limit], largest_timestamp_ms, retention_ms, now_ms)
    return _Due(by_size + by_time, future)


def _below(parts: Sequence[RetainedPart], offset: int) -> int:
    """The number of parts that end at or below `offset`; the last one does not count."""
    count = 0
    while count + 1 < len(parts) and parts[count].end_offset <= offset:
        count += 1
    return count


def _above_size(parts: Sequence[RetainedPart], limit: int, retention_bytes: int) -> int:
    spare_bytes = _bytes(parts) - retention_bytes
    if retention_bytes < 0 or spare_bytes < 0:
        return 0
    count = 0
    while count < limit and spare_bytes >= parts[count].size_bytes:
        spare_bytes -= parts[count].size_bytes
        count += 1
    return count


def _older(
    parts: Sequence[Part], largest_timestamp_ms: Callable[[Part], int], retention_ms: int, now_ms: int
) -> tuple[int, Part | None]:
    if retention_ms < 0:
        return 0, None
    for count, part in enumerate(parts):
        timestamp_ms = largest_timestamp_ms(part)
        if timestamp_ms < 0:
            timestamp_ms = part.modified_ms
        if now_ms - timestamp_ms <= retention_ms:
            return count, part if timestamp_ms > now_ms else None
    return len(parts), None


def _bytes(parts: Sequence[RetainedPart]) -> int:
    return sum(each.size_bytes for each in parts)


@dataclass(frozen=True, slots=True)
class PlannedRetention:
    """One partition before its commit."""

    topic_partition: TopicPartition
    topic_id: str
    state: LogState
    config: LogConfig
    plan: RetentionPlan
    has_remote_segments: bool = False

    @property
    def move(self) -> LogStartMove | None:
        """The change to commit; None if there is none."""
        plan, state = self.plan, self.state
        is_moving = (plan.log_start_offset, plan.local_log_start_offset) != (
            state.log_start_offset,
            state.local_log_start_offset,
        )
        if not is_moving and not plan.rolls:
            return None
        return LogStartMove(
            topic_partition=self.topic_partition,
            topic_id=self.topic_id,
            log_start_offset=plan.log_start_offset,
            local_log_start_offset=plan.local_log_start_offset,
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

    def end_task(self) -> None:
        """Called once after the commits of a task, when `remove_dropped` was called for their partitions."""
        ...

    def finish(self) -> None:
        """Called once after the run over all partitions. Raises KafkalogError, OSError."""
        ...
