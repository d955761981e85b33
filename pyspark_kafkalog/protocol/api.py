"""The APIs of Kafka's protocol that this package has messages for, and the frames of their requests and responses.

Versions are those that a broker of Kafka 4.4 offers; `since` in the schemas says which ones older releases lack. With
Produce it offers more than it has (KAFKA-18659), because old clients judge from Produce 0 to 2 which compression they
may use.

    request:   size (4) | api key (2) | api version (2) | correlation id (4) | client id | [tagged fields] | message
    response:  size (4) | correlation id (4) | [tagged fields] | message

Headers have tagged fields in the flexible versions of an API. Two exceptions: the client id has an int16 length in all
versions, and the response header of ApiVersions has no tagged fields in any, since its reader does not know yet which
versions the server has. A server closes the connection on a request that it cannot parse, and on one of an API or a
version that it does not have; only ApiVersions is answered in version 0 then (KIP-511).

Source of the rules: org.apache.kafka.common.requests.RequestHeader, ResponseHeader and RequestContext of Kafka 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeVar

from pyspark_kafkalog.errors import InvalidRecordError, UnsupportedApiError
from pyspark_kafkalog.metadata.messages.schema import FrameReader, MessageWriter, Piece, write_unsigned_varint
from pyspark_kafkalog.protocol.messages import (
    cluster,
    consumer_groups,
    groups,
    offsets,
    records,
    replicas,
    security,
    topics,
    transactions,
)
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.units import INT16_MAX, INT32_MAX
from pyspark_kafkalog.values import quick_dataclass

_PRODUCE_ADVERTISED_FROM: Final = 0


class ApiKey(IntEnum):
    """What a request asks for."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Api:
    """One API: the classes of its messages. `advertised_from` is its lowest offered version if the messages lack it."""

    key: ApiKey
    request: type[ApiMessage]
    response: type[ApiMessage]
    advertised_from: int | None = None

    @property
    def versions(self) -> range:
        """The versions of the messages."""
        return self.request.schema().spec.versions

    @property
    def advertised(self) -> range:
        """The versions that ApiVersions states."""
        versions = self.versions
        return versions if self.advertised_from is None else range(self.advertised_from, versions.stop)

    def is_flexible(self, version: int) -> bool:
        """Whether headers and messages of the version have tagged fields."""
        return version in self.request.schema().spec.flexible


APIS: Final[Mapping[ApiKey, Api]] = MappingProxyType(
    {
        each.key: each
        for each in (
            Api(ApiKey.PRODUCE, records.ProduceRequest, records.ProduceResponse, _PRODUCE_ADVERTISED_FROM),
            Api(ApiKey.FETCH, records.FetchRequest, records.FetchResponse),
            Api(ApiKey.LIST_OFFSETS, records.ListOffsetsRequest, records.ListOffsetsResponse),
            Api(ApiKey.METADATA, cluster.MetadataRequest, cluster.MetadataResponse),
            Api(ApiKey.OFFSET_COMMIT, offsets.OffsetCommitRequest, offsets.OffsetCommitResponse),
            Api(ApiKey.OFFSET_FETCH, offsets.OffsetFetchRequest, offsets.OffsetFetchResponse),
            Api(ApiKey.FIND_COORDINATOR, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
            Api(ApiKey.JOIN_GROUP, groups.JoinGroupRequest, groups.JoinGroupResponse),
            Api(ApiKey.HEARTBEAT, groups.HeartbeatRequest, groups.HeartbeatResponse),
            Api(ApiKey.LEAVE_GROUP, groups.LeaveGroupRequest, groups.LeaveGroupResponse),
            Api(ApiKey.SYNC_GROUP, groups.SyncGroupRequest, groups.SyncGroupResponse),
            Api(ApiKey.DESCRIBE_GROUPS, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
            Api(ApiKey.LIST_GROUPS, groups.ListGroupsRequest, groups.ListGroupsResponse),
            Api(ApiKey.SASL_HANDSHAKE, security.SaslHandshakeRequest, security.SaslHandshakeResponse),
            Api(ApiKey.API_VERSIONS, cluster.ApiVersionsRequest, cluster.ApiVersionsResponse),
            Api(ApiKey.CREATE_TOPICS, topics.CreateTopicsRequest, topics.CreateTopicsResponse),
            Api(ApiKey.DELETE_TOPICS, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
            Api(ApiKey.DELETE_RECORDS, records.DeleteRecordsRequest, records.DeleteRecordsResponse),
            Api(ApiKey.INIT_PRODUCER_ID, transactions.InitProducerIdRequest, transactions.InitProducerIdResponse),
            Api(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                records.OffsetForLeaderEpochRequest,
                records.OffsetForLeaderEpochResponse,
            ),
            Api(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                transactions.AddPartitionsToTxnRequest,
                transactions.AddPartitionsToTxnResponse,
            ),
            Api(ApiKey.ADD_OFFSETS_TO_TXN, transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
            Api(ApiKey.END_TXN, transactions.EndTxnRequest, transactions.EndTxnResponse),
            Api(ApiKey.WRITE_TXN_MARKERS, transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
            Api(ApiKey.TXN_OFFSET_COMMIT, transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
            Api(ApiKey.DESCRIBE_ACLS, security.DescribeAclsRequest, security.DescribeAclsResponse),
            Api(ApiKey.CREATE_ACLS, security.CreateAclsRequest, security.CreateAclsResponse),
            Api(ApiKey.DELETE_ACLS, security.DeleteAclsRequest, security.DeleteAclsResponse),
            Api(ApiKey.DESCRIBE_CONFIGS, topics.DescribeConfigsRequest, topics.DescribeConfigsResponse),
            Api(ApiKey.ALTER_CONFIGS, topics.AlterConfigsRequest, topics.AlterConfigsResponse),
            Api(
                ApiKey.ALTER_REPLICA_LOG_DIRS, replicas.AlterReplicaLogDirsRequest, replicas.AlterReplicaLogDirsResponse
            ),
            Api(ApiKey.DESCRIBE_LOG_DIRS, replicas.DescribeLogDirsRequest, replicas.DescribeLogDirsResponse),
            Api(ApiKey.SASL_AUTHENTICATE, security.SaslAuthenticateRequest, security.SaslAuthenticateResponse),
            Api(ApiKey.CREATE_PARTITIONS, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
            Api(ApiKey.DELETE_GROUPS, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
            Api(ApiKey.ELECT_LEADERS, replicas.ElectLeadersRequest, replicas.ElectLeadersResponse),
            Api(
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                topics.IncrementalAlterConfigsRequest,
                topics.IncrementalAlterConfigsResponse,
            ),
            Api(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                replicas.AlterPartitionReassignmentsRequest,
                replicas.AlterPartitionReassignmentsResponse,
            ),
            Api(
                ApiKey.LIST_PARTITION_REASSIGNMENTS,
                replicas.ListPartitionReassignmentsRequest,
                replicas.ListPartitionReassignmentsResponse,
            ),
            Api(ApiKey.OFFSET_DELETE, offsets.OffsetDeleteRequest, offsets.OffsetDeleteResponse),
            Api(
                ApiKey.DESCRIBE_CLIENT_QUOTAS,
                security.DescribeClientQuotasRequest,
                security.DescribeClientQuotasResponse,
            ),
            Api(ApiKey.ALTER_CLIENT_QUOTAS, security.AlterClientQuotasRequest, security.AlterClientQuotasResponse),
            Api(
                ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
                security.DescribeUserScramCredentialsRequest,
                security.DescribeUserScramCredentialsResponse,
            ),
            Api(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
                security.AlterUserScramCredentialsRequest,
                security.AlterUserScramCredentialsResponse,
            ),
            Api(ApiKey.DESCRIBE_QUORUM, cluster.DescribeQuorumRequest, cluster.DescribeQuorumResponse),
            Api(ApiKey.UPDATE_FEATURES, cluster.UpdateFeaturesRequest, cluster.UpdateFeaturesResponse),
            Api(ApiKey.FETCH_SNAPSHOT, cluster.FetchSnapshotRequest, cluster.FetchSnapshotResponse),
            Api(ApiKey.DESCRIBE_CLUSTER, cluster.DescribeClusterRequest, cluster.DescribeClusterResponse),
            Api(
                ApiKey.DESCRIBE_PRODUCERS, transactions.DescribeProducersRequest, transactions.DescribeProducersResponse
            ),
            Api(
                ApiKey.DESCRIBE_TRANSACTIONS,
                transactions.DescribeTransactionsRequest,
                transactions.DescribeTransactionsResponse,
            ),
            Api(ApiKey.LIST_TRANSACTIONS, transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
            Api(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                consumer_groups.ConsumerGroupHeartbeatRequest,
                consumer_groups.ConsumerGroupHeartbeatResponse,
            ),
            Api(
                ApiKey.CONSUMER_GROUP_DESCRIBE,
                consumer_groups.ConsumerGroupDescribeRequest,
                consumer_groups.ConsumerGroupDescribeResponse,
            ),
            Api(ApiKey.LIST_CONFIG_RESOURCES, cluster.ListConfigResourcesRequest, cluster.ListConfigResourcesResponse),
            Api(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                cluster.DescribeTopicPartitionsRequest,
                cluster.DescribeTopicPartitionsResponse,
            ),
        )
    }
)


def find_api(api_key: int) -> Api:
    """The API of a key. Raises UnsupportedApiError."""
    try:
        return APIS[ApiKey(api_key)]
    except ValueError:
        raise UnsupportedApiError(f"there is no API with the key {api_key}") from None


_M = TypeVar("_M", bound=ApiMessage)

#: The elements that the arrays of a request have together at most; so many are read within a second. Kafka has no such
#: limit, but clients of a large cluster stay far below it.
REQUEST_ELEMENTS_MAX: Final = 250_000
#: The size of a frame, which precedes it and does not count itself.
FRAME_SIZE: Final = struct.Struct(">i")
_REQUEST_START: Final = struct.Struct(">hhi")
_CORRELATION_ID: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


@quick_dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request whose header is parsed; `reader` stands at its message.

    A null client id is "". `is_supported` is false for ApiVersions of an unknown version: it has no `body`, and its
    response is of version 0 and says UNSUPPORTED_VERSION.
    """

    api: Api
    api_version: int
    correlation_id: int
    client_id: str
    reader: FrameReader

    @property
    def is_supported(self) -> bool:
        return self.api_version in self.api.versions

    @property
    def has_many_elements(self) -> bool:
        """Whether `body` has found more elements than `parse_request` was to accept."""
        return self.reader.elements_left < 0

    def body(self) -> ApiMessage:
        """The message; its records are views of the frame. Raises CorruptRecordError. To be called once.

        As in Kafka, bytes that follow the message are ignored.
        """
        return self.api.request.decode_from(self.reader, self.api_version, allow_trailing=True)

    def encode_response(self, response: ApiMessage) -> list[Piece]:
        """The frame of the response to this request, its size included."""
        version = self.api_version if self.is_supported else 0
        return encode_response(self.api, version, self.correlation_id, response)


def parse_request(frame: bytes | bytearray | memoryview, *, elements_max: int = REQUEST_ELEMENTS_MAX) -> ParsedRequest:
    """A request from its frame, without the size that precedes it. Its arrays may have `elements_max` together.

    Raises CorruptRecordError, or UnsupportedApiError for an API or version that this package does not have.
    """
    reader = FrameReader(frame, file="<request>", elements_max=elements_max)
    start = reader.advance(_REQUEST_START.size, "the header of a request")
    api_key, api_version, correlation_id = _REQUEST_START.unpack_from(frame, start)
    api = find_api(api_key)
    if api_version not in api.versions and api.key != ApiKey.API_VERSIONS:
        raise UnsupportedApiError(f"{api.key.name} has no version {api_version}")
    reader.file = f"<{api.key.name} request of version {api_version}>"
    client_id = _read_client_id(reader)
    if api.is_flexible(api_version):
        skip_tagged_fields(reader)
    return ParsedRequest(api, api_version, correlation_id, client_id, reader)


def _read_client_id(reader: FrameReader) -> str:
    length = _INT16.unpack_from(reader.data, reader.advance(_INT16.size, "the length of the client id"))[0]
    if length < 0:
        return ""
    return reader.take(length, "the client id").decode("utf-8", errors="replace")


def skip_tagged_fields(reader: FrameReader) -> None:
    """Step over the tagged fields of a header, of which Kafka has none so far."""
    count = reader.unsigned_varint("the number of tagged fields")
    reader.claim(count, "the tagged fields of a header")
    last_tag = -1
    for _ in range(count):
        tag = reader.unsigned_varint("a tag")
        if tag <= last_tag:
            raise reader.error(expected=f"a tag above {last_tag}", found=str(tag))
        last_tag = tag
        reader.advance(reader.unsigned_varint("the size of a tagged field"), f"tagged field {tag}")


def encode_response(api: Api, api_version: int, correlation_id: int, response: ApiMessage) -> list[Piece]:
    """The frame of a response, its size included. Raises InvalidRecordError for values that the schema forbids."""
    out = MessageWriter()
    out += FRAME_SIZE.pack(0)
    out += _CORRELATION_ID.pack(correlation_id)
    if _has_tagged_fields_in_response_header(api, api_version):
        write_unsigned_varint(out, 0)
    return _finish(out, response, api_version)


def encode_request(
    api: Api, api_version: int, correlation_id: int, client_id: str | None, request: ApiMessage
) -> list[Piece]:
    """The frame of a request, its size included. Raises InvalidRecordError for values that the schema forbids."""
    out = MessageWriter()
    out += FRAME_SIZE.pack(0)
    out += _REQUEST_START.pack(api.key, api_version, correlation_id)
    client = b"" if client_id is None else client_id.encode("utf-8", errors="replace")
    if len(client) > INT16_MAX:
        raise InvalidRecordError(f"a client id has at most {INT16_MAX} bytes, not {len(client)}")
    out += _INT16.pack(-1 if client_id is None else len(client)) + client
    if api.is_flexible(api_version):
        write_unsigned_varint(out, 0)
    return _finish(out, request, api_version)


def _finish(out: MessageWriter, message: ApiMessage, api_version: int) -> list[Piece]:
    message.encode_to(out, api_version)
    size_bytes = out.size_bytes - FRAME_SIZE.size
    if size_bytes > INT32_MAX:
        raise InvalidRecordError(f"a frame has at most {INT32_MAX} bytes, not {size_bytes}")
    FRAME_SIZE.pack_into(out, 0, size_bytes)
    return out.pieces()


def decode_response(
    api: Api, api_version: int, frame: bytes | bytearray | memoryview, response: type[_M]
) -> tuple[int, _M]:
    """The correlation id and the message of a response, from its frame without the size. Raises CorruptRecordError."""
    reader = FrameReader(frame, file=f"<{api.key.name} response of version {api_version}>")
    start = reader.advance(_CORRELATION_ID.size, "the correlation id")
    correlation_id = _CORRELATION_ID.unpack_from(frame, start)[0]
    if _has_tagged_fields_in_response_header(api, api_version):
        skip_tagged_fields(reader)
    return correlation_id, response.decode_from(reader, api_version)


def _has_tagged_fields_in_response_header(api: Api, api_version: int) -> bool:
    return api.is_flexible(api_version) and api.key != ApiKey.API_VERSIONS


def joined(pieces: Sequence[Piece]) -> bytes:
    """The pieces of a message without slices of records as one. Raises InvalidRecordError for such a slice."""
    for piece in pieces:
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise InvalidRecordError(f"{piece!r} has no bytes")
    return b"".join(pieces)  # type: ignore[arg-type]  # checked above
