"""The commit of a write: makes staged files of any partitions readable atomically.

    lock the root; refresh the image
    admit      a write that has been committed before ends here; a fenced incarnation or a lower version raises an error
    append     the staged files to the partitions' logs, and wait for the disk
    publish    one commit with the partitions' new states and the ranges written
    unlock; remove the staged files

To append to a partition, its log is resumed from the image's state, which truncates the bytes of a crashed writer (and
then begins a new leader epoch). All partitions are flushed concurrently: data, indexes, names.

A crash before the publish leaves bytes above the high watermark, which are invisible and which the next writer
truncates; after an error they are truncated immediately, which frees the space. A crash after the publish leaves staged
files, which the next writer recognizes as committed or removes as abandoned. Until the publish the staged files are
unchanged, so a failed commit can be retried with them.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, KafkalogError, UnknownTopicError
from pyspark_kafkalog.metadata.following import check_not_following
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, WriteCommitRecord, WrittenPartition
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns, root_lock
from pyspark_kafkalog.metadata.store import LocalMetadataStore
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.directories import ensure_partition_directory
from pyspark_kafkalog.root.write_transaction import (
    CommitResult,
    CommittedPartition,
    WriteTransaction,
    committed_before,
    producer_of,
    skip,
)
from pyspark_kafkalog.storage.below_root import keep_directories
from pyspark_kafkalog.storage.filesystem import FileSystem, in_parallel
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition, partition_path
from pyspark_kafkalog.storage.staging.staged_file import (
    StagedFile,
    discard_staged,
    is_superseded,
    remove_abandoned,
    remove_writes,
    staged_in,
)

_LOG: Final = logging.getLogger(__name__)

_OPERATION: Final = "write"
#: Maximum of partitions with open files: each takes three of the 1024 descriptors that a process has by default.
_OPEN_PARTITIONS: Final = 64
#: From this size on, copying takes longer than passing the work to threads.
_PARALLEL_COPY_BYTES: Final = 8 << 20


def commit_write(
    store: LocalMetadataStore,
    staged: Sequence[StagedFile],
    transaction: WriteTransaction | None,
    *,
    clock: Callable[[], int],
    fs: FileSystem,
) -> CommitResult:
    """Append the staged files, in the given order for each partition, publish the commit, and remove the files.

    If the version of `transaction` has been committed, or this write by an earlier call that raised an error, nothing
    is appended and the result's `is_duplicate` is true. If this raises, the files remain and the same commit can be
    retried.

    Raises UnknownTopicError for a topic that has been deleted since, ProducerFencedError if a later incarnation has
    taken over the transactional id, LowerVersionError if a later version of it has been committed, CommitConflictError
    if another process wrote to the same partitions without the lock, CommitStateUnknownError as `MetadataStore.commit`.
    """
    write = Write.of(staged, transaction)
    result, appended = CommitResult(None, ()), list[AppendedPartition]()
    if write.by_partition or transaction is not None:
        with root_lock(store.root, fs=fs), keep_directories():
            image = store.refresh()
            duplicate = admit(store, image, write)
            if duplicate is None:
                logs = PartitionLogs.at(store.root, image, clock=clock, fs=fs)
                result, appended = _append_and_publish(store, logs, write)
            else:
                result = duplicate
    discard_staged(store.root, staged, fs)
    _remove_leftovers(store, write, appended, fs)
    return result


@dataclass(frozen=True, slots=True)
class Write:
    """A write to be committed: the staged files with records by partition, and its transaction if it has one."""

    write_id: str
    transaction: WriteTransaction | None
    by_partition: Mapping[TopicPartition, Sequence[StagedFile]]

    @classmethod
    def of(cls, staged: Sequence[StagedFile], transaction: WriteTransaction | None) -> Write:
        by_partition: dict[TopicPartition, list[StagedFile]] = {}
        for each in staged:
            if len(each.batches):
                by_partition.setdefault(each.topic_partition, []).append(each)
        return cls(staged[0].write_id if staged else uuid.uuid4().hex, transaction, by_partition)


@dataclass(frozen=True, slots=True)
class AppendedPartition:
    """One partition after the append, before the commit; `others` are staged files of other writes in its directory."""

    topic_id: str
    before: LogState
    after: LogState
    committed: CommittedPartition
    others: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class PartitionLogs:
    """The logs of the partitions as they are in `image`. The caller holds the root's lock."""

    root: Path
    image: MetadataImage
    broker_config: BrokerConfig
    clock: Callable[[], int]
    fs: FileSystem

    @classmethod
    def at(cls, root: Path, image: MetadataImage, *, clock: Callable[[], int], fs: FileSystem) -> PartitionLogs:
        return cls(root, image, broker_config(image), clock, fs)

    def resume(self, topic_partition: TopicPartition, state: LogState) -> UnifiedLog:
        """The partition's log, without the bytes after `state`. Raises UnknownTopicError, CorruptRecordError."""
        return UnifiedLog.resume(
            partition_path(self.root, topic_partition),
            self.broker_config.log_config(self.image.topic(topic_partition.topic).configs),
            state,
            clock=self.clock,
            fs=self.fs,
            producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
        )


def admit(store: LocalMetadataStore, image: MetadataImage, write: Write) -> CommitResult | None:
    """The result of a write that has been committed before, which is then durable; None if it may be committed.

    Raises FollowingRootError if the root follows a leader, ProducerFencedError if a later incarnation has taken over
    the transactional id, LowerVersionError if a later version has been committed.
    """
    check_not_following(image)
    earlier = store.find_commit(write.write_id)
    if earlier is not None:
        return CommitResult(earlier.base_offset, (), is_duplicate=True)
    transaction = write.transaction
    if transaction is not None:
        known = committed_before(image, transaction, store.log)
        if known is not None:
            # The writer may have been killed after publishing the commit and before making its name durable.
            store.log.sync()
            return skip(transaction, known, store.log)
        producer_of(image, transaction.transactional_id, transaction.incarnation)
    return None


def _append_and_publish(
    store: LocalMetadataStore, logs: PartitionLogs, write: Write
) -> tuple[CommitResult, list[AppendedPartition]]:
    try:
        appended = append(logs, write)
        return publish(store, logs.image, write, appended), appended
    except (CommitConflictError, CommitStateUnknownError):
        raise  # the bytes may be another writer's, or committed
    except BaseException:
        with contextlib.suppress(KafkalogError, OSError):
            truncate_uncommitted(logs, write.by_partition, store.refresh())
        raise


def append(logs: PartitionLogs, write: Write) -> list[AppendedPartition]:
    """Append all files, in the order of the partitions, and wait until they are on disk."""
    partitions = sorted(write.by_partition)
    appended: list[AppendedPartition] = []
    for at in range(0, len(partitions), _OPEN_PARTITIONS):
        some = {each: write.by_partition[each] for each in partitions[at : at + _OPEN_PARTITIONS]}
        appended += _append_some(logs, some)
    return appended


def _append_some(
    logs: PartitionLogs, by_partition: Mapping[TopicPartition, Sequence[StagedFile]]
) -> list[AppendedPartition]:
    with contextlib.ExitStack() as closing:
        tasks = [partial(_append_one, logs, closing, *each) for each in by_partition.items()]
        size_bytes = sum(staged.size_bytes for files in by_partition.values() for staged in files)
        opened = in_parallel(tasks) if size_bytes >= _PARALLEL_COPY_BYTES else [task() for task in tasks]
        flushes = [partial(log.flush, is_last=True) for log in opened]
        if logs.fs.waits_for_disk:
            in_parallel(flushes)
        else:
            for flush in flushes:
                flush()
        return [
            _describe(logs.image, topic_partition, staged, log)
            for (topic_partition, staged), log in zip(by_partition.items(), opened, strict=True)
        ]


def _append_one(
    logs: PartitionLogs, closing: contextlib.ExitStack, topic_partition: TopicPartition, staged: Sequence[StagedFile]
) -> UnifiedLog:
    before = logs.image.partition(topic_partition.topic, topic_partition.partition).state
    if before.log_end_offset == 0:
        topic_id = logs.image.topic(topic_partition.topic).topic_id
        ensure_partition_directory(logs.root, topic_partition, topic_id, logs.fs)()
    log = logs.resume(topic_partition, before)
    closing.callback(log.suspend)
    # Only after resuming, which removes files that are already committed.
    for each in staged:
        if each.name not in log.staged:
            raise UnknownTopicError(
                f"{topic_partition}: expected the staged file {each.name}, found none: the topic was deleted, or the "
                "write was aborted or already committed; retry the missing records"
            )
    leader_epoch = log.epoch_after(before.leader_epoch)
    for each in staged:
        log.append_staged(each, leader_epoch=leader_epoch)
    return log


def _describe(
    image: MetadataImage, topic_partition: TopicPartition, staged: Sequence[StagedFile], log: UnifiedLog
) -> AppendedPartition:
    before = image.partition(topic_partition.topic, topic_partition.partition).state
    after = log.state()
    committed = CommittedPartition(
        topic_partition,
        before.log_end_offset,
        after.log_end_offset,
        records=sum(each.records_count for each in staged),
        bytes=sum(each.size_bytes for each in staged),
    )
    own = {each.name for each in staged}
    others = tuple(log.directory / name for name in log.staged if name not in own)
    return AppendedPartition(image.topic(topic_partition.topic).topic_id, before, after, committed, others)


def truncate_uncommitted(logs: PartitionLogs, partitions: Iterable[TopicPartition], newest: MetadataImage) -> None:
    """Truncate the appended bytes of each of the partitions that is unchanged in `newest`. Never raises.

    A failure in one partition does not affect the others: a partition of a topic that was re-created since staging
    may not even exist.
    """
    for each in partitions:
        topic = newest.topics.get(each.topic)
        if topic is None or topic != logs.image.topics.get(each.topic):
            continue
        try:
            logs.resume(each, newest.partition(each.topic, each.partition).state).suspend()
        except (KafkalogError, OSError) as error:
            _LOG.warning("%s: the bytes of a failed write remain until the next write truncates them: %s", each, error)


def publish(
    store: LocalMetadataStore, image: MetadataImage, write: Write, appended: Sequence[AppendedPartition]
) -> CommitResult:
    """Commit the appended ranges. Raises CommitConflictError, CommitStateUnknownError; see `MetadataStore.commit`."""

    def build(newest: MetadataImage) -> list[MetadataRecord]:
        _check_unchanged(image, newest, write.transaction, appended)
        return _commit_records(newest, write, appended)

    outcome = store.commit(build, operation=_OPERATION, key=write.write_id)
    commit_offset = None if outcome.commit is None else outcome.commit.base_offset
    return CommitResult(commit_offset, tuple(each.committed for each in appended))


def _check_unchanged(
    image: MetadataImage,
    newest: MetadataImage,
    transaction: WriteTransaction | None,
    appended: Sequence[AppendedPartition],
) -> None:
    """Raise CommitConflictError if `newest` differs from `image` in what the commit depends on."""
    for each in appended:
        topic_partition = each.committed.topic_partition
        if newest.state_of(topic_partition, each.topic_id) != each.before:
            raise changed_error(topic_partition)
    if transaction is not None:
        name = transaction.transactional_id
        if newest.transactional_ids.get(name) != image.transactional_ids.get(name):
            raise CommitConflictError(
                f"transactional id {name!r}: another writer used it without the root's lock; write again"
            )


def changed_error(topic_partition: TopicPartition) -> CommitConflictError:
    """The error for a partition whose state changed between the refresh under the root's lock and the commit."""
    return CommitConflictError(
        f"{topic_partition}: another writer changed the partition without the root's lock; run this again"
    )


def _commit_records(newest: MetadataImage, write: Write, appended: Sequence[AppendedPartition]) -> list[MetadataRecord]:
    written = tuple(
        WrittenPartition(
            topic_id=each.topic_id,
            partition=each.committed.topic_partition.partition,
            first_offset=each.committed.first_offset,
            records=each.committed.records,
            bytes=each.committed.bytes,
        )
        for each in appended
    )
    states = [
        partition_state_record(each.topic_id, each.committed.topic_partition.partition, each.after) for each in appended
    ]
    transaction = write.transaction
    if transaction is None:
        return [WriteCommitRecord(write_id=write.write_id, partitions=written), *states]
    producer = producer_of(newest, transaction.transactional_id, transaction.incarnation)
    commit = WriteCommitRecord(
        write_id=write.write_id,
        partitions=written,
        transactional_id=transaction.transactional_id,
        transaction_version=transaction.version,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        incarnation=transaction.incarnation,
    )
    return [*producer.records, commit, *states]


def _remove_leftovers(
    store: LocalMetadataStore, write: Write, appended: Sequence[AppendedPartition], fs: FileSystem
) -> None:
    """Remove, from the write's partitions, staged files that no commit will take: see staged_file.py."""
    others = [path for each in appended for path in each.others]
    if not appended:  # the write was committed before
        others = [path for each in write.by_partition for path in staged_in(partition_path(store.root, each))]
    known = None if write.transaction is None else store.image.transactional_ids.get(write.transaction.transactional_id)
    fenced = () if known is None else known.fenced  # of a batch write these are write ids

    def is_dead(write_id: str) -> bool:
        return write_id == write.write_id or write_id in fenced or is_superseded(write_id, by=write.write_id)

    remove_writes(others, is_dead, fs)
    if others:
        retention_ms = broker_config(store.image).staging_retention_ms
        with contextlib.suppress(OSError):
            now_ns = file_system_time_ns(store.root, fs)
            remove_abandoned(store.root, others, now_ns=now_ns, retention_ms=retention_ms, fs=fs)
