"""The APIs of Kafka's protocol that this package has messages for: keys, versions and message classes.

Versions are those that a broker of Kafka 4.4 offers; `since` in the schemas says which ones older releases lack. With
Produce it offers more than it has (KAFKA-18659), because old clients judge from Produce 0 to 2 which compression they
may use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.errors import UnsupportedApiError
from pyspark_kafkalog.protocol.messages import (
    cluster,
    consumer_groups,
    groups,
    offsets,
    quorum,
    records,
    replicas,
    security,
    topics,
    transactions,
)
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage

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
            Api(ApiKey.DESCRIBE_QUORUM, quorum.DescribeQuorumRequest, quorum.DescribeQuorumResponse),
            Api(ApiKey.UPDATE_FEATURES, cluster.UpdateFeaturesRequest, cluster.UpdateFeaturesResponse),
            Api(ApiKey.FETCH_SNAPSHOT, quorum.FetchSnapshotRequest, quorum.FetchSnapshotResponse),
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
