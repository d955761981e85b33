"""Requests and responses, as classes: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, UpdateFeatures,
ListConfigResources.

Generated from ../schemas/cluster.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class ApiVersionsRequest(ApiMessage):
    """ApiVersionsRequest: api key 18, versions 0 to 5."""

    client_software_name: str = ""  # from version 3
    client_software_version: str = ""  # from version 3
    cluster_id: str | None = None  # from version 5
    node_id: int = -1  # from version 5
    unknown_tags: UnknownTags = ()


class ApiVersion(Message):
    """A struct of ApiVersionsResponse."""

    api_key: int = 0
    min_version: int = 0
    max_version: int = 0
    unknown_tags: UnknownTags = ()


class SupportedFeatureKey(Message):
    """A struct of ApiVersionsResponse."""

    name: str = ""
    min_version: int = 0
    max_version: int = 0
    unknown_tags: UnknownTags = ()


class FinalizedFeatureKey(Message):
    """A struct of ApiVersionsResponse."""

    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0
    unknown_tags: UnknownTags = ()


class ApiVersionsResponse(ApiMessage):
    """ApiVersionsResponse: api key 18, versions 0 to 5."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "api_keys": ApiVersion,
        "supported_features": SupportedFeatureKey,
        "finalized_features": FinalizedFeatureKey,
    }

    error_code: int = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: int = 0  # from version 1
    supported_features: tuple[SupportedFeatureKey, ...] = ()  # from version 3
    finalized_features_epoch: int = -1  # from version 3
    finalized_features: tuple[FinalizedFeatureKey, ...] = ()  # from version 3
    zk_migration_ready: bool = False  # from version 3
    unknown_tags: UnknownTags = ()


class MetadataRequestTopic(Message):
    """A struct of MetadataRequest."""

    topic_id: str = ZERO_UUID  # from version 10
    name: str | None = ""
    unknown_tags: UnknownTags = ()


class MetadataRequest(ApiMessage):
    """MetadataRequest: api key 3, versions 0 to 13."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": MetadataRequestTopic,
    }

    topics: tuple[MetadataRequestTopic, ...] | None = ()
    allow_auto_topic_creation: bool = True  # from version 4
    include_cluster_authorized_operations: bool = False  # versions 8 to 10
    include_topic_authorized_operations: bool = False  # from version 8
    unknown_tags: UnknownTags = ()


class MetadataResponseBroker(Message):
    """A struct of MetadataResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None  # from version 1
    unknown_tags: UnknownTags = ()


class MetadataResponsePartition(Message):
    """A struct of MetadataResponse."""

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1  # from version 7
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()  # from version 5
    unknown_tags: UnknownTags = ()


class MetadataResponseTopic(Message):
    """A struct of MetadataResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": MetadataResponsePartition,
    }

    error_code: int = 0
    name: str | None = ""
    topic_id: str = ZERO_UUID  # from version 10
    is_internal: bool = False  # from version 1
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: int = -2147483648  # from version 8
    unknown_tags: UnknownTags = ()


class MetadataResponse(ApiMessage):
    """MetadataResponse: api key 3, versions 0 to 13."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "brokers": MetadataResponseBroker,
        "topics": MetadataResponseTopic,
    }

    throttle_time_ms: int = 0  # from version 3
    brokers: tuple[MetadataResponseBroker, ...] = ()
    cluster_id: str | None = None  # from version 2
    controller_id: int = -1  # from version 1
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: int = -2147483648  # versions 8 to 10
    error_code: int = 0  # from version 13
    unknown_tags: UnknownTags = ()


class DescribeClusterRequest(ApiMessage):
    """DescribeClusterRequest: api key 60, versions 0 to 2."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1  # from version 1
    include_fenced_brokers: bool = False  # from version 2
    unknown_tags: UnknownTags = ()


class DescribeClusterBroker(Message):
    """A struct of DescribeClusterResponse."""

    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False  # from version 2
    unknown_tags: UnknownTags = ()


class DescribeClusterResponse(ApiMessage):
    """DescribeClusterResponse: api key 60, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "brokers": DescribeClusterBroker,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1  # from version 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: int = -2147483648
    unknown_tags: UnknownTags = ()


class TopicRequest(Message):
    """A struct of DescribeTopicPartitionsRequest."""

    name: str = ""
    unknown_tags: UnknownTags = ()


class Cursor(Message):
    """A struct of DescribeTopicPartitionsRequest."""

    topic_name: str = ""
    partition_index: int = 0
    unknown_tags: UnknownTags = ()


class DescribeTopicPartitionsRequest(ApiMessage):
    """DescribeTopicPartitionsRequest: api key 75, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": TopicRequest,
        "cursor": Cursor,
    }

    topics: tuple[TopicRequest, ...] = ()
    response_partition_limit: int = 2000
    cursor: Cursor | None = None
    unknown_tags: UnknownTags = ()


class DescribeTopicPartitionsResponsePartition(Message):
    """A struct of DescribeTopicPartitionsResponse."""

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    offline_replicas: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeTopicPartitionsResponseTopic(Message):
    """A struct of DescribeTopicPartitionsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": DescribeTopicPartitionsResponsePartition,
    }

    error_code: int = 0
    name: str | None = ""
    topic_id: str = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: int = -2147483648
    unknown_tags: UnknownTags = ()


class DescribeTopicPartitionsResponse(ApiMessage):
    """DescribeTopicPartitionsResponse: api key 75, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DescribeTopicPartitionsResponseTopic,
        "next_cursor": Cursor,
    }

    throttle_time_ms: int = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: Cursor | None = None
    unknown_tags: UnknownTags = ()


class FeatureUpdateKey(Message):
    """A struct of UpdateFeaturesRequest."""

    feature: str = ""
    max_version_level: int = 0
    allow_downgrade: bool = False  # version 0
    upgrade_type: int = 1  # from version 1
    unknown_tags: UnknownTags = ()


class UpdateFeaturesRequest(ApiMessage):
    """UpdateFeaturesRequest: api key 57, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "feature_updates": FeatureUpdateKey,
    }

    timeout_ms: int = 60000
    feature_updates: tuple[FeatureUpdateKey, ...] = ()
    validate_only: bool = False  # from version 1
    unknown_tags: UnknownTags = ()


class UpdatableFeatureResult(Message):
    """A struct of UpdateFeaturesResponse."""

    feature: str = ""
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = ()


class UpdateFeaturesResponse(ApiMessage):
    """UpdateFeaturesResponse: api key 57, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": UpdatableFeatureResult,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: tuple[UpdatableFeatureResult, ...] = ()  # versions 0 to 1
    unknown_tags: UnknownTags = ()


class ListConfigResourcesRequest(ApiMessage):
    """ListConfigResourcesRequest: api key 74, versions 0 to 1."""

    resource_types: tuple[int, ...] = ()  # from version 1
    unknown_tags: UnknownTags = ()


class ConfigResource(Message):
    """A struct of ListConfigResourcesResponse."""

    resource_name: str = ""
    resource_type: int = 16  # from version 1
    unknown_tags: UnknownTags = ()


class ListConfigResourcesResponse(ApiMessage):
    """ListConfigResourcesResponse: api key 74, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "config_resources": ConfigResource,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: tuple[ConfigResource, ...] = ()
    unknown_tags: UnknownTags = ()
