"""The commit of a write: staged files of any partitions become readable all together, or not at all.

    lock the root; refresh the image
    with a transaction: its version committed before? then that is all; another incarnation came? then fail
    for each partition, side by side: resume its log from the image's state (which cuts what a crashed
        writer left), append its staged files, wait for the disk, note the new state
    publish one commit with all new states and what was written
    unlock; remove the staged files

A crash before the publish leaves bytes above the high watermark that nobody sees and the next writer cuts; the staged
files are still there, so a commit that failed can be made again with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
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
from pyspark_kafkalog.metadata.write_transaction import WriteTransaction, is_committed, producer_of
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
    transaction: WriteTransaction | None,
    broker_config: Callable[[MetadataImage], BrokerConfig],
    clock: Callable[[], int],
    fs: FileSystem,
) -> CommitResult:
    """Append the staged files, each partition's in the order given, and publish. The files are removed then.

    When it raises they stay, and the same commit can be tried again. Raises UnknownTopicError for a topic that has
    been deleted since, ProducerFencedError when a newer incarnation has taken the transactional id over,
    CommitConflictError when somebody wrote to the same partitions without the lock, CommitStateUnknownError as
    `MetadataStore.commit`.
    """
    by_partition: dict[TopicPartition, list[StagedFile]] = {}
    for each in staged:
        if len(each.batches):
            by_partition.setdefault(each.topic_partition, []).append(each)
    result = CommitResult(None, ())
    write_id = staged[0].write_id if staged else ""
    if by_partition or transaction is not None:
        with root_lock(store.root, fs=fs):
            image = store.refresh()
            if transaction is not None and is_committed(image, transaction):
                result = _duplicate(image, transaction)
            else:
                if transaction is not None:
                    producer_of(image, transaction.transactional_id, transaction.incarnation)
                append = _Append(store, image, broker_config(image), clock, fs)
                result = _publish(store, image, transaction, write_id, _append_all(append, by_partition))
    discard_staged(store.root, staged, fs)
    return result


def discard_staged(root: Path, staged: Sequence[StagedFile], fs: FileSystem) -> None:
    """Remove staged files that are not wanted any more; what cannot be removed is left to clean-up."""
    for each in staged:
        with contextlib.suppress(OSError):
            fs.unlink_if_there(each.path(root))


def _duplicate(image: MetadataImage, transaction: WriteTransaction) -> CommitResult:
    known = image.transactional_ids[transaction.transactional_id]
    commit_offset = known.last_commit_offset if known.version == transaction.version else None
    return CommitResult(commit_offset, (), is_duplicate=True)


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


def _append_all(append: _Append, by_partition: Mapping[TopicPartition, Sequence[StagedFile]]) -> list[_Appended]:
    if not by_partition:
        return []
    with ThreadPoolExecutor(max_workers=min(len(by_partition), _PARALLEL_PARTITIONS)) as pool:
        return list(pool.map(append, *zip(*sorted(by_partition.items()), strict=True)))


def _publish(
    store: MetadataStore,
    image: MetadataImage,
    transaction: WriteTransaction | None,
    write_id: str,
    appended: Sequence[_Appended],
) -> CommitResult:
    def build(newest: MetadataImage) -> list[MetadataRecord]:
        _check_unchanged(image, newest, transaction, appended)
        states = [
            partition_state_record(each.topic_id, each.committed.topic_partition.partition, each.after)
            for each in appended
        ]
        return [*_write_records(newest, transaction, write_id, appended), *states]

    outcome = store.commit(build, operation="write")
    commit_offset = None if outcome.commit is None else outcome.commit.base_offset
    return CommitResult(commit_offset, tuple(each.committed for each in appended))


def _check_unchanged(
    image: MetadataImage, newest: MetadataImage, transaction: WriteTransaction | None, appended: Sequence[_Appended]
) -> None:
    """Raise CommitConflictError unless all that the write depends on is in `newest` as it was in `image`."""
    for each in appended:
        where = each.committed.topic_partition
        topic = newest.topics.get(where.topic)
        if topic is None or topic.topic_id != each.topic_id or topic.partitions[where.partition].state != each.before:
            raise CommitConflictError(f"{where} was changed by another writer without the root's lock; write again")
    if transaction is not None:
        name = transaction.transactional_id
        if newest.transactional_ids.get(name) != image.transactional_ids.get(name):
            raise CommitConflictError(
                f"transactional id {name!r} was used by another writer without the root's lock; write again"
            )


def _write_records(
    newest: MetadataImage, transaction: WriteTransaction | None, write_id: str, appended: Sequence[_Appended]
) -> list[MetadataRecord]:
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
    if transaction is None:
        return [write_commit_record(write_id=write_id, partitions=written)]
    producer = producer_of(newest, transaction.transactional_id, transaction.incarnation)
    commit = write_commit_record(
        write_id=write_id,
        partitions=written,
        transactional_id=transaction.transactional_id,
        transaction_version=transaction.version,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        incarnation=transaction.incarnation,
    )
    return [*producer.records, commit]
