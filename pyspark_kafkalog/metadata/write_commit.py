"""The commit of a write: staged files of any partitions become readable all together, or not at all.

    lock the root; refresh the image
    for each partition, in order, side by side: resume its log from the image's state (which cuts what a crashed
        writer left), append its staged files, wait for the disk, note the new state
    publish one commit with all new states and what was written

A crash before the publish leaves bytes above the high watermark that nobody sees and the next writer cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import CommitConflictError, UnknownTopicError
from pyspark_kafkalog.metadata.commit_result import CommitResult, CommittedPartition
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.records import (
    MetadataRecord,
    WrittenPartition,
    partition_state_record,
    write_commit_record,
)
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.storage.broker_config import BrokerConfig
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging import StagedFile
from pyspark_kafkalog.storage.unified_log import UnifiedLog

_PARALLEL_PARTITIONS: Final = 8


@dataclass(frozen=True, slots=True)
class _Appended:
    """One partition after the append, before the commit."""

    topic_id: str
    before: LogState
    after: LogState
    committed: CommittedPartition


def commit_staged(
    store: MetadataStore,
    staged: Sequence[StagedFile],
    *,
    broker_config: Callable[[MetadataImage], BrokerConfig],
    clock: Callable[[], int],
    fs: FileSystem,
) -> CommitResult:
    """Append the staged files, each partition's in the order given, and publish. The files are used up.

    Raises UnknownTopicError for a topic that has been deleted since, CommitConflictError when somebody wrote to the
    same partitions without the lock, CommitStateUnknownError as `MetadataStore.commit`.
    """
    by_partition: dict[TopicPartition, list[StagedFile]] = {}
    for each in staged:
        if len(each.batches):
            by_partition.setdefault(each.topic_partition, []).append(each)
        else:
            fs.unlink_if_there(each.path(store.root))
    if not by_partition:
        return CommitResult(None, ())
    with root_lock(store.root, fs=fs):
        image = store.refresh()
        append = _Append(store, image, broker_config(image), clock, fs)
        with ThreadPoolExecutor(max_workers=min(len(by_partition), _PARALLEL_PARTITIONS)) as pool:
            appended = list(pool.map(append, *zip(*sorted(by_partition.items()), strict=True)))
        outcome = store.commit(lambda newest: _records(newest, staged[0].write_id, appended), operation="write")
    commit_offset = None if outcome.commit is None else outcome.commit.base_offset
    return CommitResult(commit_offset, tuple(each.committed for each in appended))


@dataclass(frozen=True, slots=True)
class _Append:
    """Appends one partition's staged files; called from several threads, each with a partition of its own."""

    store: MetadataStore
    image: MetadataImage
    broker_config: BrokerConfig
    clock: Callable[[], int]
    fs: FileSystem

    def __call__(self, topic_partition: TopicPartition, staged: Sequence[StagedFile]) -> _Appended:
        topic = self.image.topic(topic_partition.topic)
        before = self.image.partition(topic_partition.topic, topic_partition.partition).state
        for each in staged:
            if not each.path(self.store.root).exists():
                raise UnknownTopicError(
                    f"{each.name}, staged for {topic_partition}, is gone: the topic was deleted meanwhile; write again"
                )
        with UnifiedLog.resume(
            self.store.root / str(topic_partition),
            self.broker_config.log_config(topic.configs),
            before,
            clock=self.clock,
            fs=self.fs,
            producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
        ) as log:
            for each in staged:
                log.append_staged(each, leader_epoch=before.leader_epoch, durable=False)
            log.flush()
            after = log.state()
        committed = CommittedPartition(
            topic_partition,
            before.log_end_offset,
            after.log_end_offset,
            records=sum(each.records_count for each in staged),
            bytes=sum(each.size_bytes for each in staged),
        )
        return _Appended(topic.topic_id, before, after, committed)


def _records(image: MetadataImage, write_id: str, appended: Sequence[_Appended]) -> list[MetadataRecord]:
    """The commit's records, against an image in which the partitions are still as they were appended to."""
    for each in appended:
        where = each.committed.topic_partition
        topic = image.topics.get(where.topic)
        if topic is None or topic.topic_id != each.topic_id or topic.partitions[where.partition].state != each.before:
            raise CommitConflictError(f"{where} was changed by another writer without the root's lock; write again")
    written = [
        WrittenPartition(
            topic_id=each.topic_id,
            partition=each.committed.topic_partition.partition,
            first_offset=each.committed.first_offset,
            records=each.committed.records,
            bytes=each.committed.bytes,
        )
        for each in appended
    ]
    states = [
        partition_state_record(each.topic_id, each.committed.topic_partition.partition, each.after) for each in appended
    ]
    return [write_commit_record(write_id=write_id, partitions=written), *states]
