"""The commit of a write to a root on an object store: one commit, which names the data objects of all tasks.

    settle     the small bodies of the tasks become one: inside the commit, or an object of their own
    commit     records of the write and of each object; base offsets and leader epochs are those of the newest image,
               so a commit that lost its race is made again with the same objects and other offsets

No lock is held. A crash before the commit leaves objects that no commit names: the clean-up deletes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_kafkalog.errors import CommitConflictError, UnknownTopicError
from pyspark_kafkalog.metadata.commit_log import CommitLog
from pyspark_kafkalog.metadata.extents import data_object_record
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, WriteCommitRecord, WrittenPartition
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.write_transaction import (
    CommitResult,
    CommittedPartition,
    WriteTransaction,
    committed_before,
    producer_of,
    skip,
)
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.upload import WrittenObject, settle

_OPERATION = "write"


@dataclass(slots=True)
class _Write:
    """A write to be committed to `log`; `result` and `committed` are of the last attempt to build its commit."""

    write_id: str
    objects: Sequence[WrittenObject]
    transaction: WriteTransaction | None
    expected_ends: Mapping[TopicPartition, int]
    log: CommitLog
    result: CommitResult | None = None
    committed: tuple[CommittedPartition, ...] = field(default=())

    def build(self, image: MetadataImage) -> list[MetadataRecord]:
        """The records of the commit after `image`; none if the transaction's version has been committed."""
        self.result = None
        transaction = self.transaction
        if transaction is not None:
            known = committed_before(image, transaction, self.log)
            if known is not None:
                self.result = skip(transaction, known, self.log)
                return []
        self.committed = _committed(image, self.objects)
        for each in self.committed:
            expected = self.expected_ends.get(each.topic_partition, each.first_offset)
            if each.first_offset != expected:
                raise CommitConflictError(
                    f"{each.topic_partition}: expected the log to end at {expected}, found {each.first_offset}: "
                    "another writer has changed what this change was made from; run this again"
                )
        records = self._write_records(image)
        return [*records, *map(data_object_record, self.objects)]

    def _write_records(self, image: MetadataImage) -> list[MetadataRecord]:
        written = tuple(
            WrittenPartition(
                topic_id=image.topic(each.topic_partition.topic).topic_id,
                partition=each.topic_partition.partition,
                first_offset=each.first_offset,
                records=each.records,
                bytes=each.bytes,
            )
            for each in self.committed
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


def commit_objects(
    metadata: MetadataStore,
    store: ObjectStore,
    staged: Sequence[WrittenObject],
    transaction: WriteTransaction | None,
    expected_ends: Mapping[TopicPartition, int],
) -> CommitResult:
    """Append the batches of the objects, in the given order for each partition, in one commit.

    If the version of `transaction` has been committed, or this write by an earlier call that raised an error, nothing
    is appended and the result's `is_duplicate` is true. If this raises, the same commit can be retried. The partitions
    in `expected_ends` must still have these log ends.

    Raises UnknownTopicError for a topic that has been deleted since, ProducerFencedError if a later incarnation has
    taken over the transactional id, LowerVersionError if a later version of it has been committed, InvalidRecordError
    if the objects are older than the staging horizon, CommitConflictError, CommitStateUnknownError as
    `MetadataStore.commit`, ObjectStoreError.
    """
    if not staged and transaction is None:
        return CommitResult(None, ())
    write_id = staged[0].write_id if staged else uuid.uuid4().hex
    earlier = metadata.find_commit(write_id)
    if earlier is not None:
        return CommitResult(earlier.base_offset, (), is_duplicate=True)
    write = _Write(write_id, settle(store, staged), transaction, expected_ends, metadata.log)
    outcome = metadata.commit(write.build, operation=_OPERATION, key=write_id)
    if outcome.commit is None:
        return write.result or CommitResult(None, ())
    return CommitResult(outcome.commit.base_offset, write.committed)


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
