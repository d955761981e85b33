"""Requests and responses, as classes: DescribeLogDirs, AlterReplicaLogDirs, ElectLeaders, AlterPartitionReassignments,
ListPartitionReassignments.

Generated from ../schemas/replicas.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class DescribableLogDirTopic(Message):
    topic: str = ""
    partitions: tuple[int, ...] = ()


class DescribeLogDirsRequest(ApiMessage):
    """DescribeLogDirsRequest: api key 35, versions 1 to 5."""

    topics: tuple[DescribableLogDirTopic, ...] | None = ()


class DescribeLogDirsPartition(Message):
    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(Message):
    name: str = ""
    partitions: tuple[DescribeLogDirsPartition, ...] = ()


class DescribeLogDirsResult(Message):
    error_code: int = 0
    log_dir: str = ""
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: int = -1  # from version 4
    usable_bytes: int = -1  # from version 4
    is_cordoned: bool = False  # from version 5


class DescribeLogDirsResponse(ApiMessage):
    """DescribeLogDirsResponse: api key 35, versions 1 to 5."""

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 3
    results: tuple[DescribeLogDirsResult, ...] = ()


class AlterReplicaLogDirTopic(Message):
    name: str = ""
    partitions: tuple[int, ...] = ()


class AlterReplicaLogDir(Message):
    path: str = ""
    topics: tuple[AlterReplicaLogDirTopic, ...] = ()


class AlterReplicaLogDirsRequest(ApiMessage):
    """AlterReplicaLogDirsRequest: api key 34, versions 1 to 2."""

    dirs: tuple[AlterReplicaLogDir, ...] = ()


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: int = 0
    error_code: int = 0


class AlterReplicaLogDirTopicResult(Message):
    topic_name: str = ""
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = ()


class AlterReplicaLogDirsResponse(ApiMessage):
    """AlterReplicaLogDirsResponse: api key 34, versions 1 to 2."""

    throttle_time_ms: int = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...] = ()


class TopicPartitions(Message):
    topic: str = ""
    partitions: tuple[int, ...] = ()


class ElectLeadersRequest(ApiMessage):
    """ElectLeadersRequest: api key 43, versions 0 to 2."""

    election_type: int = 0  # from version 1
    topic_partitions: tuple[TopicPartitions, ...] | None = ()
    timeout_ms: int = 60000


class PartitionResult(Message):
    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""


class ReplicaElectionResult(Message):
    topic: str = ""
    partition_result: tuple[PartitionResult, ...] = ()


class ElectLeadersResponse(ApiMessage):
    """ElectLeadersResponse: api key 43, versions 0 to 2."""

    throttle_time_ms: int = 0
    error_code: int = 0  # from version 1
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()


class ReassignablePartition(Message):
    partition_index: int = 0
    replicas: tuple[int, ...] | None = None


class ReassignableTopic(Message):
    name: str = ""
    partitions: tuple[ReassignablePartition, ...] = ()


class AlterPartitionReassignmentsRequest(ApiMessage):
    """AlterPartitionReassignmentsRequest: api key 45, versions 0 to 1."""

    timeout_ms: int = 60000
    allow_replication_factor_change: bool = True  # from version 1
    topics: tuple[ReassignableTopic, ...] = ()


class ReassignablePartitionResponse(Message):
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""


class ReassignableTopicResponse(Message):
    name: str = ""
    partitions: tuple[ReassignablePartitionResponse, ...] = ()


class AlterPartitionReassignmentsResponse(ApiMessage):
    """AlterPartitionReassignmentsResponse: api key 45, versions 0 to 1."""

    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True  # from version 1
    error_code: int = 0
    error_message: str | None = ""
    responses: tuple[ReassignableTopicResponse, ...] = ()


class ListPartitionReassignmentsTopics(Message):
    name: str = ""
    partition_indexes: tuple[int, ...] = ()


class ListPartitionReassignmentsRequest(ApiMessage):
    """ListPartitionReassignmentsRequest: api key 46, version 0."""

    timeout_ms: int = 60000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


class OngoingPartitionReassignment(Message):
    partition_index: int = 0
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


class OngoingTopicReassignment(Message):
    name: str = ""
    partitions: tuple[OngoingPartitionReassignment, ...] = ()


class ListPartitionReassignmentsResponse(ApiMessage):
    """ListPartitionReassignmentsResponse: api key 46, version 0."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    topics: tuple[OngoingTopicReassignment, ...] = ()
