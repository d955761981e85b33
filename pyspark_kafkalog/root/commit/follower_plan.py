"""What the writers of both kinds of roots decide alike: checks of changes, and the states and records that follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import CommitConflictError, InvalidRecordError, KafkalogError, UnknownTopicError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import (
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    StagingHorizonRecord,
    TopicRecord,
)
from pyspark_kafkalog.root.commit.follower_changes import FollowerAppend, FollowerChange, StartAt, Truncation
from pyspark_kafkalog.root.commit.staged_batches import StagedBatches
from pyspark_kafkalog.storage.filesystem import in_parallel
from pyspark_kafkalog.storage.log.follower import FollowerBatches, check_batches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

#: From so many bytes on, checks are worth a thread for each partition.
_SIDE_BY_SIDE_BYTES: Final = 2 * MIB


@dataclass(frozen=True, slots=True)
class CheckedAppend:
    """An append whose batches are whole and undamaged; those in a store were checked by the task that put them."""

    change: FollowerAppend
    batches: FollowerBatches | StagedBatches


CheckedChange: TypeAlias = CheckedAppend | Truncation | StartAt


def check_changes(changes: Sequence[FollowerChange]) -> list[CheckedChange | KafkalogError]:
    """Each change after all checks that need no image, or why it is refused. Reads every byte of the batches."""
    seen: set[TopicPartition] = set()
    checks: list[Callable[[], CheckedChange | KafkalogError]] = []
    size_bytes = 0
    for change in changes:
        is_second = change.topic_partition in seen
        seen.add(change.topic_partition)
        checks.append(partial(_checked, change, is_second=is_second))
        size_bytes += _unchecked_bytes(change)
    # The checksums are computed without the interpreter's lock.
    return in_parallel(checks) if size_bytes >= _SIDE_BY_SIDE_BYTES else [check() for check in checks]


def _checked(change: FollowerChange, *, is_second: bool) -> CheckedChange | KafkalogError:
    if is_second:
        return InvalidRecordError(f"{change.topic_partition}: a commit takes one change of a partition, found two")
    if not isinstance(change, FollowerAppend):
        return change
    data = change.data
    try:
        if isinstance(data, StagedBatches):
            data.check(change.topic_id, change.topic_partition)
            return CheckedAppend(change, data)
        return CheckedAppend(change, data if isinstance(data, FollowerBatches) else check_batches(data))
    except KafkalogError as error:
        return error


def _unchecked_bytes(change: FollowerChange) -> int:
    if not isinstance(change, FollowerAppend) or isinstance(change.data, (FollowerBatches, StagedBatches)):
        return 0
    return len(change.data)


def state_before(image: MetadataImage, change: FollowerChange) -> LogState:
    """The partition's state before `change`. Raises UnknownTopicError, CommitConflictError for another log end."""
    of = change.topic_partition
    topic = image.topic(of.topic)
    if topic.topic_id != change.topic_id:
        raise UnknownTopicError(f"topic {of.topic!r} has the id {topic.topic_id} here, not {change.topic_id}")
    state = image.partition(of.topic, of.partition).state
    if state.log_end_offset != change.expected_end_offset:
        raise CommitConflictError(
            f"the log of {of} ends at {state.log_end_offset}, not at {change.expected_end_offset}: continue from there"
        )
    return state


def state_after_append(change: FollowerAppend, before: LogState, appended: LogState) -> LogState:
    """The state to commit of a log that is `appended` after the batches of `change` were added to `before`."""
    log_start_offset = max(appended.log_start_offset, min(change.log_start_offset, appended.log_end_offset))
    return replace(
        appended,
        log_start_offset=log_start_offset,
        leader_epoch=max(before.leader_epoch, appended.leader_epoch, change.leader_epoch),
    )


def producer_ids_record(image: MetadataImage, appends: Iterable[CheckedAppend]) -> list[MetadataRecord]:
    """The record after which the root never hands out one of the producer ids in the appends; none if it is not needed.

    So the image always knows the highest id that the leader has handed out, as far as it was seen here.
    """
    highest = max((each.batches.highest_producer_id for each in appends), default=-1)
    if highest < image.next_producer_id:
        return []
    return [ProducerIdsRecord(broker_id=-1, next_producer_id=highest + 1)]


def truncation_records(image: MetadataImage, *, is_cut: bool) -> list[MetadataRecord]:
    """With a truncation: what cleanings, merges and tiering have planned of logs as of `image` is never committed.

    The same offsets may soon have other records, in segments of the same names.
    """
    return [StagingHorizonRecord(horizon_offset=image.next_offset + 1)] if is_cut else []


def changes_topics(records: Collection[MetadataRecord]) -> bool:
    """Whether the records create or remove topics or partitions."""
    return any(isinstance(each, (TopicRecord, PartitionRecord, RemoveTopicRecord)) for each in records)
