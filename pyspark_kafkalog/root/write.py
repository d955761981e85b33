"""The commit of a write: makes staged files of any partitions readable atomically.

    lock the root; refresh the image
    with a transaction: return if its version has been committed; fail if a later incarnation has taken over the id
    append to the partitions' logs and wait for the disk (partition_append.py)
    publish one commit with the partitions' new states and the ranges written
    unlock; remove the staged files

A crash before the publish leaves bytes above the high watermark, which are invisible and which the next writer
truncates. A crash after it leaves staged files, which the next writer recognizes as committed or removes as abandoned.
Until the publish the staged files are unchanged, so a failed commit can be retried with them.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.records import (
    MetadataRecord,
    WrittenPartition,
    partition_state_record,
    write_commit_record,
)
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns, root_lock
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.commit_result import CommitResult
from pyspark_kafkalog.root.partition_append import Appended, PartitionAppender, StagedByPartition
from pyspark_kafkalog.root.write_transaction import WriteTransaction, is_committed, producer_of
from pyspark_kafkalog.storage.filesystem import FileSystem, flush_earlier, note_unflushed
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging.cleanup import remove_abandoned
from pyspark_kafkalog.storage.staging.staged_file import StagedFile, discard_staged


@dataclass(frozen=True, slots=True)
class WriteCommitter:
    """Commits writes to the root of `store`; thread-safe.

    `unsure` maps the id of each write of this process whose publishing failed to the first offset of the commit log at
    which its commit may nevertheless be.
    """

    store: MetadataStore
    broker_config: Callable[[MetadataImage], BrokerConfig]
    clock: Callable[[], int]
    fs: FileSystem
    unsure: dict[str, int] = field(default_factory=dict)

    def commit(self, staged: Sequence[StagedFile], transaction: WriteTransaction | None) -> CommitResult:
        """Append the staged files, in the given order for each partition, publish the commit, and remove the files.

        If this raises, the files remain and the same commit can be retried.

        Raises UnknownTopicError for a topic that has been deleted since, ProducerFencedError if a later incarnation has
        taken over the transactional id, CommitConflictError if another process wrote to the same partitions without the
        lock, CommitStateUnknownError as `MetadataStore.commit`.
        """
        by_partition: dict[TopicPartition, list[StagedFile]] = {}
        for each in staged:
            if len(each.batches):
                by_partition.setdefault(each.topic_partition, []).append(each)
        appended: list[Appended] = []
        result = CommitResult(None, ())
        if by_partition or transaction is not None:
            write = _Write(staged[0].write_id if staged else uuid.uuid4().hex, transaction, by_partition)
            with root_lock(self.store.root, fs=self.fs):
                result = self._commit_locked(write, appended)
        discard_staged(self.store.root, staged, self.fs)
        self._clean_up(appended)
        return result

    def _commit_locked(self, write: _Write, appended: list[Appended]) -> CommitResult:
        image = self.store.refresh()
        earlier = self._earlier_result(write, image)
        if earlier is not None:
            return earlier
        write.check_admitted(image)
        if self.fs.waits_for_disk:
            flush_earlier(self.store.root, self.fs)
        else:
            note_unflushed(self.store.root, self.fs)
        appender = PartitionAppender(self.store.root, image, self.broker_config(image), self.clock, self.fs)
        try:
            appended += appender.append(write.by_partition)
            self.unsure[write.write_id] = image.next_offset
            outcome = self.store.commit(lambda newest: write.records(image, newest, appended), operation="write")
        except (CommitConflictError, CommitStateUnknownError):
            raise
        except BaseException:
            with contextlib.suppress(KafkalogError, OSError):
                appender.undo(self.store.refresh(), write.by_partition)
            raise
        del self.unsure[write.write_id]
        commit_offset = None if outcome.commit is None else outcome.commit.base_offset
        return CommitResult(commit_offset, tuple(each.committed for each in appended))

    def _earlier_result(self, write: _Write, image: MetadataImage) -> CommitResult | None:
        """The result of an earlier attempt of this write, found by its transaction or by `unsure`; None if none."""
        if write.transaction is not None and is_committed(image, write.transaction):
            known = image.transactional_ids[write.transaction.transactional_id]
            same = known.version == write.transaction.version
            # The writer may have been killed after publishing the commit and before making its name durable.
            self.store.log.sync()
            return CommitResult(known.last_commit_offset if same else None, (), is_duplicate=True)
        since = self.unsure.get(write.write_id)
        if since is None:
            return None
        for commit in self.store.log.read_from(since):
            for each in commit.records:
                if each.type == "WriteCommitRecord" and each.fields["writeId"] == write.write_id:
                    self.store.log.sync()
                    del self.unsure[write.write_id]
                    return CommitResult(commit.base_offset, (), is_duplicate=True)
        return None

    def _clean_up(self, appended: Sequence[Appended]) -> None:
        others = [path for each in appended for path in each.others]
        if others:
            retention_ms = self.broker_config(self.store.image).staging_retention_ms
            with contextlib.suppress(OSError):
                now_ns = file_system_time_ns(self.store.root, self.fs)
                remove_abandoned(self.store.root, others, now_ns=now_ns, retention_ms=retention_ms, fs=self.fs)


@dataclass(frozen=True, slots=True)
class _Write:
    """A write to be committed."""

    write_id: str
    transaction: WriteTransaction | None
    by_partition: StagedByPartition

    def check_admitted(self, image: MetadataImage) -> None:
        """Raise ProducerFencedError if a later incarnation has taken over the transactional id."""
        if self.transaction is not None:
            producer_of(image, self.transaction.transactional_id, self.transaction.incarnation)

    def records(
        self, image: MetadataImage, newest: MetadataImage, appended: Sequence[Appended]
    ) -> list[MetadataRecord]:
        """The commit's records. Raises CommitConflictError if `newest` differs from `image` in what they depend on."""
        self._check_unchanged(image, newest, appended)
        states = [
            partition_state_record(each.topic_id, each.committed.topic_partition.partition, each.after)
            for each in appended
        ]
        return [*self._write_records(newest, appended), *states]

    def _check_unchanged(self, image: MetadataImage, newest: MetadataImage, appended: Sequence[Appended]) -> None:
        for each in appended:
            where = each.committed.topic_partition
            topic = newest.topics.get(where.topic)
            if (
                topic is None
                or topic.topic_id != each.topic_id
                or topic.partitions[where.partition].state != each.before
            ):
                raise CommitConflictError(f"{where} was changed by another writer without the root's lock; write again")
        if self.transaction is not None:
            name = self.transaction.transactional_id
            if newest.transactional_ids.get(name) != image.transactional_ids.get(name):
                raise CommitConflictError(
                    f"transactional id {name!r} was used by another writer without the root's lock; write again"
                )

    def _write_records(self, newest: MetadataImage, appended: Sequence[Appended]) -> list[MetadataRecord]:
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
        if self.transaction is None:
            return [write_commit_record(write_id=self.write_id, partitions=written)]
        producer = producer_of(newest, self.transaction.transactional_id, self.transaction.incarnation)
        commit = write_commit_record(
            write_id=self.write_id,
            partitions=written,
            transactional_id=self.transaction.transactional_id,
            transaction_version=self.transaction.version,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            incarnation=self.transaction.incarnation,
        )
        return [*producer.records, commit]
