"""Requests and responses, as classes: CreateTopics, DeleteTopics, CreatePartitions, DescribeConfigs, AlterConfigs,
IncrementalAlterConfigs.

Generated from ../schemas/topics.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class CreatableReplicaAssignment(Message):
    """A struct of CreateTopicsRequest."""

    partition_index: int = 0
    broker_ids: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class CreatableTopicConfig(Message):
    """A struct of CreateTopicsRequest."""

    name: str = ""
    value: str | None = ""
    unknown_tags: UnknownTags = ()


class CreatableTopic(Message):
    """A struct of CreateTopicsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "assignments": CreatableReplicaAssignment,
        "configs": CreatableTopicConfig,
    }

    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()
    unknown_tags: UnknownTags = ()


class CreateTopicsRequest(ApiMessage):
    """CreateTopicsRequest: api key 19, versions 2 to 7."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": CreatableTopic,
    }

    topics: tuple[CreatableTopic, ...] = ()
    timeout_ms: int = 60000
    validate_only: bool = False
    unknown_tags: UnknownTags = ()


class CreatableTopicConfigs(Message):
    """A struct of CreateTopicsResponse."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    unknown_tags: UnknownTags = ()


class CreatableTopicResult(Message):
    """A struct of CreateTopicsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "configs": CreatableTopicConfigs,
    }

    name: str = ""
    topic_id: str = ZERO_UUID  # from version 7
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0  # from version 5
    num_partitions: int = -1  # from version 5
    replication_factor: int = -1  # from version 5
    configs: tuple[CreatableTopicConfigs, ...] | None = ()  # from version 5
    unknown_tags: UnknownTags = ()


class CreateTopicsResponse(ApiMessage):
    """CreateTopicsResponse: api key 19, versions 2 to 7."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": CreatableTopicResult,
    }

    throttle_time_ms: int = 0
    topics: tuple[CreatableTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()


class DeleteTopicState(Message):
    """A struct of DeleteTopicsRequest."""

    name: str | None = None
    topic_id: str = ZERO_UUID
    unknown_tags: UnknownTags = ()


class DeleteTopicsRequest(ApiMessage):
    """DeleteTopicsRequest: api key 20, versions 1 to 6."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DeleteTopicState,
    }

    topics: tuple[DeleteTopicState, ...] = ()  # from version 6
    topic_names: tuple[str, ...] = ()  # versions 0 to 5
    timeout_ms: int = 0
    unknown_tags: UnknownTags = ()


class DeletableTopicResult(Message):
    """A struct of DeleteTopicsResponse."""

    name: str | None = ""
    topic_id: str = ZERO_UUID  # from version 6
    error_code: int = 0
    error_message: str | None = None  # from version 5
    unknown_tags: UnknownTags = ()


class DeleteTopicsResponse(ApiMessage):
    """DeleteTopicsResponse: api key 20, versions 1 to 6."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "responses": DeletableTopicResult,
    }

    throttle_time_ms: int = 0
    responses: tuple[DeletableTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()


class CreatePartitionsAssignment(Message):
    """A struct of CreatePartitionsRequest."""

    broker_ids: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class CreatePartitionsTopic(Message):
    """A struct of CreatePartitionsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "assignments": CreatePartitionsAssignment,
    }

    name: str = ""
    count: int = 0
    assignments: tuple[CreatePartitionsAssignment, ...] | None = ()
    unknown_tags: UnknownTags = ()


class CreatePartitionsRequest(ApiMessage):
    """CreatePartitionsRequest: api key 37, versions 0 to 3."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": CreatePartitionsTopic,
    }

    topics: tuple[CreatePartitionsTopic, ...] = ()
    timeout_ms: int = 0
    validate_only: bool = False
    unknown_tags: UnknownTags = ()


class CreatePartitionsTopicResult(Message):
    """A struct of CreatePartitionsResponse."""

    name: str = ""
    error_code: int = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = ()


class CreatePartitionsResponse(ApiMessage):
    """CreatePartitionsResponse: api key 37, versions 0 to 3."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": CreatePartitionsTopicResult,
    }

    throttle_time_ms: int = 0
    results: tuple[CreatePartitionsTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeConfigsResource(Message):
    """A struct of DescribeConfigsRequest."""

    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: tuple[str, ...] | None = ()
    unknown_tags: UnknownTags = ()


class DescribeConfigsRequest(ApiMessage):
    """DescribeConfigsRequest: api key 32, versions 1 to 4."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "resources": DescribeConfigsResource,
    }

    resources: tuple[DescribeConfigsResource, ...] = ()
    include_synonyms: bool = False
    include_documentation: bool = False  # from version 3
    unknown_tags: UnknownTags = ()


class DescribeConfigsSynonym(Message):
    """A struct of DescribeConfigsResponse."""

    name: str = ""
    value: str | None = ""
    source: int = 0
    unknown_tags: UnknownTags = ()


class DescribeConfigsResourceResult(Message):
    """A struct of DescribeConfigsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "synonyms": DescribeConfigsSynonym,
    }

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: int = 0  # from version 3
    documentation: str | None = ""  # from version 3
    unknown_tags: UnknownTags = ()


class DescribeConfigsResult(Message):
    """A struct of DescribeConfigsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "configs": DescribeConfigsResourceResult,
    }

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: tuple[DescribeConfigsResourceResult, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeConfigsResponse(ApiMessage):
    """DescribeConfigsResponse: api key 32, versions 1 to 4."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": DescribeConfigsResult,
    }

    throttle_time_ms: int = 0
    results: tuple[DescribeConfigsResult, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterConfigsRequestAlterableConfig(Message):
    """A struct of AlterConfigsRequest."""

    name: str = ""
    value: str | None = ""
    unknown_tags: UnknownTags = ()


class AlterConfigsRequestAlterConfigsResource(Message):
    """A struct of AlterConfigsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "configs": AlterConfigsRequestAlterableConfig,
    }

    resource_type: int = 0
    resource_name: str = ""
    configs: tuple[AlterConfigsRequestAlterableConfig, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterConfigsRequest(ApiMessage):
    """AlterConfigsRequest: api key 33, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "resources": AlterConfigsRequestAlterConfigsResource,
    }

    resources: tuple[AlterConfigsRequestAlterConfigsResource, ...] = ()
    validate_only: bool = False
    unknown_tags: UnknownTags = ()


class AlterConfigsResourceResponse(Message):
    """A struct of AlterConfigsResponse."""

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    unknown_tags: UnknownTags = ()


class AlterConfigsResponse(ApiMessage):
    """AlterConfigsResponse: api key 33, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "responses": AlterConfigsResourceResponse,
    }

    throttle_time_ms: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class IncrementalAlterConfigsRequestAlterableConfig(Message):
    """A struct of IncrementalAlterConfigsRequest."""

    name: str = ""
    config_operation: int = 0
    value: str | None = ""
    unknown_tags: UnknownTags = ()


class IncrementalAlterConfigsRequestAlterConfigsResource(Message):
    """A struct of IncrementalAlterConfigsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "configs": IncrementalAlterConfigsRequestAlterableConfig,
    }

    resource_type: int = 0
    resource_name: str = ""
    configs: tuple[IncrementalAlterConfigsRequestAlterableConfig, ...] = ()
    unknown_tags: UnknownTags = ()


class IncrementalAlterConfigsRequest(ApiMessage):
    """IncrementalAlterConfigsRequest: api key 44, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "resources": IncrementalAlterConfigsRequestAlterConfigsResource,
    }

    resources: tuple[IncrementalAlterConfigsRequestAlterConfigsResource, ...] = ()
    validate_only: bool = False
    unknown_tags: UnknownTags = ()


class IncrementalAlterConfigsResponse(ApiMessage):
    """IncrementalAlterConfigsResponse: api key 44, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "responses": AlterConfigsResourceResponse,
    }

    throttle_time_ms: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()
    unknown_tags: UnknownTags = ()
