"""The follower's own logs as they are committed: where they end, in which leader epochs, and with which batch."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader
from pyspark_kafkalog.replication.partition_state import PartitionState, epochs_with_records
from pyspark_kafkalog.replication.root_batches import RootBatches, last_batch
from pyspark_kafkalog.root.leader_epochs import epochs_of
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class LocalLog:
    """A partition's log: its state to fetch from, its leader epochs with records, and the state as committed."""

    state: PartitionState
    epochs: tuple[EpochEntry, ...]
    committed: LogState


class LocalLogs:
    """The logs of the follower's root."""

    def __init__(self, root: NativeRoot) -> None:
        self._root = root

    def refresh(self) -> MetadataImage:
        """The newest image. Raises as NativeRoot.refresh."""
        self._root.refresh()
        return self._root.store.image

    def batch_at(self, topic_partition: TopicPartition, offset: int) -> BatchHeader | None:
        """The header of the first committed batch that ends above `offset`, as of the last refresh; None without one.

        Raises as `load`.
        """
        batches = RootBatches()
        try:
            of = self._root.partition(topic_partition.topic, topic_partition.partition)
            data = batches.read(of, offset, max_bytes=RECORD_BATCH_OVERHEAD_BYTES, may_exceed=True)
        finally:
            batches.close()
        return BatchHeader.unpack(data) if len(data) else None

    def load(self, topic_partition: TopicPartition, topic_id: str, *, is_verified: bool) -> LocalLog:
        """The log as of the last refresh. Unless `is_verified`, its last batch is to be compared with the leader's.

        Raises UnknownTopicError, CorruptIndexError, CorruptRecordError, ObjectStoreError, OSError.
        """
        committed = self._root.store.image.partition(topic_partition.topic, topic_partition.partition).state
        of = self._root.partition(topic_partition.topic, topic_partition.partition)
        end_offset = of.log_end_offset
        is_empty = of.log_start_offset == end_offset
        epochs = () if is_empty else epochs_with_records(epochs_of(self._root, of), end_offset)
        state = PartitionState(
            topic_partition=topic_partition,
            topic_id=topic_id,
            log_start_offset=of.log_start_offset,
            end_offset=end_offset,
            last_epoch=epochs[-1].epoch if epochs else -1,
            unverified=None if is_verified or is_empty else last_batch(of, end_offset),
        )
        return LocalLog(state, epochs, committed)
