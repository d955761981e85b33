"""Requests and responses, as classes: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Generated from ../schemas/records.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.pieces import Records
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class PartitionProduceData(Message):
    """A struct of ProduceRequest."""

    index: int = 0
    records: Records | None = None
    unknown_tags: UnknownTags = ()


class TopicProduceData(Message):
    """A struct of ProduceRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partition_data": PartitionProduceData,
    }

    name: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partition_data: tuple[PartitionProduceData, ...] = ()
    unknown_tags: UnknownTags = ()


class ProduceRequest(ApiMessage):
    """ProduceRequest: api key 0, versions 3 to 13."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topic_data": TopicProduceData,
    }

    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: tuple[TopicProduceData, ...] = ()
    unknown_tags: UnknownTags = ()


class BatchIndexAndErrorMessage(Message):
    """A struct of ProduceResponse."""

    batch_index: int = 0
    batch_index_error_message: str | None = None
    unknown_tags: UnknownTags = ()


class LeaderIdAndEpoch(Message):
    """A struct of ProduceResponse."""

    leader_id: int = -1
    leader_epoch: int = -1
    unknown_tags: UnknownTags = ()


class PartitionProduceResponse(Message):
    """A struct of ProduceResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "record_errors": BatchIndexAndErrorMessage,
        "current_leader": LeaderIdAndEpoch,
    }

    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1  # from version 5
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()  # from version 8
    error_message: str | None = None  # from version 8
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()  # from version 10
    unknown_tags: UnknownTags = ()


class TopicProduceResponse(Message):
    """A struct of ProduceResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partition_responses": PartitionProduceResponse,
    }

    name: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partition_responses: tuple[PartitionProduceResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class ProduceResponseNodeEndpoint(Message):
    """A struct of ProduceResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    unknown_tags: UnknownTags = ()


class ProduceResponse(ApiMessage):
    """ProduceResponse: api key 0, versions 3 to 13."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "responses": TopicProduceResponse,
        "node_endpoints": ProduceResponseNodeEndpoint,
    }

    responses: tuple[TopicProduceResponse, ...] = ()
    throttle_time_ms: int = 0
    node_endpoints: tuple[ProduceResponseNodeEndpoint, ...] = ()  # from version 10
    unknown_tags: UnknownTags = ()


class ReplicaState(Message):
    """A struct of FetchRequest."""

    replica_id: int = -1
    replica_epoch: int = -1
    unknown_tags: UnknownTags = ()


class FetchPartition(Message):
    """A struct of FetchRequest."""

    partition: int = 0
    current_leader_epoch: int = -1  # from version 9
    fetch_offset: int = 0
    last_fetched_epoch: int = -1  # from version 12
    log_start_offset: int = -1  # from version 5
    partition_max_bytes: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 17
    high_watermark: int = 9223372036854775807  # from version 18
    unknown_tags: UnknownTags = ()


class FetchTopic(Message):
    """A struct of FetchRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": FetchPartition,
    }

    topic: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partitions: tuple[FetchPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class ForgottenTopic(Message):
    """A struct of FetchRequest."""

    topic: str = ""  # versions 7 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partitions: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class FetchRequest(ApiMessage):
    """FetchRequest: api key 1, versions 4 to 18."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "replica_state": ReplicaState,
        "topics": FetchTopic,
        "forgotten_topics_data": ForgottenTopic,
    }

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
    unknown_tags: UnknownTags = ()


class FetchResponseEpochEndOffset(Message):
    """A struct of FetchResponse."""

    epoch: int = -1
    end_offset: int = -1
    unknown_tags: UnknownTags = ()


class SnapshotId(Message):
    """A struct of FetchResponse."""

    end_offset: int = -1
    epoch: int = -1
    unknown_tags: UnknownTags = ()


class AbortedTransaction(Message):
    """A struct of FetchResponse."""

    producer_id: int = 0
    first_offset: int = 0
    unknown_tags: UnknownTags = ()


class PartitionData(Message):
    """A struct of FetchResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "diverging_epoch": FetchResponseEpochEndOffset,
        "current_leader": LeaderIdAndEpoch,
        "snapshot_id": SnapshotId,
        "aborted_transactions": AbortedTransaction,
    }

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
    unknown_tags: UnknownTags = ()


class FetchableTopicResponse(Message):
    """A struct of FetchResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": PartitionData,
    }

    topic: str = ""  # versions 0 to 12
    topic_id: str = ZERO_UUID  # from version 13
    partitions: tuple[PartitionData, ...] = ()
    unknown_tags: UnknownTags = ()


class FetchResponseNodeEndpoint(Message):
    """A struct of FetchResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    unknown_tags: UnknownTags = ()


class FetchResponse(ApiMessage):
    """FetchResponse: api key 1, versions 4 to 18."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "responses": FetchableTopicResponse,
        "node_endpoints": FetchResponseNodeEndpoint,
    }

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 7
    session_id: int = 0  # from version 7
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: tuple[FetchResponseNodeEndpoint, ...] = ()  # from version 16
    unknown_tags: UnknownTags = ()


class ListOffsetsPartition(Message):
    """A struct of ListOffsetsRequest."""

    partition_index: int = 0
    current_leader_epoch: int = -1  # from version 4
    timestamp: int = 0
    unknown_tags: UnknownTags = ()


class ListOffsetsTopic(Message):
    """A struct of ListOffsetsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": ListOffsetsPartition,
    }

    name: str = ""
    partitions: tuple[ListOffsetsPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class ListOffsetsRequest(ApiMessage):
    """ListOffsetsRequest: api key 2, versions 1 to 11."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": ListOffsetsTopic,
    }

    replica_id: int = 0
    isolation_level: int = 0  # from version 2
    topics: tuple[ListOffsetsTopic, ...] = ()
    timeout_ms: int = 0  # from version 10
    unknown_tags: UnknownTags = ()


class ListOffsetsPartitionResponse(Message):
    """A struct of ListOffsetsResponse."""

    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1  # from version 4
    unknown_tags: UnknownTags = ()


class ListOffsetsTopicResponse(Message):
    """A struct of ListOffsetsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": ListOffsetsPartitionResponse,
    }

    name: str = ""
    partitions: tuple[ListOffsetsPartitionResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class ListOffsetsResponse(ApiMessage):
    """ListOffsetsResponse: api key 2, versions 1 to 11."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": ListOffsetsTopicResponse,
    }

    throttle_time_ms: int = 0  # from version 2
    topics: tuple[ListOffsetsTopicResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetForLeaderPartition(Message):
    """A struct of OffsetForLeaderEpochRequest."""

    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0
    unknown_tags: UnknownTags = ()


class OffsetForLeaderTopic(Message):
    """A struct of OffsetForLeaderEpochRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetForLeaderPartition,
    }

    topic: str = ""
    partitions: tuple[OffsetForLeaderPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetForLeaderEpochRequest(ApiMessage):
    """OffsetForLeaderEpochRequest: api key 23, versions 2 to 4."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetForLeaderTopic,
    }

    replica_id: int = -2  # from version 3
    topics: tuple[OffsetForLeaderTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetForLeaderEpochResponseEpochEndOffset(Message):
    """A struct of OffsetForLeaderEpochResponse."""

    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1
    unknown_tags: UnknownTags = ()


class OffsetForLeaderTopicResult(Message):
    """A struct of OffsetForLeaderEpochResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetForLeaderEpochResponseEpochEndOffset,
    }

    topic: str = ""
    partitions: tuple[OffsetForLeaderEpochResponseEpochEndOffset, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetForLeaderEpochResponse(ApiMessage):
    """OffsetForLeaderEpochResponse: api key 23, versions 2 to 4."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetForLeaderTopicResult,
    }

    throttle_time_ms: int = 0
    topics: tuple[OffsetForLeaderTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()


class DeleteRecordsPartition(Message):
    """A struct of DeleteRecordsRequest."""

    partition_index: int = 0
    offset: int = 0
    unknown_tags: UnknownTags = ()


class DeleteRecordsTopic(Message):
    """A struct of DeleteRecordsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": DeleteRecordsPartition,
    }

    name: str = ""
    partitions: tuple[DeleteRecordsPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class DeleteRecordsRequest(ApiMessage):
    """DeleteRecordsRequest: api key 21, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DeleteRecordsTopic,
    }

    topics: tuple[DeleteRecordsTopic, ...] = ()
    timeout_ms: int = 0
    unknown_tags: UnknownTags = ()


class DeleteRecordsPartitionResult(Message):
    """A struct of DeleteRecordsResponse."""

    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class DeleteRecordsTopicResult(Message):
    """A struct of DeleteRecordsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": DeleteRecordsPartitionResult,
    }

    name: str = ""
    partitions: tuple[DeleteRecordsPartitionResult, ...] = ()
    unknown_tags: UnknownTags = ()


class DeleteRecordsResponse(ApiMessage):
    """DeleteRecordsResponse: api key 21, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DeleteRecordsTopicResult,
    }

    throttle_time_ms: int = 0
    topics: tuple[DeleteRecordsTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()
