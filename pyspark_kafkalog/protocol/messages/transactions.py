"""Requests and responses, as classes: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit,
WriteTxnMarkers, DescribeProducers, DescribeTransactions, ListTransactions.

Generated from ../schemas/transactions.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class InitProducerIdRequest(ApiMessage):
    """InitProducerIdRequest: api key 22, versions 0 to 5."""

    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1  # from version 3
    producer_epoch: int = -1  # from version 3
    unknown_tags: UnknownTags = ()


class InitProducerIdResponse(ApiMessage):
    """InitProducerIdResponse: api key 22, versions 0 to 5."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    unknown_tags: UnknownTags = ()


class AddPartitionsToTxnTopic(Message):
    """A struct of AddPartitionsToTxnRequest."""

    name: str = ""
    partitions: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class AddPartitionsToTxnTransaction(Message):
    """A struct of AddPartitionsToTxnRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": AddPartitionsToTxnTopic,
    }

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class AddPartitionsToTxnRequest(ApiMessage):
    """AddPartitionsToTxnRequest: api key 24, versions 0 to 5."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "transactions": AddPartitionsToTxnTransaction,
        "v3_and_below_topics": AddPartitionsToTxnTopic,
    }

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = ()  # from version 4
    v3_and_below_transactional_id: str = ""  # versions 0 to 3
    v3_and_below_producer_id: int = 0  # versions 0 to 3
    v3_and_below_producer_epoch: int = 0  # versions 0 to 3
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = ()  # versions 0 to 3
    unknown_tags: UnknownTags = ()


class AddPartitionsToTxnPartitionResult(Message):
    """A struct of AddPartitionsToTxnResponse."""

    partition_index: int = 0
    partition_error_code: int = 0
    unknown_tags: UnknownTags = ()


class AddPartitionsToTxnTopicResult(Message):
    """A struct of AddPartitionsToTxnResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results_by_partition": AddPartitionsToTxnPartitionResult,
    }

    name: str = ""
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = ()
    unknown_tags: UnknownTags = ()


class AddPartitionsToTxnResult(Message):
    """A struct of AddPartitionsToTxnResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topic_results": AddPartitionsToTxnTopicResult,
    }

    transactional_id: str = ""
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()


class AddPartitionsToTxnResponse(ApiMessage):
    """AddPartitionsToTxnResponse: api key 24, versions 0 to 5."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results_by_transaction": AddPartitionsToTxnResult,
        "results_by_topic_v3_and_below": AddPartitionsToTxnTopicResult,
    }

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 4
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = ()  # from version 4
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = ()  # versions 0 to 3
    unknown_tags: UnknownTags = ()


class AddOffsetsToTxnRequest(ApiMessage):
    """AddOffsetsToTxnRequest: api key 25, versions 0 to 4."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""
    unknown_tags: UnknownTags = ()


class AddOffsetsToTxnResponse(ApiMessage):
    """AddOffsetsToTxnResponse: api key 25, versions 0 to 4."""

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class EndTxnRequest(ApiMessage):
    """EndTxnRequest: api key 26, versions 0 to 5."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False
    unknown_tags: UnknownTags = ()


class EndTxnResponse(ApiMessage):
    """EndTxnResponse: api key 26, versions 0 to 5."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1  # from version 5
    producer_epoch: int = -1  # from version 5
    unknown_tags: UnknownTags = ()


class TxnOffsetCommitRequestPartition(Message):
    """A struct of TxnOffsetCommitRequest."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # from version 2
    committed_metadata: str | None = ""
    unknown_tags: UnknownTags = ()


class TxnOffsetCommitRequestTopic(Message):
    """A struct of TxnOffsetCommitRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": TxnOffsetCommitRequestPartition,
    }

    name: str = ""  # versions 0 to 5
    topic_id: str = ZERO_UUID  # from version 6
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class TxnOffsetCommitRequest(ApiMessage):
    """TxnOffsetCommitRequest: api key 28, versions 0 to 6."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": TxnOffsetCommitRequestTopic,
    }

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id_or_member_epoch: int = -1  # from version 3
    member_id: str = ""  # from version 3
    group_instance_id: str | None = None  # from version 3
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class TxnOffsetCommitResponsePartition(Message):
    """A struct of TxnOffsetCommitResponse."""

    partition_index: int = 0
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class TxnOffsetCommitResponseTopic(Message):
    """A struct of TxnOffsetCommitResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": TxnOffsetCommitResponsePartition,
    }

    name: str = ""  # versions 0 to 5
    topic_id: str = ZERO_UUID  # from version 6
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = ()
    unknown_tags: UnknownTags = ()


class TxnOffsetCommitResponse(ApiMessage):
    """TxnOffsetCommitResponse: api key 28, versions 0 to 6."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": TxnOffsetCommitResponseTopic,
    }

    throttle_time_ms: int = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class WritableTxnMarkerTopic(Message):
    """A struct of WriteTxnMarkersRequest."""

    name: str = ""
    partition_indexes: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class WritableTxnMarker(Message):
    """A struct of WriteTxnMarkersRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": WritableTxnMarkerTopic,
    }

    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: tuple[WritableTxnMarkerTopic, ...] = ()
    coordinator_epoch: int = 0
    transaction_version: int = 0  # from version 2
    unknown_tags: UnknownTags = ()


class WriteTxnMarkersRequest(ApiMessage):
    """WriteTxnMarkersRequest: api key 27, versions 1 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "markers": WritableTxnMarker,
    }

    markers: tuple[WritableTxnMarker, ...] = ()
    unknown_tags: UnknownTags = ()


class WritableTxnMarkerPartitionResult(Message):
    """A struct of WriteTxnMarkersResponse."""

    partition_index: int = 0
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class WritableTxnMarkerTopicResult(Message):
    """A struct of WriteTxnMarkersResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": WritableTxnMarkerPartitionResult,
    }

    name: str = ""
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = ()
    unknown_tags: UnknownTags = ()


class WritableTxnMarkerResult(Message):
    """A struct of WriteTxnMarkersResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": WritableTxnMarkerTopicResult,
    }

    producer_id: int = 0
    topics: tuple[WritableTxnMarkerTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()


class WriteTxnMarkersResponse(ApiMessage):
    """WriteTxnMarkersResponse: api key 27, versions 1 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "markers": WritableTxnMarkerResult,
    }

    markers: tuple[WritableTxnMarkerResult, ...] = ()
    unknown_tags: UnknownTags = ()


class TopicRequest(Message):
    """A struct of DescribeProducersRequest."""

    name: str = ""
    partition_indexes: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeProducersRequest(ApiMessage):
    """DescribeProducersRequest: api key 61, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": TopicRequest,
    }

    topics: tuple[TopicRequest, ...] = ()
    unknown_tags: UnknownTags = ()


class ProducerState(Message):
    """A struct of DescribeProducersResponse."""

    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1
    unknown_tags: UnknownTags = ()


class PartitionResponse(Message):
    """A struct of DescribeProducersResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "active_producers": ProducerState,
    }

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()
    unknown_tags: UnknownTags = ()


class TopicResponse(Message):
    """A struct of DescribeProducersResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": PartitionResponse,
    }

    name: str = ""
    partitions: tuple[PartitionResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeProducersResponse(ApiMessage):
    """DescribeProducersResponse: api key 61, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": TopicResponse,
    }

    throttle_time_ms: int = 0
    topics: tuple[TopicResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeTransactionsRequest(ApiMessage):
    """DescribeTransactionsRequest: api key 65, version 0."""

    transactional_ids: tuple[str, ...] = ()
    unknown_tags: UnknownTags = ()


class TopicData(Message):
    """A struct of DescribeTransactionsResponse."""

    topic: str = ""
    partitions: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeTransactionsResponseTransactionState(Message):
    """A struct of DescribeTransactionsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": TopicData,
    }

    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: tuple[TopicData, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeTransactionsResponse(ApiMessage):
    """DescribeTransactionsResponse: api key 65, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "transaction_states": DescribeTransactionsResponseTransactionState,
    }

    throttle_time_ms: int = 0
    transaction_states: tuple[DescribeTransactionsResponseTransactionState, ...] = ()
    unknown_tags: UnknownTags = ()


class ListTransactionsRequest(ApiMessage):
    """ListTransactionsRequest: api key 66, versions 0 to 2."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter: int = -1  # from version 1
    transactional_id_pattern: str | None = None  # from version 2
    unknown_tags: UnknownTags = ()


class ListTransactionsResponseTransactionState(Message):
    """A struct of ListTransactionsResponse."""

    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""
    unknown_tags: UnknownTags = ()


class ListTransactionsResponse(ApiMessage):
    """ListTransactionsResponse: api key 66, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "transaction_states": ListTransactionsResponseTransactionState,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListTransactionsResponseTransactionState, ...] = ()
    unknown_tags: UnknownTags = ()
