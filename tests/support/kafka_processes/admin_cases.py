"""Admin requests that go to a real broker and to a server of this package, whose answers are compared.

A case makes its requests from a prefix for the names of topics, so that it can be repeated for each version of its API.
compared_answers.py says what of the answers must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import (
    Cursor,
    DescribeClusterRequest,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeTopicPartitionsRequest,
    FeatureUpdateKey,
    ListConfigResourcesRequest,
    TopicRequest,
    UpdateFeaturesRequest,
)
from pyspark_kafkalog.protocol.messages.records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from pyspark_kafkalog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from pyspark_kafkalog.protocol.messages.topics import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from pyspark_kafkalog.server.admin.configs import ConfigResourceType

_TOPIC, _BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_UNKNOWN_ID: Final = "AAAAAAAAAAAAAAAAAAAAAg"
_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class AdminCase:
    """The requests of one API, in order; each sees what the ones before it did. The number is the server's node id."""

    key: ApiKey
    requests: Callable[[str, int], Sequence[ApiMessage]]

    @property
    def name(self) -> str:
        return self.key.name.lower()


def _creatable(name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def creation(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=topics, timeout_ms=_TIMEOUT_MS, validate_only=validate_only)


def _create_topics(prefix: str, node_id: int) -> Sequence[ApiMessage]:
    def assigned(*partitions: tuple[int, tuple[int, ...]]) -> dict[str, Any]:
        found = tuple(CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in partitions)
        return {"assignments": found}

    retention = CreatableTopicConfig(name="retention.ms", value="5000")
    return (
        creation(_creatable(f"{prefix}-a", 2, configs=(retention,)), _creatable(f"{prefix}-b", -1, -1)),
        creation(
            _creatable(f"{prefix}-a"),
            _creatable(f"{prefix}-c"),
            _creatable("a b"),
            _creatable("."),
            _creatable("x" * 250),
            _creatable("__cluster_metadata"),
            _creatable(f"{prefix}-d", 0),
            _creatable(f"{prefix}-e", 1, 0),
            _creatable(f"{prefix}-f", configs=(CreatableTopicConfig(name="nope", value="1"),)),
            _creatable(f"{prefix}-g", configs=(CreatableTopicConfig(name="segment.bytes", value="x"),)),
            _creatable(f"{prefix}-h", configs=(CreatableTopicConfig(name="segment.bytes", value=None),)),
            _creatable(f"{prefix}-i", -1, -1, **assigned((0, (node_id,)), (1, (node_id,)))),
            _creatable(f"{prefix}-j", 1, -1, **assigned((0, (node_id,)))),
            _creatable(f"{prefix}-k", -1, 1, **assigned((0, (node_id,)))),
            _creatable(f"{prefix}-l", -1, -1, **assigned((0, (node_id, node_id)))),
            _creatable(f"{prefix}-m", -1, -1, **assigned((1, (node_id,)))),
            _creatable(f"{prefix}-n", -1, -1, **assigned((0, ()))),
        ),
        creation(_creatable(f"{prefix}-twice"), _creatable(f"{prefix}-twice"), _creatable(f"{prefix}-o")),
        creation(_creatable(f"{prefix}-v", 3), _creatable(f"{prefix}-a"), validate_only=True),
        creation(_creatable(f"{prefix}-v", 10_001)),
        creation(_creatable(f"{prefix}.a")),
    )


def _delete_topics(prefix: str, _: int) -> Sequence[ApiMessage]:
    def deletion(*topics: tuple[str | None, str]) -> DeleteTopicsRequest:
        states = tuple(DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics)
        return DeleteTopicsRequest(topics=states, timeout_ms=_TIMEOUT_MS)

    name = f"{prefix}-a"
    return (
        creation(_creatable(name)),
        deletion((name, ZERO_UUID), (name, ZERO_UUID)),
        deletion((name, _UNKNOWN_ID), (None, _UNKNOWN_ID), (None, ZERO_UUID)),
        deletion((name, ZERO_UUID), ("nope", ZERO_UUID)),
        deletion((name, ZERO_UUID)),
    )


def _delete_topics_by_names(prefix: str, _: int) -> Sequence[ApiMessage]:
    names = (f"{prefix}-a", "nope")
    return (creation(_creatable(names[0])), DeleteTopicsRequest(topic_names=names, timeout_ms=_TIMEOUT_MS))


def _create_partitions(prefix: str, node_id: int) -> Sequence[ApiMessage]:
    def addition(*topics: CreatePartitionsTopic, validate_only: bool = False) -> CreatePartitionsRequest:
        return CreatePartitionsRequest(topics=topics, timeout_ms=_TIMEOUT_MS, validate_only=validate_only)

    def larger(name: str, count: int, *assignments: tuple[int, ...]) -> CreatePartitionsTopic:
        given = tuple(CreatePartitionsAssignment(broker_ids=ids) for ids in assignments) or None
        return CreatePartitionsTopic(name=f"{prefix}-{name}", count=count, assignments=given)

    return (
        creation(*(_creatable(f"{prefix}-{name}", 2) for name in "abcd")),
        addition(larger("a", 3), validate_only=True),
        addition(larger("a", 3), larger("nope", 3), larger("b", 3, (node_id,)), larger("c", 1), larger("d", 2)),
        addition(larger("c", 4, (node_id,)), larger("d", 3, ())),
        addition(larger("a", 4), larger("a", 5)),
        addition(larger("c", 0), larger("d", -1)),
    )


def _delete_records(prefix: str, _: int) -> Sequence[ApiMessage]:
    def deletion(**offsets: int) -> DeleteRecordsRequest:
        partitions = {
            name: (DeleteRecordsPartition(partition_index=0, offset=offset),) for name, offset in offsets.items()
        }
        topics = tuple(
            DeleteRecordsTopic(name=f"{prefix}-{name}", partitions=each) for name, each in partitions.items()
        )
        return DeleteRecordsRequest(topics=topics, timeout_ms=_TIMEOUT_MS)

    compact = CreatableTopicConfig(name="cleanup.policy", value="compact")
    return (
        creation(_creatable(f"{prefix}-a"), _creatable(f"{prefix}-compacted", configs=(compact,))),
        deletion(a=-1, compacted=0, nope=0),
        deletion(a=0),
        deletion(a=1),
        deletion(a=-2),
    )


def described(kind: int, name: str, *keys: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    return DescribeConfigsRequest(resources=(resource,), include_synonyms=True)


def _describe_configs(prefix: str, node_id: int) -> Sequence[ApiMessage]:
    name = f"{prefix}-a"
    configs = (
        CreatableTopicConfig(name="cleanup.policy", value="compact, delete"),
        CreatableTopicConfig(name="min.cleanable.dirty.ratio", value="0.00025"),
        CreatableTopicConfig(name="segment.ms", value=" 7777 "),
    )
    return (
        creation(_creatable(name, configs=configs)),
        described(_TOPIC, name),
        described(_TOPIC, name, "segment.ms", "nope"),
        described(_TOPIC, "nope"),
        described(_TOPIC, "a b"),
        described(_BROKER, ""),
        described(_BROKER, str(node_id), "log.segment.bytes", "log.roll.ms", "log.cleaner.io.max.bytes.per.second"),
        described(_BROKER, str(node_id + 1)),
        described(_BROKER, "x"),
        described(ConfigResourceType.CLIENT_METRICS, "metrics", "nope"),
        described(ConfigResourceType.GROUP, ""),
    )


def _alter_configs(prefix: str, _: int) -> Sequence[ApiMessage]:
    def change(name: str, validate_only: bool = False, **configs: str | None) -> AlterConfigsRequest:
        given = tuple(
            AlterConfigsRequestAlterableConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        )
        resource = AlterConfigsRequestAlterConfigsResource(resource_type=_TOPIC, resource_name=name, configs=given)
        return AlterConfigsRequest(resources=(resource,), validate_only=validate_only)

    name = f"{prefix}-a"
    retention = CreatableTopicConfig(name="retention.ms", value="5000")
    return (
        creation(_creatable(name, configs=(retention,))),
        change(name, validate_only=True, segment_ms="9000"),
        described(_TOPIC, name),
        change(name, segment_ms="9000"),
        described(_TOPIC, name),
        change(name, segment_ms=None),
        change(name, segment_ms="x"),
        change(name, nope="x"),
        change("nope", segment_ms="9000"),
        change("", segment_ms="9000"),
    )


def _incremental_alter_configs(prefix: str, node_id: int) -> Sequence[ApiMessage]:
    name = f"{prefix}-a"

    def change(*operations: tuple[int, str, str | None], kind: int = _TOPIC, resource: str = name) -> ApiMessage:
        given = tuple(
            IncrementalAlterConfigsRequestAlterableConfig(config_operation=operation, name=key, value=value)
            for operation, key, value in operations
        )
        changed = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=resource, configs=given
        )
        return IncrementalAlterConfigsRequest(resources=(changed,))

    return (
        creation(_creatable(name)),
        change((_SET, "segment.ms", "9000"), (_SET, "retention.ms", "5000")),
        change((_DELETE, "segment.ms", None), (_DELETE, "flush.ms", None), (_APPEND, "cleanup.policy", "compact")),
        described(_TOPIC, name),
        change((_SUBTRACT, "cleanup.policy", "delete")),
        described(_TOPIC, name),
        change((_APPEND, "segment.ms", "1")),
        change((_SET, "segment.ms", None)),
        change((_SET, "segment.ms", "x")),
        change((_SET, "nope", "x")),
        change((_SET, "segment.ms", "9000"), resource="nope"),
        change((_SET, "segment.ms", "9000"), resource=""),
        change((_SET, "log.roll.ms", "9000"), kind=_BROKER, resource=""),
        described(_BROKER, ""),
        described(_TOPIC, name),
        change((_DELETE, "log.roll.ms", None), kind=_BROKER, resource=""),
        described(_BROKER, ""),
        change((_SET, "log.roll.ms", "9000"), kind=_BROKER, resource=str(node_id + 1)),
        change((_SET, "log.roll.ms", "9000"), kind=_BROKER, resource="x"),
    )


def _list_config_resources(prefix: str, _: int) -> Sequence[ApiMessage]:
    return (
        ListConfigResourcesRequest(resource_types=(ConfigResourceType.CLIENT_METRICS,)),
        ListConfigResourcesRequest(resource_types=(_BROKER,)),
        ListConfigResourcesRequest(resource_types=(_TOPIC,)),
        ListConfigResourcesRequest(resource_types=(99,)),
    )


def _list_client_metrics(prefix: str, _: int) -> Sequence[ApiMessage]:
    return (ListConfigResourcesRequest(),)


def _describe_log_dirs(prefix: str, _: int) -> Sequence[ApiMessage]:
    name = f"{prefix}-a"
    asked = (
        DescribableLogDirTopic(topic=name, partitions=(1, 9)),
        DescribableLogDirTopic(topic="nope", partitions=(0,)),
    )
    return (
        creation(_creatable(name, 2)),
        DescribeLogDirsRequest(topics=asked),
        DescribeLogDirsRequest(topics=()),
        DescribeLogDirsRequest(topics=None),
    )


def _describe_cluster(prefix: str, _: int) -> Sequence[ApiMessage]:
    return (DescribeClusterRequest(), DescribeClusterRequest(include_cluster_authorized_operations=True))


def _describe_controllers(prefix: str, _: int) -> Sequence[ApiMessage]:
    return (DescribeClusterRequest(endpoint_type=2), DescribeClusterRequest(endpoint_type=9))


def _describe_topic_partitions(prefix: str, _: int) -> Sequence[ApiMessage]:
    def page(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=tuple(TopicRequest(name=each) for each in names),
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )

    first, second = f"{prefix}-a", f"{prefix}-b"
    return (
        creation(_creatable(first, 3), _creatable(second, 1)),
        page(first, second, "nope", "a b"),
        page(second, first, limit=2),
        page(second, first, limit=2, cursor=(first, 2)),
        page(second, first, limit=3),
        page(first, limit=0),
        page(first, cursor=(first, 99)),
        page(first, cursor=(second, 0)),
        page(first, cursor=(first, -1)),
    )


def _describe_quorum(prefix: str, _: int) -> Sequence[ApiMessage]:
    def quorum(topic: str, partition: int) -> DescribeQuorumRequest:
        partitions = (DescribeQuorumRequestPartitionData(partition_index=partition),)
        return DescribeQuorumRequest(topics=(DescribeQuorumRequestTopicData(topic_name=topic, partitions=partitions),))

    return (quorum("__cluster_metadata", 0),)


def _update_features(prefix: str, _: int) -> Sequence[ApiMessage]:
    def update(feature: str, level: int) -> UpdateFeaturesRequest:
        return UpdateFeaturesRequest(feature_updates=(FeatureUpdateKey(feature=feature, max_version_level=level),))

    return (update("transaction.version", 2), update("transaction.version", 9), update("nope", 1))


def _elect_leaders(prefix: str, _: int) -> Sequence[ApiMessage]:
    name = f"{prefix}-a"
    asked = (TopicPartitions(topic=name, partitions=(0, 1, 9)), TopicPartitions(topic="nope", partitions=(0,)))
    return (
        creation(_creatable(name, 2)),
        ElectLeadersRequest(topic_partitions=asked),
        ElectLeadersRequest(topic_partitions=None),
    )


def _alter_reassignments(prefix: str, _: int) -> Sequence[ApiMessage]:
    def cancel(name: str) -> AlterPartitionReassignmentsRequest:
        topic = ReassignableTopic(name=name, partitions=(ReassignablePartition(partition_index=0),))
        return AlterPartitionReassignmentsRequest(topics=(topic,))

    return (creation(_creatable(f"{prefix}-a")), cancel(f"{prefix}-a"), cancel("nope"))


def _list_reassignments(prefix: str, _: int) -> Sequence[ApiMessage]:
    return (ListPartitionReassignmentsRequest(),)


#: Each of them in all versions of its API.
CASES: Final = (
    AdminCase(ApiKey.CREATE_TOPICS, _create_topics),
    AdminCase(ApiKey.CREATE_PARTITIONS, _create_partitions),
    AdminCase(ApiKey.DELETE_RECORDS, _delete_records),
    AdminCase(ApiKey.DESCRIBE_CONFIGS, _describe_configs),
    AdminCase(ApiKey.ALTER_CONFIGS, _alter_configs),
    AdminCase(ApiKey.INCREMENTAL_ALTER_CONFIGS, _incremental_alter_configs),
    AdminCase(ApiKey.DESCRIBE_LOG_DIRS, _describe_log_dirs),
    AdminCase(ApiKey.DESCRIBE_CLUSTER, _describe_cluster),
    AdminCase(ApiKey.DESCRIBE_TOPIC_PARTITIONS, _describe_topic_partitions),
    AdminCase(ApiKey.DESCRIBE_QUORUM, _describe_quorum),
    AdminCase(ApiKey.UPDATE_FEATURES, _update_features),
    AdminCase(ApiKey.ELECT_LEADERS, _elect_leaders),
    AdminCase(ApiKey.ALTER_PARTITION_REASSIGNMENTS, _alter_reassignments),
    AdminCase(ApiKey.LIST_PARTITION_REASSIGNMENTS, _list_reassignments),
)
#: Those whose requests some versions cannot hold, with the versions that can.
CASES_OF_VERSIONS: Final = (
    (AdminCase(ApiKey.DELETE_TOPICS, _delete_topics_by_names), range(1, 6)),
    (AdminCase(ApiKey.DELETE_TOPICS, _delete_topics), range(6, 7)),
    (AdminCase(ApiKey.DESCRIBE_CLUSTER, _describe_controllers), range(1, 3)),
    (AdminCase(ApiKey.LIST_CONFIG_RESOURCES, _list_client_metrics), range(1)),
    (AdminCase(ApiKey.LIST_CONFIG_RESOURCES, _list_config_resources), range(1, 2)),
)
