"""Requests and responses, as classes: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Generated from ../schemas/records.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, Records
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class PartitionProduceData(Message):
    index: int = 0
    records: Records | None = None


class TopicProduceData(Message):
    name: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partition_data: tuple[PartitionProduceData, ...] = ()


class ProduceRequest(ApiMessage):
    """ProduceRequest: api key 0, versions 3 to 13."""

    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: tuple[TopicProduceData, ...] = ()


class BatchIndexAndErrorMessage(Message):
    batch_index: int = 0
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Message):
    leader_id: int = -1
    leader_epoch: int = -1


class PartitionProduceResponse(Message):
    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1  # from version 5
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()  # from version 8
    error_message: str | None = None  # from version 8
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()  # from version 10


class TopicProduceResponse(Message):
    name: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partition_responses: tuple[PartitionProduceResponse, ...] = ()


class ProduceResponseNodeEndpoint(Message):
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class ProduceResponse(ApiMessage):
    """ProduceResponse: api key 0, versions 3 to 13."""

    responses: tuple[TopicProduceResponse, ...] = ()
    throttle_time_ms: int = 0
    node_endpoints: tuple[ProduceResponseNodeEndpoint, ...] = ()  # from version 10


class ReplicaState(Message):
    replica_id: int = -1
    replica_epoch: int = -1


class FetchPartition(Message):
    partition: int = 0
    current_leader_epoch: int = -1  # from version 9
    fetch_offset: int = 0
    last_fetched_epoch: int = -1  # from version 12
    log_start_offset: int = -1  # from version 5
    partition_max_bytes: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 17
    high_watermark: int = 9223372036854775807  # from version 18


class FetchTopic(Message):
    topic: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partitions: tuple[FetchPartition, ...] = ()


class ForgottenTopic(Message):
    topic: str = ""  # versions 7 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partitions: tuple[int, ...] = ()


class FetchRequest(ApiMessage):
    """FetchRequest: api key 1, versions 4 to 18."""

    cluster_id: str | None = None  # from version 12
    replica_id: int = -1  # versions 0 to 14
    replica_state: ReplicaState = ReplicaState()  # from version 15
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0  # from version 7
    session_epoch: int = -1  # from version 7
    topics: tuple[FetchTopic, ...] = ()
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()  # from version 7
    rack_id: str = ""  # from version 11


class FetchResponseEpochEndOffset(Message):
    epoch: int = -1
    end_offset: int = -1


class SnapshotId(Message):
    end_offset: int = -1
    epoch: int = -1


class AbortedTransaction(Message):
    producer_id: int = 0
    first_offset: int = 0


class PartitionData(Message):
    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1  # from version 5
    diverging_epoch: FetchResponseEpochEndOffset = FetchResponseEpochEndOffset()  # from version 12
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()  # from version 12
    snapshot_id: SnapshotId = SnapshotId()  # from version 12
    aborted_transactions: tuple[AbortedTransaction, ...] | None = ()
    preferred_read_replica: int = -1  # from version 11
    records: Records | None = None


class FetchableTopicResponse(Message):
    topic: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partitions: tuple[PartitionData, ...] = ()


class FetchResponseNodeEndpoint(Message):
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class FetchResponse(ApiMessage):
    """FetchResponse: api key 1, versions 4 to 18."""

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 7
    session_id: int = 0  # from version 7
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: tuple[FetchResponseNodeEndpoint, ...] = ()  # from version 16


class ListOffsetsPartition(Message):
    partition_index: int = 0
    current_leader_epoch: int = -1  # from version 4
    timestamp: int = 0


class ListOffsetsTopic(Message):
    name: str = ""
    partitions: tuple[ListOffsetsPartition, ...] = ()


class ListOffsetsRequest(ApiMessage):
    """ListOffsetsRequest: api key 2, versions 1 to 11."""

    replica_id: int = 0
    isolation_level: int = 0  # from version 2
    topics: tuple[ListOffsetsTopic, ...] = ()
    timeout_ms: int = 0  # from version 10


class ListOffsetsPartitionResponse(Message):
    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1  # from version 4


class ListOffsetsTopicResponse(Message):
    name: str = ""
    partitions: tuple[ListOffsetsPartitionResponse, ...] = ()


class ListOffsetsResponse(ApiMessage):
    """ListOffsetsResponse: api key 2, versions 1 to 11."""

    throttle_time_ms: int = 0  # from version 2
    topics: tuple[ListOffsetsTopicResponse, ...] = ()


class OffsetForLeaderPartition(Message):
    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0


class OffsetForLeaderTopic(Message):
    topic: str = ""
    partitions: tuple[OffsetForLeaderPartition, ...] = ()


class OffsetForLeaderEpochRequest(ApiMessage):
    """OffsetForLeaderEpochRequest: api key 23, versions 2 to 4."""

    replica_id: int = -2  # from version 3
    topics: tuple[OffsetForLeaderTopic, ...] = ()


class OffsetForLeaderEpochResponseEpochEndOffset(Message):
    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderTopicResult(Message):
    topic: str = ""
    partitions: tuple[OffsetForLeaderEpochResponseEpochEndOffset, ...] = ()


class OffsetForLeaderEpochResponse(ApiMessage):
    """OffsetForLeaderEpochResponse: api key 23, versions 2 to 4."""

    throttle_time_ms: int = 0
    topics: tuple[OffsetForLeaderTopicResult, ...] = ()


class DeleteRecordsPartition(Message):
    partition_index: int = 0
    offset: int = 0


class DeleteRecordsTopic(Message):
    name: str = ""
    partitions: tuple[DeleteRecordsPartition, ...] = ()


class DeleteRecordsRequest(ApiMessage):
    """DeleteRecordsRequest: api key 21, versions 0 to 2."""

    topics: tuple[DeleteRecordsTopic, ...] = ()
    timeout_ms: int = 0


class DeleteRecordsPartitionResult(Message):
    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0


class DeleteRecordsTopicResult(Message):
    name: str = ""
    partitions: tuple[DeleteRecordsPartitionResult, ...] = ()


class DeleteRecordsResponse(ApiMessage):
    """DeleteRecordsResponse: api key 21, versions 0 to 2."""

    throttle_time_ms: int = 0
    topics: tuple[DeleteRecordsTopicResult, ...] = ()
