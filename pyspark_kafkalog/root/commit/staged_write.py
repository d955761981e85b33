"""The commit of a write: makes the staged records of any partitions readable atomically.

On a file system, where tasks have staged files:

    lock the root; refresh the image
    admit      a write that has been committed before ends here; a fenced incarnation or a lower version raises an error
    append     the staged files to the partitions' logs, which are flushed; and publish (open_logs.py)
    unlock; remove the staged files

A crash before the publish leaves bytes above the high watermark, which are invisible and which the next writer
truncates. A crash after the publish leaves staged files, which the next writer recognizes as committed or removes as
abandoned. Until the publish the staged files are unchanged, so a failed commit can be retried with them.

In an object store, where tasks have put data objects:

    settle     the small bodies of the tasks become one: inside the commit, or an object of their own
    commit     admit the write; records of the write and of each object. Base offsets and leader epochs are those of the
               newest image, so a commit that lost its race is made again with the same objects and other offsets

No lock is held. A crash before the commit leaves objects that no commit names: the clean-up deletes them.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import CommitConflictError, LogDirError, UnknownTopicError
from pyspark_kafkalog.metadata.extents import data_object_record
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, WriteCommitRecord, WrittenPartition
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns
from pyspark_kafkalog.metadata.store import MetadataStore, NewCommit
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.writes import (
    CommitResult,
    CommittedPartition,
    WriteTransaction,
    committed_before,
    producer_of,
    skip,
)
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition, partition_path
from pyspark_kafkalog.storage.objects.upload import WrittenObject, settle
from pyspark_kafkalog.storage.staged_file import (
    StagedFile,
    discard_staged,
    is_superseded,
    remove_abandoned,
    remove_writes,
    staged_in,
)
from pyspark_kafkalog.storage.staged_parts import StagedFiles, StagedPart
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:  # they import compiled code, which a write to an object store does not need
    from pyspark_kafkalog.root.commit.open_logs import FileCommits, OpenLogs
    from pyspark_kafkalog.storage.log.unified_log import UnifiedLog


@dataclass(frozen=True, slots=True)
class _Write:
    """A write to be committed: its id, and its transaction if it has one."""

    write_id: str
    transaction: WriteTransaction | None

    @classmethod
    def of(cls, staged: Sequence[StagedFile | WrittenObject], transaction: WriteTransaction | None) -> _Write:
        return cls(staged[0].write_id if staged else uuid.uuid4().hex, transaction)

    def earlier_result(self, metadata: MetadataStore) -> CommitResult | None:
        """The result if an earlier call, which raised an error, has committed the write."""
        earlier = metadata.find_commit(self.write_id)
        return None if earlier is None else CommitResult(earlier.base_offset, (), is_duplicate=True)

    def skipped_result(self, image: MetadataImage, metadata: MetadataStore) -> CommitResult | None:
        """The result if the transaction's version has been committed; the commit is durable then.

        Raises ProducerFencedError if a later incarnation has taken over the transactional id, LowerVersionError if a
        later version has been committed.
        """
        transaction = self.transaction
        if transaction is None:
            return None
        known = committed_before(image, transaction, metadata.log)
        if known is not None:
            # The writer may have been killed after publishing the commit and before making its name durable.
            metadata.sync()
            return skip(transaction, known, metadata.log)
        producer_of(image, transaction.transactional_id, transaction.incarnation)
        return None

    def records(self, image: MetadataImage, committed: Sequence[CommittedPartition]) -> list[MetadataRecord]:
        """The records that tell what the write has appended."""
        written = tuple(
            WrittenPartition(
                topic_id=image.topic(each.topic_partition.topic).topic_id,
                partition=each.topic_partition.partition,
                first_offset=each.first_offset,
                records=each.records,
                bytes=each.bytes,
            )
            for each in committed
        )
        transaction = self.transaction
        if transaction is None:
            return [WriteCommitRecord(write_id=self.write_id, partitions=written)]
        producer = producer_of(image, transaction.transactional_id, transaction.incarnation)
        commit = WriteCommitRecord(
            write_id=self.write_id,
            partitions=written,
            transactional_id=transaction.transactional_id,
            transaction_version=transaction.version,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            incarnation=transaction.incarnation,
        )
        return [*producer.records, commit]


# On a file system


def only_files(staged: Sequence[StagedFile | WrittenObject]) -> list[StagedFile]:
    """`staged`, which must be files. Raises LogDirError for data objects."""
    files = [each for each in staged if isinstance(each, StagedFile)]
    if len(files) != len(staged):
        raise LogDirError("expected staged files, found data objects: the write was planned for an object store")
    return files


def commit_files(
    commits: FileCommits, staged: Sequence[StagedFile], transaction: WriteTransaction | None
) -> CommitResult:
    """Append the staged files, in the given order for each partition, publish the commit, and remove the files.

    `commits` is made for staged files; it is closed afterwards.

    If the version of `transaction` has been committed, or this write by an earlier call that raised an error, nothing
    is appended and the result's `is_duplicate` is true. If this raises, the files remain and the same commit can be
    retried.

    Raises FollowingRootError if the root follows a leader, UnknownTopicError for a topic that has been deleted since,
    ProducerFencedError if a later incarnation has taken over the transactional id, LowerVersionError if a later version
    of it has been committed, CommitConflictError if another process wrote to the same partitions without the lock,
    CommitStateUnknownError as `MetadataStore.commit`.
    """
    root, write = commits.root, _Write.of(staged, transaction)
    with StagedFiles(root.path, staged) as files:
        appends = [_StagedAppend(each) for each in files.parts()]
        result = CommitResult(None, ())
        if appends or transaction is not None:
            with contextlib.closing(commits), commits.locked(), commits.directories:
                image = commits.begin()
                known = write.earlier_result(commits.store) or write.skipped_result(image, commits.store)
                if known is None:
                    _check_topics(image, staged)
                    known = _append(commits, image, write, appends)
                result = known
    discard_staged(root.path, staged, commits.fs)
    if result.is_duplicate:
        others = [path for each in appends for path in staged_in(partition_path(root.path, each.topic_partition))]
    else:
        others = [path for each in appends for path in each.others]
    _remove_leftovers(commits, write, others)
    return result


class _StagedAppend:
    """The append of staged batches to one partition. See `PartitionAppend`.

    `others` are staged files of other writes in the partition's directory.
    """

    def __init__(self, staged: StagedPart) -> None:
        self.topic_partition = staged.topic_partition
        self.size_bytes = staged.size_bytes
        self.others: list[Path] = []
        self._staged = staged

    def append_to(self, logs: OpenLogs, image: MetadataImage) -> UnifiedLog:
        own = self._staged.own_names
        opened = logs.open(image, self.topic_partition, staged=own)
        log = opened.log
        # Only after resuming, which removes files that are already committed.
        log.append_staged(self._staged, leader_epoch=opened.leader_epoch)
        self.others = [log.directory / name for name in log.staged if name not in own]
        return log

    def state_of(self, log: UnifiedLog) -> LogState:
        return log.state()

    def committed(self, before: LogState, after: LogState) -> CommittedPartition:
        return CommittedPartition(
            self.topic_partition,
            before.log_end_offset,
            after.log_end_offset,
            records=self._staged.records_count,
            bytes=self.size_bytes,
        )


def _check_topics(image: MetadataImage, staged: Sequence[StagedFile]) -> None:
    """Raise UnknownTopicError if a topic was deleted since: another one of its name does not get the records."""
    for topic, topic_id in {(each.topic_partition.topic, each.topic_id) for each in staged}:
        if image.topic(topic).topic_id != topic_id and topic_id:
            raise UnknownTopicError(
                f"topic {topic!r} was deleted and created again since the write began: expected the id {topic_id}, "
                f"found {image.topic(topic).topic_id}; write the records again if they belong to the new topic"
            )


def _append(
    commits: FileCommits, image: MetadataImage, write: _Write, appends: Sequence[_StagedAppend]
) -> CommitResult:
    committed: list[CommittedPartition] = []

    def state(of: TopicPartition) -> LogState:
        return image.partition(of.topic, of.partition).state

    def check_unchanged(newest: MetadataImage) -> None:
        for each in appends:
            of = each.topic_partition
            if newest.state_of(of, image.topic(of.topic).topic_id) != state(of):
                raise CommitConflictError(
                    f"{of}: another writer changed the partition without the root's lock; run this again"
                )
        if write.transaction is not None:
            name = write.transaction.transactional_id
            if newest.transactional_ids.get(name) != image.transactional_ids.get(name):
                raise CommitConflictError(
                    f"transactional id {name!r}: another writer used it without the root's lock; write again"
                )

    def records(newest: MetadataImage, states: Mapping[TopicPartition, LogState]) -> list[MetadataRecord]:
        committed[:] = [each.committed(state(each.topic_partition), states[each.topic_partition]) for each in appends]
        changed = (
            partition_state_record(newest.topic(of.topic).topic_id, of.partition, after) for of, after in states.items()
        )
        return [*write.records(newest, committed), *changed]

    outcome = commits.append_and_publish(image, appends, records, key=write.write_id, check_unchanged=check_unchanged)
    return CommitResult(None if outcome.commit is None else outcome.commit.base_offset, tuple(committed))


def _remove_leftovers(commits: FileCommits, write: _Write, others: Sequence[Path]) -> None:
    """Remove the staged files of the write's partitions that no commit will take (storage/staged_file.py)."""
    root, image, fs = commits.root, commits.store.image, commits.fs
    known = None if write.transaction is None else image.transactional_ids.get(write.transaction.transactional_id)
    fenced = () if known is None else known.fenced  # of a batch write these are write ids

    def is_dead(write_id: str) -> bool:
        return write_id == write.write_id or write_id in fenced or is_superseded(write_id, by=write.write_id)

    remove_writes(others, is_dead, fs)
    if others:
        retention_ms = root.configs.broker(image).staging_retention_ms
        with contextlib.suppress(OSError):
            now_ns = file_system_time_ns(root.path, fs)
            remove_abandoned(root.path, others, now_ns=now_ns, retention_ms=retention_ms, fs=fs)


# In an object store


def commit_objects(
    metadata: MetadataStore, store: ObjectStore, staged: Sequence[WrittenObject], transaction: WriteTransaction | None
) -> CommitResult:
    """Append the batches of the objects, in the given order for each partition, in one commit.

    If the version of `transaction` has been committed, or this write by an earlier call that raised an error, nothing
    is appended and the result's `is_duplicate` is true. If this raises, the same commit can be retried.

    Raises as `commit_files`; also InvalidRecordError if the objects are older than the staging horizon,
    ObjectStoreError.
    """
    if not staged and transaction is None:
        return CommitResult(None, ())
    write = _Write.of(staged, transaction)
    earlier = write.earlier_result(metadata)
    if earlier is not None:
        return earlier
    objects = settle(store, staged)
    skipped: CommitResult | None = None
    committed: tuple[CommittedPartition, ...] = ()

    def build(image: MetadataImage) -> list[MetadataRecord]:
        nonlocal skipped, committed
        skipped = write.skipped_result(image, metadata)
        if skipped is not None:
            return []
        committed = _committed(image, objects)
        return [*write.records(image, committed), *map(data_object_record, objects)]

    outcome = metadata.make(NewCommit(build=build, operation="write", key=write.write_id))
    if outcome.commit is None:
        return skipped or CommitResult(None, ())
    return CommitResult(outcome.commit.base_offset, committed)


def _committed(image: MetadataImage, objects: Sequence[WrittenObject]) -> tuple[CommittedPartition, ...]:
    """The range of each partition that the objects' runs get after `image`, ordered by partition."""
    ranges: dict[TopicPartition, CommittedPartition] = {}
    for each in objects:
        for run in each.runs:
            name = image.topic_names.get(run.topic_id)
            if name is None:
                raise UnknownTopicError(
                    f"the topic with the id {run.topic_id} ({', '.join(sorted(each.topics))}) was deleted since the "
                    "write began; write its records again if they belong to a topic created under the name since"
                )
            topic_partition = TopicPartition(name, run.partition)
            first_offset = image.partition(name, run.partition).state.log_end_offset
            before = ranges.get(topic_partition)
            if before is None:
                before = CommittedPartition(topic_partition, first_offset, first_offset, 0, 0)
            ranges[topic_partition] = CommittedPartition(
                topic_partition,
                before.first_offset,
                before.next_offset + run.offsets_count,
                before.records + run.records_count,
                before.bytes + run.size_bytes,
            )
    return tuple(ranges[each] for each in sorted(ranges))
