"""Requests and responses, as classes: CreateTopics, DeleteTopics, CreatePartitions, DescribeConfigs, AlterConfigs,
IncrementalAlterConfigs.

Generated from ../schemas/topics.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class CreatableReplicaAssignment(Message):
    partition_index: int = 0
    broker_ids: tuple[int, ...] = ()


class CreatableTopicConfig(Message):
    name: str = ""
    value: str | None = ""


class CreatableTopic(Message):
    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


class CreateTopicsRequest(ApiMessage):
    """CreateTopicsRequest: api key 19, versions 2 to 7."""

    topics: tuple[CreatableTopic, ...] = ()
    timeout_ms: int = 60000
    validate_only: bool = False


class CreatableTopicConfigs(Message):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


class CreatableTopicResult(Message):
    name: str = ""
    topic_id: str = ZERO_UUID  # from version 7
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0  # from version 5
    num_partitions: int = -1  # from version 5
    replication_factor: int = -1  # from version 5
    configs: tuple[CreatableTopicConfigs, ...] | None = ()  # from version 5


class CreateTopicsResponse(ApiMessage):
    """CreateTopicsResponse: api key 19, versions 2 to 7."""

    throttle_time_ms: int = 0
    topics: tuple[CreatableTopicResult, ...] = ()


class DeleteTopicState(Message):
    name: str | None = None
    topic_id: str = ZERO_UUID


class DeleteTopicsRequest(ApiMessage):
    """DeleteTopicsRequest: api key 20, versions 1 to 6."""

    topics: tuple[DeleteTopicState, ...] = ()  # from version 6
    topic_names: tuple[str, ...] = ()  # versions 0 to 5
    timeout_ms: int = 0


class DeletableTopicResult(Message):
    name: str | None = ""
    topic_id: str = ZERO_UUID  # from version 6
    error_code: int = 0
    error_message: str | None = None  # from version 5


class DeleteTopicsResponse(ApiMessage):
    """DeleteTopicsResponse: api key 20, versions 1 to 6."""

    throttle_time_ms: int = 0
    responses: tuple[DeletableTopicResult, ...] = ()


class CreatePartitionsAssignment(Message):
    broker_ids: tuple[int, ...] = ()


class CreatePartitionsTopic(Message):
    name: str = ""
    count: int = 0
    assignments: tuple[CreatePartitionsAssignment, ...] | None = ()


class CreatePartitionsRequest(ApiMessage):
    """CreatePartitionsRequest: api key 37, versions 0 to 3."""

    topics: tuple[CreatePartitionsTopic, ...] = ()
    timeout_ms: int = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(Message):
    name: str = ""
    error_code: int = 0
    error_message: str | None = None


class CreatePartitionsResponse(ApiMessage):
    """CreatePartitionsResponse: api key 37, versions 0 to 3."""

    throttle_time_ms: int = 0
    results: tuple[CreatePartitionsTopicResult, ...] = ()


class DescribeConfigsResource(Message):
    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: tuple[str, ...] | None = ()


class DescribeConfigsRequest(ApiMessage):
    """DescribeConfigsRequest: api key 32, versions 1 to 4."""

    resources: tuple[DescribeConfigsResource, ...] = ()
    include_synonyms: bool = False
    include_documentation: bool = False  # from version 3


class DescribeConfigsSynonym(Message):
    name: str = ""
    value: str | None = ""
    source: int = 0


class DescribeConfigsResourceResult(Message):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: int = 0  # from version 3
    documentation: str | None = ""  # from version 3


class DescribeConfigsResult(Message):
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


class DescribeConfigsResponse(ApiMessage):
    """DescribeConfigsResponse: api key 32, versions 1 to 4."""

    throttle_time_ms: int = 0
    results: tuple[DescribeConfigsResult, ...] = ()


class AlterConfigsRequestAlterableConfig(Message):
    name: str = ""
    value: str | None = ""


class AlterConfigsRequestAlterConfigsResource(Message):
    resource_type: int = 0
    resource_name: str = ""
    configs: tuple[AlterConfigsRequestAlterableConfig, ...] = ()


class AlterConfigsRequest(ApiMessage):
    """AlterConfigsRequest: api key 33, versions 0 to 2."""

    resources: tuple[AlterConfigsRequestAlterConfigsResource, ...] = ()
    validate_only: bool = False


class AlterConfigsResourceResponse(Message):
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


class AlterConfigsResponse(ApiMessage):
    """AlterConfigsResponse: api key 33, versions 0 to 2."""

    throttle_time_ms: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()


class IncrementalAlterConfigsRequestAlterableConfig(Message):
    name: str = ""
    config_operation: int = 0
    value: str | None = ""


class IncrementalAlterConfigsRequestAlterConfigsResource(Message):
    resource_type: int = 0
    resource_name: str = ""
    configs: tuple[IncrementalAlterConfigsRequestAlterableConfig, ...] = ()


class IncrementalAlterConfigsRequest(ApiMessage):
    """IncrementalAlterConfigsRequest: api key 44, versions 0 to 1."""

    resources: tuple[IncrementalAlterConfigsRequestAlterConfigsResource, ...] = ()
    validate_only: bool = False


class IncrementalAlterConfigsResponse(ApiMessage):
    """IncrementalAlterConfigsResponse: api key 44, versions 0 to 1."""

    throttle_time_ms: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()
