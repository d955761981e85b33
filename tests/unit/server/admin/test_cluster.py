"""What describes the cluster: servers, topics page by page, log directories, the quorum, features, replicas."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from fakes.admin_requests import AdminRequests
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    Cursor,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    FeatureUpdateKey,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    MetadataRequest,
    MetadataResponse,
    TopicRequest,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from pyspark_kafkalog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from pyspark_kafkalog.server.admin.configs import ConfigResourceType

CLUSTER = ResourceType.CLUSTER, CLUSTER_NAME


@pytest.fixture
def admin(root_place: RootPlace) -> AdminRequests:
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("a", partitions=3)
    log_dir.create_topic("b", partitions=1)
    log_dir.create_topic("c", partitions=2)
    log_dir.append("b", pa.table({"value": ["x" * 100]}))
    log_dir.refresh()
    return AdminRequests(log_dir.root)


@pytest.fixture
def theirs(tmp_path: Path) -> AdminRequests:
    shutil.copytree(FIXTURES / "cluster-metadata", tmp_path / "theirs")
    return AdminRequests(LogDir.open(tmp_path / "theirs").root)


def test_cluster_has_its_servers_and_the_asked_one_as_controller(admin: AdminRequests) -> None:
    body = DescribeClusterRequest(include_cluster_authorized_operations=True)
    found = admin.ask(ApiKey.DESCRIBE_CLUSTER, body, DescribeClusterResponse)
    assert (found.error_code, found.cluster_id, found.controller_id) == (0, "kafkalog-tests-cluster", 5)
    assert [(each.broker_id, each.host, each.port, each.rack, each.is_fenced) for each in found.brokers] == [
        (5, "127.0.0.1", 9005, "zone-a", False),
        (7, "127.0.0.1", 9007, None, False),
    ]
    assert found.cluster_authorized_operations & 1 << AclOperation.ALTER
    denied = AdminRequests(admin.root, denied=[(AclOperation.DESCRIBE, *CLUSTER)])
    assert denied.ask(ApiKey.DESCRIBE_CLUSTER, body, DescribeClusterResponse).cluster_authorized_operations == 0


@pytest.mark.parametrize("version", [8, 9, 10])
def test_metadata_has_operations_of_the_cluster_for_principals_that_may_describe_it(
    admin: AdminRequests, version: int
) -> None:
    body = MetadataRequest(topics=(), include_cluster_authorized_operations=True)
    found = admin.ask(ApiKey.METADATA, body, MetadataResponse, version=version)
    assert found.cluster_authorized_operations & 1 << AclOperation.ALTER
    denied = AdminRequests(admin.root, denied=[(AclOperation.DESCRIBE, *CLUSTER)])
    assert denied.ask(ApiKey.METADATA, body, MetadataResponse, version=version).cluster_authorized_operations == 0


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_endpoint_is_that_of_a_broker(admin: AdminRequests, endpoint_type: int, code: ErrorCode) -> None:
    body = DescribeClusterRequest(endpoint_type=endpoint_type)
    assert admin.ask(ApiKey.DESCRIBE_CLUSTER, body, DescribeClusterResponse).error_code == code


def page(
    admin: AdminRequests, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str | None, int, list[int]]], tuple[str, int] | None]:
    """Name, error and partitions of the topics of one answer, and the cursor."""
    body = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=each) for each in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    found = admin.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, body, DescribeTopicPartitionsResponse)
    topics = [(each.name, each.error_code, [one.partition_index for one in each.partitions]) for each in found.topics]
    after = found.next_cursor
    return topics, None if after is None else (after.topic_name, after.partition_index)


def test_topics_are_described_with_leaders_and_epochs(admin: AdminRequests) -> None:
    body = DescribeTopicPartitionsRequest(topics=(TopicRequest(name="a"),))
    (topic,) = admin.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, body, DescribeTopicPartitionsResponse).topics
    assert (topic.topic_id, topic.is_internal) == (admin.root.topic("a").topic_id, False)
    assert topic.topic_authorized_operations & 1 << AclOperation.DELETE
    partition = topic.partitions[1]
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (7, (7,), (7,))
    assert (partition.leader_epoch, partition.eligible_leader_replicas, partition.last_known_elr) == (0, (), ())


def test_large_answers_come_page_by_page(admin: AdminRequests) -> None:
    assert page(admin) == ([("a", 0, [0, 1, 2]), ("b", 0, [0]), ("c", 0, [0, 1])], None)
    assert page(admin, limit=2) == ([("a", 0, [0, 1])], ("a", 2))
    assert page(admin, limit=2, cursor=("a", 2)) == ([("a", 0, [2]), ("b", 0, [0])], ("c", 0))
    assert page(admin, limit=2, cursor=("c", 0)) == ([("c", 0, [0, 1])], None)
    assert page(admin, "c", "a", limit=3) == ([("a", 0, [0, 1, 2])], ("c", 0))
    assert page(admin, limit=-5) == ([("a", 0, [0])], ("a", 1))
    assert page(admin, "a", cursor=("a", 99)) == ([("a", 0, [])], None)


def test_cursor_that_is_none_of_the_topics_is_refused(admin: AdminRequests) -> None:
    assert page(admin, "a", cursor=("b", 0)) == ([("a", ErrorCode.INVALID_REQUEST, [])], None)
    assert page(admin, cursor=("b", -1)) == ([("b", ErrorCode.INVALID_REQUEST, [])], None)


def test_unknown_and_hidden_topics_look_alike_to_who_lists_all(admin: AdminRequests) -> None:
    denied = AdminRequests(admin.root, denied=[(AclOperation.DESCRIBE, ResourceType.TOPIC, "b")])
    assert [name for name, _, _ in page(denied)[0]] == ["a", "c"]
    found = {name: code for name, code, _ in page(denied, "b", "nope", "a b")[0]}
    assert found == {
        "b": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def resources(admin: AdminRequests, *types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
    body = ListConfigResourcesRequest(resource_types=types)
    found = admin.ask(ApiKey.LIST_CONFIG_RESOURCES, body, ListConfigResourcesResponse, version=version)
    return found.error_code, [(each.resource_type, each.resource_name) for each in found.config_resources]


def test_topics_and_brokers_have_configurations(admin: AdminRequests) -> None:
    topics = [(ConfigResourceType.TOPIC.value, name) for name in "abc"]
    brokers = [(ConfigResourceType.BROKER.value, node) for node in "57"]
    assert resources(admin, ConfigResourceType.TOPIC) == (0, topics)
    assert resources(admin) == (0, brokers + topics)
    admin.root.alter_group_configs("readers", add={"consumer.heartbeat.interval.ms": "6000"})
    groups = [(ConfigResourceType.GROUP.value, "readers")]
    assert resources(admin, ConfigResourceType.GROUP) == (0, groups)
    assert resources(admin) == (0, brokers + topics + groups)
    assert resources(admin, version=0) == (0, [])
    assert resources(admin, 5) == (ErrorCode.UNSUPPORTED_VERSION, [])
    denied = AdminRequests(admin.root, denied=[(AclOperation.DESCRIBE_CONFIGS, *CLUSTER)])
    assert resources(denied) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])


def log_dirs(admin: AdminRequests, topics: tuple[DescribableLogDirTopic, ...] | None = None) -> DescribeLogDirsResponse:
    return admin.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=topics), DescribeLogDirsResponse)


def test_log_directory_has_the_bytes_of_each_partition(admin: AdminRequests) -> None:
    (found,) = log_dirs(admin).results
    assert (found.error_code, found.log_dir) == (0, str(admin.root.path))
    sizes = {
        (topic.name, each.partition_index): each.partition_size for topic in found.topics for each in topic.partitions
    }
    assert len(sizes) == 6
    assert sizes["a", 0] == 0
    assert 100 < sizes["b", 0] < 300
    has_disk = isinstance(admin.root.path, Path)
    assert (found.total_bytes >= found.usable_bytes > 0) if has_disk else found.total_bytes == -1


def test_log_directory_with_a_relative_path_is_absolute_and_has_the_size_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = log_dirs(AdminRequests(LogDir.create("log").root)).results
    assert found.log_dir == str(tmp_path / "log")
    assert found.total_bytes >= found.usable_bytes > 0


def test_log_directory_has_only_the_partitions_that_are_asked_for_and_exist(admin: AdminRequests) -> None:
    asked = (
        DescribableLogDirTopic(topic="a", partitions=(1, 9)),
        DescribableLogDirTopic(topic="nope", partitions=(0,)),
    )
    (found,) = log_dirs(admin, asked).results
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in found.topics] == [("a", [1])]
    assert log_dirs(admin, ()).results[0].topics == ()
    denied = AdminRequests(admin.root, denied=[(AclOperation.DESCRIBE, *CLUSTER)])
    assert (log_dirs(denied).error_code, log_dirs(denied).results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ())


def test_replicas_stay_in_the_log_directory(admin: AdminRequests) -> None:
    def move(path: str, topic: str) -> int:
        moved = AlterReplicaLogDir(path=path, topics=(AlterReplicaLogDirTopic(name=topic, partitions=(0,)),))
        body = AlterReplicaLogDirsRequest(dirs=(moved,))
        (result,) = admin.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, body, AlterReplicaLogDirsResponse).results
        return result.partitions[0].error_code

    assert move(str(admin.root.path), "a") == ErrorCode.NONE
    assert move("/elsewhere", "a") == ErrorCode.LOG_DIR_NOT_FOUND
    assert move(str(admin.root.path), "nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def quorum(
    admin: AdminRequests, topic: str = "__cluster_metadata", partition: int = 0, *, version: int | None = None
) -> DescribeQuorumResponse:
    asked = DescribeQuorumRequestTopicData(
        topic_name=topic, partitions=(DescribeQuorumRequestPartitionData(partition_index=partition),)
    )
    body = DescribeQuorumRequest(topics=(asked,))
    return admin.ask(ApiKey.DESCRIBE_QUORUM, body, DescribeQuorumResponse, version=version)


def test_servers_are_the_voters_and_see_all_commits(admin: AdminRequests) -> None:
    found = quorum(admin)
    (partition,) = found.topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.high_watermark) == (0, 5, admin.root.version)
    assert [(each.replica_id, each.log_end_offset) for each in partition.current_voters] == [
        (5, admin.root.version),
        (7, admin.root.version),
    ]
    assert [(each.node_id, each.listeners[0].port) for each in found.nodes] == [(5, 9005), (7, 9007)]


@pytest.mark.parametrize("version", APIS[ApiKey.DESCRIBE_QUORUM].versions)
def test_quorum_is_answered_in_every_version(admin: AdminRequests, version: int) -> None:
    (partition,) = quorum(admin, version=version).topics[0].partitions
    assert [each.replica_id for each in partition.current_voters] == [5, 7]


def test_only_the_metadata_log_has_a_quorum(admin: AdminRequests) -> None:
    for found in (quorum(admin, "a"), quorum(admin, partition=1)):
        assert found.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    denied = AdminRequests(admin.root, denied=[(AclOperation.DESCRIBE, *CLUSTER)])
    assert quorum(denied).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_quorum_of_broker_directory_is_that_of_its_metadata_log(theirs: AdminRequests) -> None:
    (partition,) = quorum(theirs).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (0, 1)
    assert [each.replica_id for each in partition.current_voters] == [1]
    assert partition.high_watermark == partition.current_voters[0].log_end_offset > 0


def update(
    admin: AdminRequests, feature: str, level: int, *, version: int = 2, **fields: int
) -> UpdateFeaturesResponse:
    key = FeatureUpdateKey(feature=feature, max_version_level=level, **fields)
    return admin.ask(
        ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(feature_updates=(key,)), UpdateFeaturesResponse, version=version
    )


def test_features_keep_their_levels(admin: AdminRequests) -> None:
    assert update(admin, "transaction.version", 2).error_code == 0
    (result,) = update(admin, "transaction.version", 2, version=1).results
    assert (result.feature, result.error_code) == ("transaction.version", 0)
    for feature, level in (("transaction.version", 1), ("transaction.version", 9), ("nope", 1), ("nope", -1)):
        found = update(admin, feature, level)
        assert found.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert feature in (found.error_message or "")
    denied = AdminRequests(admin.root, denied=[(AclOperation.ALTER, *CLUSTER)])
    assert update(denied, "transaction.version", 2).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_no_leader_needs_an_election(admin: AdminRequests) -> None:
    asked = (TopicPartitions(topic="a", partitions=(0, 9)), TopicPartitions(topic="nope", partitions=(0,)))
    found = admin.ask(ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=asked), ElectLeadersResponse)
    codes = [[each.error_code for each in topic.partition_result] for topic in found.replica_election_results]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[ErrorCode.ELECTION_NOT_NEEDED, unknown], [unknown]]
    everything = ElectLeadersRequest(topic_partitions=None)
    of_all = admin.ask(ApiKey.ELECT_LEADERS, everything, ElectLeadersResponse).replica_election_results
    assert [(each.topic, each.partition_result) for each in of_all] == [("a", ()), ("b", ()), ("c", ())]
    wrong = ElectLeadersRequest(election_type=2, topic_partitions=None)
    assert admin.ask(ApiKey.ELECT_LEADERS, wrong, ElectLeadersResponse).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("replicas", [(), (5, 5), (5, 6)], ids=["none", "twice", "unknown server"])
def test_reassignment_that_no_broker_takes_is_invalid(admin: AdminRequests, replicas: tuple[int, ...]) -> None:
    partitions = (ReassignablePartition(partition_index=0, replicas=replicas),)
    body = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name="a", partitions=partitions),))
    found = admin.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, AlterPartitionReassignmentsResponse)
    assert found.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_replicas_are_reassigned_only_to_where_they_are(admin: AdminRequests) -> None:
    partitions = (
        ReassignablePartition(partition_index=0, replicas=(5,)),
        ReassignablePartition(partition_index=0, replicas=(7,)),
        ReassignablePartition(partition_index=1, replicas=None),
        ReassignablePartition(partition_index=9, replicas=(7,)),
    )
    body = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name="a", partitions=partitions),))
    found = admin.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, AlterPartitionReassignmentsResponse)
    assert [each.error_code for each in found.responses[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    listed = admin.ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(), ListPartitionReassignmentsResponse
    )
    assert (listed.error_code, listed.error_message, listed.topics) == (0, None, ())
