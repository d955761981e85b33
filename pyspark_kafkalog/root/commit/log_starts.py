"""Increases log start offsets, and those of local logs, of any number of partitions in one commit; used by retention
and delete-records.

    lock a root on a file system; refresh the image
    if the active segment is due too: roll, so that an empty segment begins at the log end; wait for the disk. On a full
    disk only the state records the roll of one that is deleted, and the next writer creates the segment's files
    publish one commit with the partitions' states
    unlock

The moves are applied to the newest image until the commit succeeds. In an object store nothing is locked or rolled.

Files below a committed local log start offset are garbage: any process may rename them for deletion. That is the log
start offset, unless the log begins in remote storage. A crash before the publish leaves at most an empty segment above
the committed one, which the next writer removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_kafkalog.errors import KafkalogError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.root.commit.open_logs import PartitionLogs
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.storage.filesystem import is_out_of_space
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartMove:
    """A request to increase one partition's log start offset to `log_start_offset`, unless it is already above that.

    - `topic_id`: the expected topic id; None for any topic with that name
    - `local_log_start_offset`: also increase that of the local log so far, as far as the offsets below are in remote
      storage
    - `rolls_from`: roll the active segment, if the log is still in this state; else increase the log start offset at
      most to the base offset of the segment that was active in that state
    - `to_high_watermark`: increase the log start offset to the high watermark and ignore `log_start_offset`
    """

    topic_partition: TopicPartition
    log_start_offset: int
    topic_id: str | None = None
    local_log_start_offset: int = -1
    rolls_from: LogState | None = None
    to_high_watermark: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLogStart:
    """The result of a move: the partition's state and topic after it, or the error that prevented it."""

    topic_partition: TopicPartition
    topic_id: str = ""
    before: LogState | None = None
    after: LogState | None = None
    error: Exception | None = None


def move_log_starts(root: NativeRoot, moves: Sequence[LogStartMove], *, operation: str) -> list[MovedLogStart]:
    """Increase the log start offsets in one commit, where possible; returns the results in the order of `moves`.

    Errors of one partition are in its result: UnknownTopicError, OffsetOutOfRangeError above the high watermark, and
    errors of reading or writing its files. Raises the errors of `MetadataStore.commit`.
    """
    moved: list[MovedLogStart] = []

    def build(newest: MetadataImage) -> list[MetadataRecord]:
        moved[:] = [_move(root, newest, each) for each in moves]
        return [
            partition_state_record(each.topic_id, each.topic_partition.partition, each.after)
            for each in moved
            if each.after is not None and each.after != each.before
        ]

    root.commit(build, operation=operation, frees_space=True)
    return moved


def preview_log_starts(root: NativeRoot, moves: Sequence[LogStartMove]) -> list[MovedLogStart]:
    """The results that `move_log_starts` would have, for moves that do not roll; changes nothing."""
    image = root.store.refresh()
    return [_move(root, image, each) for each in moves]


def _move(root: NativeRoot, image: MetadataImage, move: LogStartMove) -> MovedLogStart:
    topic_partition = move.topic_partition
    try:
        topic = image.topic(topic_partition.topic)
        if move.topic_id is not None and topic.topic_id != move.topic_id:
            raise UnknownTopicError(
                f"topic {topic_partition.topic!r} was deleted and re-created: expected the topic id {move.topic_id}, "
                f"found {topic.topic_id}"
            )
        before = image.partition(topic_partition.topic, topic_partition.partition).state
        return MovedLogStart(
            topic_partition=topic_partition,
            topic_id=topic.topic_id,
            before=before,
            after=_moved_state(root, image, move, before),
        )
    except (KafkalogError, OSError) as error:
        return MovedLogStart(topic_partition=topic_partition, error=error)


def _moved_state(root: NativeRoot, image: MetadataImage, move: LogStartMove, before: LogState) -> LogState:
    target = before.log_end_offset if move.to_high_watermark else move.log_start_offset
    if target > before.log_end_offset:
        raise OffsetOutOfRangeError(
            f"the log start of {move.topic_partition} cannot move to {target}, the high watermark is "
            f"{before.log_end_offset}"
        )
    state = before
    if move.rolls_from is not None:
        if isinstance(root, FileRoot) and move.rolls_from == before:
            state = _rolled_if_possible(
                root, image, move.topic_partition, before, is_deleted=target == before.log_end_offset
            )
        else:
            target = min(target, move.rolls_from.active_base_offset)
    partition = image.partition(move.topic_partition.topic, move.topic_partition.partition)
    remote_end = partition.segments[-1].end_offset if partition.segments else 0
    return replace(
        state,
        log_start_offset=max(target, before.log_start_offset),
        local_log_start_offset=max(min(move.local_log_start_offset, remote_end), before.local_log_start_offset),
    )


def _rolled_if_possible(
    root: FileRoot, image: MetadataImage, topic_partition: TopicPartition, before: LogState, *, is_deleted: bool
) -> LogState:
    """The state with an empty active segment. On a full disk the active one stays, unless it `is_deleted` then."""
    try:
        return _rolled(root, image, topic_partition, before)
    except OSError as error:
        if not is_out_of_space(error):
            raise
        return _rolled_without_files(before) if is_deleted else before


def _rolled(root: FileRoot, image: MetadataImage, topic_partition: TopicPartition, before: LogState) -> LogState:
    """The state with an empty active segment, which is durable."""
    logs = PartitionLogs.at(root.path, image, clock=root.clock, fs=root.fs)
    with logs.resume(topic_partition, before) as log:
        log.roll()
        if log.is_recovered:
            log.assign_epoch(log.epoch_after(before.leader_epoch), log.log_end_offset)
        log.flush(is_last=True)
        return log.state()


def _rolled_without_files(before: LogState) -> LogState:
    """As `_rolled`, if the disk has no room for the files: resuming the log creates the missing empty segment."""
    return LogState(
        leader_epoch=before.leader_epoch,
        log_start_offset=before.log_start_offset,
        local_log_start_offset=before.local_log_start_offset,
        log_end_offset=before.log_end_offset,
        active_base_offset=before.log_end_offset,
        active_max_timestamp_offset=before.log_end_offset,
        first_unstable_offset=before.first_unstable_offset,
        producer=before.producer,
    )
