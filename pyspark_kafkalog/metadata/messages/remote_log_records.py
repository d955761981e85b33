"""The records of `__remote_log_metadata`, in which brokers note what they tiered, as classes.

Generated from schemas/remote_log_metadata.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID


class RemoteLogRecord(Message):
    """One record of the remote log metadata topic."""

    __slots__ = ()


class TopicIdPartitionEntry(Message):
    name: str = ""
    id: str = ZERO_UUID
    partition: int = 0


class RemoteLogSegmentIdEntry(Message):
    topic_id_partition: TopicIdPartitionEntry = TopicIdPartitionEntry()
    id: str = ZERO_UUID


class SegmentLeaderEpochEntry(Message):
    leader_epoch: int = 0
    offset: int = 0


class RemoteLogSegmentMetadataRecord(RemoteLogRecord):
    """RemoteLogSegmentMetadataRecord: api key 0, version 0."""

    remote_log_segment_id: RemoteLogSegmentIdEntry = RemoteLogSegmentIdEntry()
    start_offset: int = 0
    end_offset: int = 0
    broker_id: int = 0
    max_timestamp_ms: int = 0
    event_timestamp_ms: int = 0
    segment_leader_epochs: tuple[SegmentLeaderEpochEntry, ...] = ()
    segment_size_in_bytes: int = 0
    custom_metadata: bytes | None = None
    remote_log_segment_state: int = 0
    txn_index_empty: bool = False


class RemoteLogSegmentMetadataUpdateRecord(RemoteLogRecord):
    """RemoteLogSegmentMetadataUpdateRecord: api key 1, version 0."""

    remote_log_segment_id: RemoteLogSegmentIdEntry = RemoteLogSegmentIdEntry()
    broker_id: int = 0
    event_timestamp_ms: int = 0
    custom_metadata: bytes | None = None
    remote_log_segment_state: int = 0


class RemotePartitionDeleteMetadataRecord(RemoteLogRecord):
    """RemotePartitionDeleteMetadataRecord: api key 2, version 0."""

    topic_id_partition: TopicIdPartitionEntry = TopicIdPartitionEntry()
    broker_id: int = 0
    event_timestamp_ms: int = 0
    remote_partition_delete_state: int = 0


#: All types, in the order of the schemas.
REMOTE_LOG_RECORDS: Final = (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
