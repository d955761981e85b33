"""Requests and responses, as classes: DescribeLogDirs, AlterReplicaLogDirs, ElectLeaders, AlterPartitionReassignments,
ListPartitionReassignments.

Generated from ../schemas/replicas.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class DescribableLogDirTopic(Message):
    """A struct of DescribeLogDirsRequest."""

    topic: str = ""
    partitions: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeLogDirsRequest(ApiMessage):
    """DescribeLogDirsRequest: api key 35, versions 1 to 5."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DescribableLogDirTopic,
    }

    topics: tuple[DescribableLogDirTopic, ...] | None = ()
    unknown_tags: UnknownTags = ()


class DescribeLogDirsPartition(Message):
    """A struct of DescribeLogDirsResponse."""

    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False
    unknown_tags: UnknownTags = ()


class DescribeLogDirsTopic(Message):
    """A struct of DescribeLogDirsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": DescribeLogDirsPartition,
    }

    name: str = ""
    partitions: tuple[DescribeLogDirsPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeLogDirsResult(Message):
    """A struct of DescribeLogDirsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DescribeLogDirsTopic,
    }

    error_code: int = 0
    log_dir: str = ""
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: int = -1  # from version 4
    usable_bytes: int = -1  # from version 4
    is_cordoned: bool = False  # from version 5
    unknown_tags: UnknownTags = ()


class DescribeLogDirsResponse(ApiMessage):
    """DescribeLogDirsResponse: api key 35, versions 1 to 5."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": DescribeLogDirsResult,
    }

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 3
    results: tuple[DescribeLogDirsResult, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterReplicaLogDirTopic(Message):
    """A struct of AlterReplicaLogDirsRequest."""

    name: str = ""
    partitions: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterReplicaLogDir(Message):
    """A struct of AlterReplicaLogDirsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": AlterReplicaLogDirTopic,
    }

    path: str = ""
    topics: tuple[AlterReplicaLogDirTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterReplicaLogDirsRequest(ApiMessage):
    """AlterReplicaLogDirsRequest: api key 34, versions 1 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "dirs": AlterReplicaLogDir,
    }

    dirs: tuple[AlterReplicaLogDir, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterReplicaLogDirPartitionResult(Message):
    """A struct of AlterReplicaLogDirsResponse."""

    partition_index: int = 0
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class AlterReplicaLogDirTopicResult(Message):
    """A struct of AlterReplicaLogDirsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": AlterReplicaLogDirPartitionResult,
    }

    topic_name: str = ""
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterReplicaLogDirsResponse(ApiMessage):
    """AlterReplicaLogDirsResponse: api key 34, versions 1 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "results": AlterReplicaLogDirTopicResult,
    }

    throttle_time_ms: int = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...] = ()
    unknown_tags: UnknownTags = ()


class TopicPartitions(Message):
    """A struct of ElectLeadersRequest."""

    topic: str = ""
    partitions: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class ElectLeadersRequest(ApiMessage):
    """ElectLeadersRequest: api key 43, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topic_partitions": TopicPartitions,
    }

    election_type: int = 0  # from version 1
    topic_partitions: tuple[TopicPartitions, ...] | None = ()
    timeout_ms: int = 60000
    unknown_tags: UnknownTags = ()


class PartitionResult(Message):
    """A struct of ElectLeadersResponse."""

    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = ()


class ReplicaElectionResult(Message):
    """A struct of ElectLeadersResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partition_result": PartitionResult,
    }

    topic: str = ""
    partition_result: tuple[PartitionResult, ...] = ()
    unknown_tags: UnknownTags = ()


class ElectLeadersResponse(ApiMessage):
    """ElectLeadersResponse: api key 43, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "replica_election_results": ReplicaElectionResult,
    }

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 1
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()
    unknown_tags: UnknownTags = ()


class ReassignablePartition(Message):
    """A struct of AlterPartitionReassignmentsRequest."""

    partition_index: int = 0
    replicas: tuple[int, ...] | None = None
    unknown_tags: UnknownTags = ()


class ReassignableTopic(Message):
    """A struct of AlterPartitionReassignmentsRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": ReassignablePartition,
    }

    name: str = ""
    partitions: tuple[ReassignablePartition, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterPartitionReassignmentsRequest(ApiMessage):
    """AlterPartitionReassignmentsRequest: api key 45, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": ReassignableTopic,
    }

    timeout_ms: int = 60000
    allow_replication_factor_change: bool = True  # from version 1
    topics: tuple[ReassignableTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class ReassignablePartitionResponse(Message):
    """A struct of AlterPartitionReassignmentsResponse."""

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = ()


class ReassignableTopicResponse(Message):
    """A struct of AlterPartitionReassignmentsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": ReassignablePartitionResponse,
    }

    name: str = ""
    partitions: tuple[ReassignablePartitionResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class AlterPartitionReassignmentsResponse(ApiMessage):
    """AlterPartitionReassignmentsResponse: api key 45, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "responses": ReassignableTopicResponse,
    }

    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True  # from version 1
    error_code: int = 0
    error_message: str | None = ""
    responses: tuple[ReassignableTopicResponse, ...] = ()
    unknown_tags: UnknownTags = ()


class ListPartitionReassignmentsTopics(Message):
    """A struct of ListPartitionReassignmentsRequest."""

    name: str = ""
    partition_indexes: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class ListPartitionReassignmentsRequest(ApiMessage):
    """ListPartitionReassignmentsRequest: api key 46, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": ListPartitionReassignmentsTopics,
    }

    timeout_ms: int = 60000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None
    unknown_tags: UnknownTags = ()


class OngoingPartitionReassignment(Message):
    """A struct of ListPartitionReassignmentsResponse."""

    partition_index: int = 0
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class OngoingTopicReassignment(Message):
    """A struct of ListPartitionReassignmentsResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OngoingPartitionReassignment,
    }

    name: str = ""
    partitions: tuple[OngoingPartitionReassignment, ...] = ()
    unknown_tags: UnknownTags = ()


class ListPartitionReassignmentsResponse(ApiMessage):
    """ListPartitionReassignmentsResponse: api key 46, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OngoingTopicReassignment,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    topics: tuple[OngoingTopicReassignment, ...] = ()
    unknown_tags: UnknownTags = ()
