"""The commit of a write: makes staged files of any partitions readable atomically.

    lock the root; refresh the image
    with a transaction: return if its version has been committed; fail if a later incarnation has taken over the id
    append the staged files to the partitions' logs and wait for the disk
    publish one commit with the partitions' new states and the ranges written
    unlock; remove the staged files

To append to a partition, its log is resumed from the image's state, which truncates the bytes of a crashed writer (and
then begins a new leader epoch). All partitions are flushed concurrently: data, indexes, names.

A crash before the publish leaves bytes above the high watermark, which are invisible and which the next writer
truncates; after an error `undo` truncates them, which frees the space. A crash after the publish leaves staged files,
which the next writer recognizes as committed or removes as abandoned. Until the publish the staged files are unchanged,
so a failed commit can be retried with them.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, KafkalogError, UnknownTopicError
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage, partition_state_record
from pyspark_kafkalog.metadata.messages.records import MetadataRecord, WrittenPartition, write_commit_record
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns, root_lock
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.directories import ensure_partition_directory
from pyspark_kafkalog.root.write_transaction import (
    CommitResult,
    CommittedPartition,
    WriteTransaction,
    is_committed,
    producer_of,
)
from pyspark_kafkalog.storage.filesystem import FileSystem, flush_earlier, note_unflushed
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.parallel import in_parallel
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


_LOG: Final = logging.getLogger(__name__)

#: Maximum of partitions with open files: each takes three of the 1024 descriptors that a process has by default.
_OPEN_PARTITIONS: Final = 64

#: From this size on, copying takes longer than passing the work to threads.
_PARALLEL_COPY_BYTES: Final = 8 << 20

StagedByPartition = Mapping[TopicPartition, Sequence[StagedFile]]


@dataclass(frozen=True, slots=True)
class Appended:
    """One partition after the append, before the commit; `others` are staged files of other writes in its directory."""

    topic_id: str
    before: LogState
    after: LogState
    committed: CommittedPartition
    others: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Open:
    """A partition's log with the staged files appended."""

    topic_partition: TopicPartition
    topic: TopicImage
    before: LogState
    staged: Sequence[StagedFile]
    log: UnifiedLog


@dataclass(frozen=True, slots=True)
class PartitionAppender:
    """Appends to partitions as they are in `image`. The caller holds the root's lock."""

    root: Path
    image: MetadataImage
    broker_config: BrokerConfig
    clock: Callable[[], int]
    fs: FileSystem

    def append(self, by_partition: StagedByPartition) -> list[Appended]:
        """Append all files, in the order of the partitions, and wait until they are on disk."""
        partitions = sorted(by_partition.items())
        appended: list[Appended] = []
        for at in range(0, len(partitions), _OPEN_PARTITIONS):
            appended += self._append_some(partitions[at : at + _OPEN_PARTITIONS])
        return appended

    def undo(self, newest: MetadataImage, by_partition: StagedByPartition) -> None:
        """Truncate the appended bytes of each partition that is unchanged in `newest`. Never raises.

        A failure in one partition does not affect the others: a partition of a topic that was re-created since staging
        may not even exist.
        """
        for each in by_partition:
            topic = newest.topics.get(each.topic)
            if topic is None or topic != self.image.topics.get(each.topic):
                continue
            try:
                state = newest.partition(each.topic, each.partition).state
                self._resume(each, topic, state).suspend()
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s: what a failed write appended is left to the next writer to cut: %s", each, error)

    def _append_some(self, partitions: Sequence[tuple[TopicPartition, Sequence[StagedFile]]]) -> list[Appended]:
        with contextlib.ExitStack() as closing:
            tasks = [partial(self._append_one, closing, *each) for each in partitions]
            size_bytes = sum(staged.size_bytes for _, files in partitions for staged in files)
            opened = in_parallel(tasks) if size_bytes >= _PARALLEL_COPY_BYTES else [task() for task in tasks]
            flushes = [partial(each.log.flush, is_last=True) for each in opened]
            if self.fs.waits_for_disk:
                in_parallel(flushes)
            else:
                for flush in flushes:
                    flush()
            return [self._describe(each) for each in opened]

    def _append_one(
        self, closing: contextlib.ExitStack, topic_partition: TopicPartition, staged: Sequence[StagedFile]
    ) -> _Open:
        topic = self.image.topic(topic_partition.topic)
        before = self.image.partition(topic_partition.topic, topic_partition.partition).state
        if before.log_end_offset == 0:
            ensure_partition_directory(self.root, topic_partition, topic.topic_id, self.fs)
        log = self._resume(topic_partition, topic, before)
        closing.callback(log.suspend)
        # Only after resuming, which removes files that are already committed.
        for each in staged:
            if each.name not in log.staged:
                raise UnknownTopicError(
                    f"{each.name}, staged for {topic_partition}, is gone: the topic was deleted, or the write was "
                    "given up or committed before; write again what is missing"
                )
        leader_epoch = before.leader_epoch + 1 if log.is_recovered else before.leader_epoch
        for each in staged:
            log.append_staged(each, leader_epoch=leader_epoch, durable=False)
        return _Open(topic_partition, topic, before, staged, log)

    def _resume(self, topic_partition: TopicPartition, topic: TopicImage, state: LogState) -> UnifiedLog:
        return UnifiedLog.resume(
            self.root / str(topic_partition),
            self.broker_config.log_config(topic.configs),
            state,
            clock=self.clock,
            fs=self.fs,
            producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
        )

    def _describe(self, done: _Open) -> Appended:
        after = done.log.state()
        committed = CommittedPartition(
            done.topic_partition,
            done.before.log_end_offset,
            after.log_end_offset,
            records=sum(each.records_count for each in done.staged),
            bytes=sum(each.size_bytes for each in done.staged),
        )
        own = {each.name for each in done.staged}
        others = tuple(done.log.directory / name for name in done.log.staged if name not in own)
        return Appended(done.topic.topic_id, done.before, after, committed, others)
