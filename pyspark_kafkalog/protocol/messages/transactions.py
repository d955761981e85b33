"""Requests and responses, as classes: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit,
WriteTxnMarkers, DescribeProducers, DescribeTransactions, ListTransactions.

Generated from ../schemas/transactions.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class InitProducerIdRequest(ApiMessage):
    """InitProducerIdRequest: api key 22, versions 0 to 5."""

    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1  # from version 3
    producer_epoch: int = -1  # from version 3


class InitProducerIdResponse(ApiMessage):
    """InitProducerIdResponse: api key 22, versions 0 to 5."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0


class AddPartitionsToTxnTopic(Message):
    name: str = ""
    partitions: tuple[int, ...] = ()


class AddPartitionsToTxnTransaction(Message):
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...] = ()


class AddPartitionsToTxnRequest(ApiMessage):
    """AddPartitionsToTxnRequest: api key 24, versions 0 to 5."""

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = ()  # from version 4
    v3_and_below_transactional_id: str = ""  # versions 0 to 3
    v3_and_below_producer_id: int = 0  # versions 0 to 3
    v3_and_below_producer_epoch: int = 0  # versions 0 to 3
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = ()  # versions 0 to 3


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: int = 0
    partition_error_code: int = 0


class AddPartitionsToTxnTopicResult(Message):
    name: str = ""
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = ()


class AddPartitionsToTxnResult(Message):
    transactional_id: str = ""
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = ()


class AddPartitionsToTxnResponse(ApiMessage):
    """AddPartitionsToTxnResponse: api key 24, versions 0 to 5."""

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 4
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = ()  # from version 4
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = ()  # versions 0 to 3


class AddOffsetsToTxnRequest(ApiMessage):
    """AddOffsetsToTxnRequest: api key 25, versions 0 to 4."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(ApiMessage):
    """AddOffsetsToTxnResponse: api key 25, versions 0 to 4."""

    throttle_time_ms: int = 0
    error_code: int = 0


class EndTxnRequest(ApiMessage):
    """EndTxnRequest: api key 26, versions 0 to 5."""

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False


class EndTxnResponse(ApiMessage):
    """EndTxnResponse: api key 26, versions 0 to 5."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1  # from version 5
    producer_epoch: int = -1  # from version 5


class TxnOffsetCommitRequestPartition(Message):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # from version 2
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Message):
    name: str = ""  # versions 0 to 5
    topic_id: str = ZERO_UUID  # from version 6
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = ()


class TxnOffsetCommitRequest(ApiMessage):
    """TxnOffsetCommitRequest: api key 28, versions 0 to 6."""

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id_or_member_epoch: int = -1  # from version 3
    member_id: str = ""  # from version 3
    group_instance_id: str | None = None  # from version 3
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = ()


class TxnOffsetCommitResponsePartition(Message):
    partition_index: int = 0
    error_code: int = 0


class TxnOffsetCommitResponseTopic(Message):
    name: str = ""  # versions 0 to 5
    topic_id: str = ZERO_UUID  # from version 6
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = ()


class TxnOffsetCommitResponse(ApiMessage):
    """TxnOffsetCommitResponse: api key 28, versions 0 to 6."""

    throttle_time_ms: int = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = ()


class WritableTxnMarkerTopic(Message):
    name: str = ""
    partition_indexes: tuple[int, ...] = ()


class WritableTxnMarker(Message):
    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: tuple[WritableTxnMarkerTopic, ...] = ()
    coordinator_epoch: int = 0
    transaction_version: int = 0  # from version 2


class WriteTxnMarkersRequest(ApiMessage):
    """WriteTxnMarkersRequest: api key 27, versions 1 to 2."""

    markers: tuple[WritableTxnMarker, ...] = ()


class WritableTxnMarkerPartitionResult(Message):
    partition_index: int = 0
    error_code: int = 0


class WritableTxnMarkerTopicResult(Message):
    name: str = ""
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = ()


class WritableTxnMarkerResult(Message):
    producer_id: int = 0
    topics: tuple[WritableTxnMarkerTopicResult, ...] = ()


class WriteTxnMarkersResponse(ApiMessage):
    """WriteTxnMarkersResponse: api key 27, versions 1 to 2."""

    markers: tuple[WritableTxnMarkerResult, ...] = ()


class TopicRequest(Message):
    name: str = ""
    partition_indexes: tuple[int, ...] = ()


class DescribeProducersRequest(ApiMessage):
    """DescribeProducersRequest: api key 61, version 0."""

    topics: tuple[TopicRequest, ...] = ()


class ProducerState(Message):
    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1


class PartitionResponse(Message):
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


class TopicResponse(Message):
    name: str = ""
    partitions: tuple[PartitionResponse, ...] = ()


class DescribeProducersResponse(ApiMessage):
    """DescribeProducersResponse: api key 61, version 0."""

    throttle_time_ms: int = 0
    topics: tuple[TopicResponse, ...] = ()


class DescribeTransactionsRequest(ApiMessage):
    """DescribeTransactionsRequest: api key 65, version 0."""

    transactional_ids: tuple[str, ...] = ()


class TopicData(Message):
    topic: str = ""
    partitions: tuple[int, ...] = ()


class DescribeTransactionsResponseTransactionState(Message):
    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: tuple[TopicData, ...] = ()


class DescribeTransactionsResponse(ApiMessage):
    """DescribeTransactionsResponse: api key 65, version 0."""

    throttle_time_ms: int = 0
    transaction_states: tuple[DescribeTransactionsResponseTransactionState, ...] = ()


class ListTransactionsRequest(ApiMessage):
    """ListTransactionsRequest: api key 66, versions 0 to 2."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter: int = -1  # from version 1
    transactional_id_pattern: str | None = None  # from version 2


class ListTransactionsResponseTransactionState(Message):
    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""


class ListTransactionsResponse(ApiMessage):
    """ListTransactionsResponse: api key 66, versions 0 to 2."""

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListTransactionsResponseTransactionState, ...] = ()
