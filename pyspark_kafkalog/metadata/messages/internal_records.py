"""The records of Kafka's internal topics as classes: those of the coordinators, keys, values and the messages in them,
and those of `__remote_log_metadata`, in which brokers note what they tiered.

Generated from schemas/group_coordinator.json, schemas/transaction_coordinator.json and schemas/remote_log_metadata.json
by scripts/make_messages.py: change the schemas, not this file. Only the messages that this package reads or writes are
here. Field types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID


class RemoteLogRecord(Message):
    """One record of the remote log metadata topic."""

    __slots__ = ()


class OffsetCommitKey(Message):
    """OffsetCommitKey: api key 1, version 0."""

    group: str = ""
    topic: str = ""
    partition: int = 0


class OffsetCommitValue(Message):
    """OffsetCommitValue: api key 1, versions 0 to 4."""

    offset: int = 0
    leader_epoch: int = -1  # from version 3
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = -1  # version 1
    topic_id: str = ZERO_UUID  # from version 4


class GroupMetadataKey(Message):
    """GroupMetadataKey: api key 2, version 0."""

    group: str = ""


class MemberMetadata(Message):
    member_id: str = ""
    group_instance_id: str | None = None  # from version 3
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int = -1  # from version 1
    session_timeout: int = 0
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadataValue(Message):
    """GroupMetadataValue: api key 2, versions 0 to 4."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = ""
    leader: str | None = ""
    current_state_timestamp: int = -1  # from version 2
    members: tuple[MemberMetadata, ...] = ()


class ConsumerGroupMetadataKey(Message):
    """ConsumerGroupMetadataKey: api key 3, version 0."""

    group_id: str = ""


class ConsumerGroupMetadataValue(Message):
    """ConsumerGroupMetadataValue: api key 3, version 0."""

    epoch: int = 0
    metadata_hash: int = 0


class ConsumerGroupPartitionMetadataKey(Message):
    """ConsumerGroupPartitionMetadataKey: api key 4, version 0."""

    group_id: str = ""


class ConsumerGroupMemberMetadataKey(Message):
    """ConsumerGroupMemberMetadataKey: api key 5, version 0."""

    group_id: str = ""
    member_id: str = ""


class ClassicProtocol(Message):
    name: str = ""
    metadata: bytes = b""


class ClassicMemberMetadata(Message):
    session_timeout_ms: int = 0
    supported_protocols: tuple[ClassicProtocol, ...] = ()


class ConsumerGroupMemberMetadataValue(Message):
    """ConsumerGroupMemberMetadataValue: api key 5, version 0."""

    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = ClassicMemberMetadata()


class ConsumerGroupTargetAssignmentMetadataKey(Message):
    """ConsumerGroupTargetAssignmentMetadataKey: api key 6, version 0."""

    group_id: str = ""


class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """ConsumerGroupTargetAssignmentMetadataValue: api key 6, version 0."""

    assignment_epoch: int = 0
    assignment_timestamp: int = 0


class ConsumerGroupTargetAssignmentMemberKey(Message):
    """ConsumerGroupTargetAssignmentMemberKey: api key 7, version 0."""

    group_id: str = ""
    member_id: str = ""


class ConsumerGroupTargetAssignmentMemberValueTopicPartition(Message):
    topic_id: str = ZERO_UUID
    partitions: tuple[int, ...] = ()


class ConsumerGroupTargetAssignmentMemberValue(Message):
    """ConsumerGroupTargetAssignmentMemberValue: api key 7, version 0."""

    topic_partitions: tuple[ConsumerGroupTargetAssignmentMemberValueTopicPartition, ...] = ()


class ConsumerGroupCurrentMemberAssignmentKey(Message):
    """ConsumerGroupCurrentMemberAssignmentKey: api key 8, version 0."""

    group_id: str = ""
    member_id: str = ""


class TopicPartitions(Message):
    topic_id: str = ZERO_UUID
    partitions: tuple[int, ...] = ()
    assignment_epochs: tuple[int, ...] | None = ()


class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """ConsumerGroupCurrentMemberAssignmentValue: api key 8, version 0."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: tuple[TopicPartitions, ...] = ()
    partitions_pending_revocation: tuple[TopicPartitions, ...] = ()


class ConsumerGroupRegularExpressionKey(Message):
    """ConsumerGroupRegularExpressionKey: api key 16, version 0."""

    group_id: str = ""
    regular_expression: str = ""


class ConsumerGroupRegularExpressionValue(Message):
    """ConsumerGroupRegularExpressionValue: api key 16, version 0."""

    topics: tuple[str, ...] = ()
    version: int = 0
    timestamp: int = 0


class ConsumerProtocolSubscriptionTopicPartition(Message):
    topic: str = ""
    partitions: tuple[int, ...] = ()


class ConsumerProtocolSubscription(Message):
    """ConsumerProtocolSubscription: versions 0 to 3."""

    topics: tuple[str, ...] = ()
    user_data: bytes | None = None
    owned_partitions: tuple[ConsumerProtocolSubscriptionTopicPartition, ...] = ()  # from version 1
    generation_id: int = -1  # from version 2
    rack_id: str | None = None  # from version 3


class ConsumerProtocolAssignmentTopicPartition(Message):
    topic: str = ""
    partitions: tuple[int, ...] = ()


class ConsumerProtocolAssignment(Message):
    """ConsumerProtocolAssignment: versions 0 to 3."""

    assigned_partitions: tuple[ConsumerProtocolAssignmentTopicPartition, ...] = ()
    user_data: bytes | None = None


class TransactionLogKey(Message):
    """TransactionLogKey: api key 0, version 0."""

    transactional_id: str = ""


class PartitionsSchema(Message):
    topic: str = ""
    partition_ids: tuple[int, ...] = ()


class TransactionLogValue(Message):
    """TransactionLogValue: api key 0, versions 0 to 1."""

    producer_id: int = 0
    previous_producer_id: int = -1  # from version 1
    next_producer_id: int = -1  # from version 1
    producer_epoch: int = 0
    next_producer_epoch: int = -1  # from version 1
    transaction_timeout_ms: int = 0
    transaction_status: int = 0
    transaction_partitions: tuple[PartitionsSchema, ...] | None = ()
    transaction_last_update_timestamp_ms: int = 0
    transaction_start_timestamp_ms: int = 0
    client_transaction_version: int = 0  # from version 1


#: All messages of the coordinators' records.
COORDINATOR_MESSAGES: Final = (
    OffsetCommitKey,
    OffsetCommitValue,
    GroupMetadataKey,
    GroupMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
    TransactionLogKey,
    TransactionLogValue,
)


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


#: All records of remote logs, in the order of the schemas.
REMOTE_LOG_RECORDS: Final = (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
