"""Ending a transaction that a broker's producer left open: its abort marker, appended and committed.

    lock the root; refresh the image
    append a control batch with the marker to the partition's log; its transaction index gets an entry
    wait for the disk: data, indexes, names
    publish one commit with the partition's state: the last stable offset moves on to the next open transaction
    unlock

An adopted log has no coordinator that would do it. A crash before the publish leaves a marker above the high watermark,
which the next writer cuts. Source of the rules: kafka.server.KafkaApis.handleWriteTxnMarkersRequest, by way of
kafka-transactions --abort.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import CommitConflictError, OffsetOutOfRangeError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.own_root import OwnRoot
from pyspark_kafkalog.metadata.records import MetadataRecord, partition_state_record
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.plain import Record, encode_batch
from pyspark_kafkalog.storage.flush_mode import flush_earlier
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.producer_append import AppendOrigin, ProducerState
from pyspark_kafkalog.storage.unified_log import UnifiedLog

_OPERATION = "abort transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """A transaction that has been aborted: whose it was, where it began, where its marker is."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


def abort_transaction(root: OwnRoot, topic_partition: TopicPartition, first_offset: int) -> AbortedTransaction:
    """Abort the transaction that began at `first_offset` of the partition and is open, in one durable commit.

    Raises OffsetOutOfRangeError when there is none, UnknownTopicError, and what `MetadataStore.commit` does.
    """
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        topic = image.topic(topic_partition.topic)
        before = image.partition(topic_partition.topic, topic_partition.partition).state
        if before.first_unstable_offset < 0:
            raise _no_such_transaction(topic_partition, first_offset)
        if root.fs.waits_for_disk:
            flush_earlier(root.path, root.fs)
        with _resume(root, image, topic_partition, before) as log:
            producer = _open_transaction(log, topic_partition, first_offset)
            after = _append_marker(log, producer, before, root.clock())

            def build(newest: MetadataImage) -> list[MetadataRecord]:
                there = newest.topics.get(topic_partition.topic)
                if there is None or there != topic:
                    raise CommitConflictError(
                        f"{topic_partition} was changed by another writer without the root's lock; run this again"
                    )
                return [partition_state_record(topic.topic_id, topic_partition.partition, after)]

            root.store.commit(build, operation=_OPERATION)
    return AbortedTransaction(
        topic_partition=topic_partition,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        first_offset=first_offset,
        marker_offset=after.log_end_offset - 1,
        last_stable_offset=after.last_stable_offset,
    )


def _resume(root: OwnRoot, image: MetadataImage, where: TopicPartition, state: LogState) -> UnifiedLog:
    broker_config = root.broker_config()
    return UnifiedLog.resume(
        root.path / str(where),
        broker_config.log_config(image.topic(where.topic).configs),
        state,
        clock=root.clock,
        fs=root.fs,
        producer_id_expiration_ms=broker_config.producer_id_expiration_ms,
    )


def _open_transaction(log: UnifiedLog, where: TopicPartition, first_offset: int) -> ProducerState:
    for producer in log.producers.producers.values():
        if producer.current_txn_first_offset == first_offset:
            return producer
    raise _no_such_transaction(where, first_offset)


def _no_such_transaction(where: TopicPartition, first_offset: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"Could not find any open transactions starting at offset {first_offset} on partition {where}"
    )


def _append_marker(log: UnifiedLog, producer: ProducerState, before: LogState, now_ms: int) -> LogState:
    """Append the marker and wait for the disk; returns the log's state with it."""
    marker = EndTransactionMarker(
        control_type=ControlRecordType.ABORT, coordinator_epoch=max(producer.coordinator_epoch, 0)
    )
    key, value = build_control_record(marker)
    leader_epoch = before.leader_epoch + 1 if log.is_recovered else before.leader_epoch
    data = encode_batch(
        [Record(offset=log.log_end_offset, timestamp_ms=now_ms, key=key, value=value)],
        leader_epoch=leader_epoch,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    log.append_as_leader(data, leader_epoch=leader_epoch, origin=AppendOrigin.COORDINATOR)
    log.names_changed = True  # the transaction index is made with its first entry
    log.flush(is_last=True)
    return log.state()
