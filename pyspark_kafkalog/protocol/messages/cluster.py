"""Requests and responses, as classes: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, UpdateFeatures,
ListConfigResources, DescribeQuorum, FetchSnapshot.

Generated from ../schemas/cluster.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, Records
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class ApiVersionsRequest(ApiMessage):
    """ApiVersionsRequest: api key 18, versions 0 to 5."""

    client_software_name: str = ""  # from version 3
    client_software_version: str = ""  # from version 3
    cluster_id: str | None = None  # from version 5
    node_id: int = -1  # from version 5


class ApiVersion(Message):
    api_key: int = 0
    min_version: int = 0
    max_version: int = 0


class SupportedFeatureKey(Message):
    name: str = ""
    min_version: int = 0
    max_version: int = 0


class FinalizedFeatureKey(Message):
    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0


class ApiVersionsResponse(ApiMessage):
    """ApiVersionsResponse: api key 18, versions 0 to 5."""

    error_code: int = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: int = 0  # from version 1
    supported_features: tuple[SupportedFeatureKey, ...] = ()  # from version 3
    finalized_features_epoch: int = -1  # from version 3
    finalized_features: tuple[FinalizedFeatureKey, ...] = ()  # from version 3
    zk_migration_ready: bool = False  # from version 3


class MetadataRequestTopic(Message):
    topic_id: str = ZERO_UUID  # from version 10
    name: str | None = ""


class MetadataRequest(ApiMessage):
    """MetadataRequest: api key 3, versions 0 to 13."""

    topics: tuple[MetadataRequestTopic, ...] | None = ()
    allow_auto_topic_creation: bool = True  # from version 4
    include_cluster_authorized_operations: bool = False  # versions 8 to 10
    include_topic_authorized_operations: bool = False  # from version 8


class MetadataResponseBroker(Message):
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None  # from version 1


class MetadataResponsePartition(Message):
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1  # from version 7
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()  # from version 5


class MetadataResponseTopic(Message):
    error_code: int = 0
    name: str | None = ""
    topic_id: str = ZERO_UUID  # from version 10
    is_internal: bool = False  # from version 1
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: int = -2147483648  # from version 8


class MetadataResponse(ApiMessage):
    """MetadataResponse: api key 3, versions 0 to 13."""

    throttle_time_ms: int = 0  # from version 3
    brokers: tuple[MetadataResponseBroker, ...] = ()
    cluster_id: str | None = None  # from version 2
    controller_id: int = -1  # from version 1
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: int = -2147483648  # versions 8 to 10
    error_code: int = 0  # from version 13


class DescribeClusterRequest(ApiMessage):
    """DescribeClusterRequest: api key 60, versions 0 to 2."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1  # from version 1
    include_fenced_brokers: bool = False  # from version 2


class DescribeClusterBroker(Message):
    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False  # from version 2


class DescribeClusterResponse(ApiMessage):
    """DescribeClusterResponse: api key 60, versions 0 to 2."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1  # from version 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: int = -2147483648


class TopicRequest(Message):
    name: str = ""


class Cursor(Message):
    topic_name: str = ""
    partition_index: int = 0


class DescribeTopicPartitionsRequest(ApiMessage):
    """DescribeTopicPartitionsRequest: api key 75, version 0."""

    topics: tuple[TopicRequest, ...] = ()
    response_partition_limit: int = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    offline_replicas: tuple[int, ...] = ()


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: int = 0
    name: str | None = ""
    topic_id: str = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: int = -2147483648


class DescribeTopicPartitionsResponse(ApiMessage):
    """DescribeTopicPartitionsResponse: api key 75, version 0."""

    throttle_time_ms: int = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: Cursor | None = None


class FeatureUpdateKey(Message):
    feature: str = ""
    max_version_level: int = 0
    allow_downgrade: bool = False  # version 0
    upgrade_type: int = 1  # from version 1


class UpdateFeaturesRequest(ApiMessage):
    """UpdateFeaturesRequest: api key 57, versions 0 to 2."""

    timeout_ms: int = 60000
    feature_updates: tuple[FeatureUpdateKey, ...] = ()
    validate_only: bool = False  # from version 1


class UpdatableFeatureResult(Message):
    feature: str = ""
    error_code: int = 0
    error_message: str | None = ""


class UpdateFeaturesResponse(ApiMessage):
    """UpdateFeaturesResponse: api key 57, versions 0 to 2."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: tuple[UpdatableFeatureResult, ...] = ()  # versions 0 to 1


class ListConfigResourcesRequest(ApiMessage):
    """ListConfigResourcesRequest: api key 74, versions 0 to 1."""

    resource_types: tuple[int, ...] = ()  # from version 1


class ConfigResource(Message):
    resource_name: str = ""
    resource_type: int = 16  # from version 1


class ListConfigResourcesResponse(ApiMessage):
    """ListConfigResourcesResponse: api key 74, versions 0 to 1."""

    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: tuple[ConfigResource, ...] = ()


class DescribeQuorumRequestPartitionData(Message):
    partition_index: int = 0


class DescribeQuorumRequestTopicData(Message):
    topic_name: str = ""
    partitions: tuple[DescribeQuorumRequestPartitionData, ...] = ()


class DescribeQuorumRequest(ApiMessage):
    """DescribeQuorumRequest: api key 55, versions 0 to 2."""

    topics: tuple[DescribeQuorumRequestTopicData, ...] = ()


class ReplicaState(Message):
    replica_id: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 2
    log_end_offset: int = 0
    last_fetch_timestamp: int = -1  # from version 1
    last_caught_up_timestamp: int = -1  # from version 1


class DescribeQuorumResponsePartitionData(Message):
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""  # from version 2
    leader_id: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


class DescribeQuorumResponseTopicData(Message):
    topic_name: str = ""
    partitions: tuple[DescribeQuorumResponsePartitionData, ...] = ()


class Listener(Message):
    name: str = ""
    host: str = ""
    port: int = 0


class Node(Message):
    node_id: int = 0
    listeners: tuple[Listener, ...] = ()


class DescribeQuorumResponse(ApiMessage):
    """DescribeQuorumResponse: api key 55, versions 0 to 2."""

    error_code: int = 0
    error_message: str | None = ""  # from version 2
    topics: tuple[DescribeQuorumResponseTopicData, ...] = ()
    nodes: tuple[Node, ...] = ()  # from version 2


class SnapshotId(Message):
    end_offset: int = 0
    epoch: int = 0


class FetchSnapshotRequestPartitionSnapshot(Message):
    partition: int = 0
    current_leader_epoch: int = 0
    snapshot_id: SnapshotId = SnapshotId()
    position: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 1


class FetchSnapshotRequestTopicSnapshot(Message):
    name: str = ""
    partitions: tuple[FetchSnapshotRequestPartitionSnapshot, ...] = ()


class FetchSnapshotRequest(ApiMessage):
    """FetchSnapshotRequest: api key 59, versions 0 to 1."""

    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2147483647
    topics: tuple[FetchSnapshotRequestTopicSnapshot, ...] = ()


class LeaderIdAndEpoch(Message):
    leader_id: int = 0
    leader_epoch: int = 0


class FetchSnapshotResponsePartitionSnapshot(Message):
    index: int = 0
    error_code: int = 0
    snapshot_id: SnapshotId = SnapshotId()
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    size: int = 0
    position: int = 0
    unaligned_records: Records | None = None


class FetchSnapshotResponseTopicSnapshot(Message):
    name: str = ""
    partitions: tuple[FetchSnapshotResponsePartitionSnapshot, ...] = ()


class NodeEndpoint(Message):
    node_id: int = 0
    host: str = ""
    port: int = 0


class FetchSnapshotResponse(ApiMessage):
    """FetchSnapshotResponse: api key 59, versions 0 to 1."""

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: tuple[FetchSnapshotResponseTopicSnapshot, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()  # from version 1
