"""CreateTopics, CreatePartitions, DeleteTopics and DeleteRecords as a server answers them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from fakes.admin_requests import AdminRequests

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from pyspark_kafkalog.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from pyspark_kafkalog.root.admin import MAX_PARTITIONS_PER_COMMIT
from pyspark_kafkalog.storage.names import TopicPartition

ANY_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAg"


@pytest.fixture
def admin(root_place: RootPlace) -> AdminRequests:
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("there", partitions=2)
    return AdminRequests(log_dir.root)


def creatable(name: str, partitions: int = 1, factor: int = 3, **fields: object) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def assigned(*partitions: tuple[int, tuple[int, ...]]) -> tuple[CreatableReplicaAssignment, ...]:
    return tuple(CreatableReplicaAssignment(partition_index=number, broker_ids=ids) for number, ids in partitions)


def create(
    admin: AdminRequests, *topics: CreatableTopic, validate_only: bool = False, version: int | None = None
) -> list[CreatableTopicResult]:
    body = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return list(admin.ask(ApiKey.CREATE_TOPICS, body, CreateTopicsResponse, version=version).topics)


def test_topic_is_created_with_configurations_and_answered_with_id_and_effective_ones(admin: AdminRequests) -> None:
    configs = (CreatableTopicConfig(name="retention.ms", value="5"),)
    (result,) = create(admin, creatable("orders", 3, configs=configs))
    described = admin.root.topic("orders")
    assert (result.error_code, result.error_message, result.topic_id) == (0, None, described.topic_id)
    assert (result.num_partitions, result.replication_factor, len(described.partitions)) == (3, 1, 3)
    shown = {each.name: (each.value, each.config_source, each.read_only) for each in result.configs or ()}
    assert shown["retention.ms"] == ("5", 1, False)
    assert shown["segment.bytes"] == ("1073741824", 5, False)
    assert dict(described.configs) == {"retention.ms": "5"}


def test_minus_one_stands_for_num_partitions(admin: AdminRequests) -> None:
    admin.root.alter_broker_configs(add={"num.partitions": "4"})
    (result,) = create(admin, creatable("orders", -1, -1))
    assert result.num_partitions == len(admin.root.partition_numbers("orders")) == 4


def test_validated_topic_is_not_created(admin: AdminRequests) -> None:
    good, there = create(admin, creatable("orders", 2), creatable("there"), validate_only=True)
    assert (good.error_code, good.num_partitions, good.topic_id) == (0, 2, ZERO_UUID)
    assert there.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert admin.root.topics() == ("there",)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creatable("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creatable("there", 0), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creatable("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (creatable("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (creatable("new", 0), ErrorCode.INVALID_PARTITIONS),
        (creatable("new", -2), ErrorCode.INVALID_PARTITIONS),
        (creatable("new", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("new", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("new", MAX_PARTITIONS_PER_COMMIT + 1), ErrorCode.POLICY_VIOLATION),
        (creatable("new", configs=(CreatableTopicConfig(name="nope", value="1"),)), ErrorCode.INVALID_CONFIG),
        (creatable("new", configs=(CreatableTopicConfig(name="retention.ms", value=None),)), ErrorCode.INVALID_CONFIG),
        (creatable("new", 1, -1, assignments=assigned((0, (1,)))), ErrorCode.INVALID_REQUEST),
        (creatable("new", -1, 1, assignments=assigned((0, (1,)))), ErrorCode.INVALID_REQUEST),
        (creatable("new", -1, -1, assignments=assigned((0, ()))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("new", -1, -1, assignments=assigned((0, (1, 1)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("new", -1, -1, assignments=assigned((0, (1,)), (1, (1, 2)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("new", -1, -1, assignments=assigned((0, (1,)), (0, (1,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("new", -1, -1, assignments=assigned((1, (1,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_topic_that_cannot_be_created_is_refused_with_kafkas_code_and_a_message(
    admin: AdminRequests, topic: CreatableTopic, code: ErrorCode
) -> None:
    (result,) = create(admin, topic)
    assert result.error_code == code
    assert result.error_message
    assert admin.root.topics() == ("there",)


def test_manual_assignment_decides_the_number_of_partitions(admin: AdminRequests) -> None:
    (result,) = create(admin, creatable("new", -1, -1, assignments=assigned((1, (2, 1)), (0, (1, 2)))))
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_topics_of_one_request_have_one_commit_and_each_its_own_answer(admin: AdminRequests) -> None:
    results = create(admin, creatable("a"), creatable("twice"), creatable("b"), creatable("twice"), creatable("there"))
    assert {each.name: each.error_code for each in results} == {
        "a": ErrorCode.NONE,
        "twice": ErrorCode.INVALID_REQUEST,
        "b": ErrorCode.NONE,
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
    }
    assert [each.topics for each in admin.root.history(limit=1)] == [("a", "b")]


def test_topics_are_created_with_permission_for_the_cluster_or_for_the_topic(admin: AdminRequests) -> None:
    denied = [
        (AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME),
        (AclOperation.CREATE, ResourceType.TOPIC, "theirs"),
        (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "own"),
    ]
    theirs, own = create(AdminRequests(admin.root, denied=denied), creatable("theirs"), creatable("own"))
    assert theirs.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (own.error_code, own.topic_config_error_code) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert (own.num_partitions, own.configs) == (-1, ())
    assert admin.root.topics() == ("own", "there")


def add_partitions(admin: AdminRequests, *topics: CreatePartitionsTopic, validate_only: bool = False) -> dict[str, int]:
    body = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    response = admin.ask(ApiKey.CREATE_PARTITIONS, body, CreatePartitionsResponse)
    assert all(each.error_message for each in response.results if each.error_code)
    return {each.name: each.error_code for each in response.results}


def larger(name: str, count: int, *assignments: tuple[int, ...]) -> CreatePartitionsTopic:
    given = tuple(CreatePartitionsAssignment(broker_ids=ids) for ids in assignments) or None
    return CreatePartitionsTopic(name=name, count=count, assignments=given)


def test_partitions_are_added_and_every_topic_is_answered(admin: AdminRequests) -> None:
    admin.root.create_topic("second", 1)
    assert add_partitions(admin, larger("there", 4), validate_only=True) == {"there": 0}
    assert len(admin.root.partition_numbers("there")) == 2
    assert add_partitions(admin, larger("there", 4), larger("nope", 4), larger("second", 2, (1,))) == {
        "there": ErrorCode.NONE,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "second": ErrorCode.NONE,
    }
    assert len(admin.root.partition_numbers("there")) == 4
    assert len(admin.root.partition_numbers("second")) == 2


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (larger("there", 2), ErrorCode.INVALID_PARTITIONS),
        (larger("there", -1), ErrorCode.INVALID_PARTITIONS),
        (larger("there", 20_000), ErrorCode.INVALID_PARTITIONS),
        (larger("there", 4, (1,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (larger("there", 3, (1, 1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    admin: AdminRequests, topic: CreatePartitionsTopic, code: ErrorCode
) -> None:
    assert add_partitions(admin, topic) == {"there": code}
    assert len(admin.root.partition_numbers("there")) == 2


def test_partitions_are_added_once_and_with_permission(admin: AdminRequests) -> None:
    assert add_partitions(admin, larger("there", 4), larger("there", 5)) == {"there": ErrorCode.INVALID_REQUEST}
    denied = AdminRequests(admin.root, denied=[(AclOperation.ALTER, ResourceType.TOPIC, "there")])
    assert add_partitions(denied, larger("there", 4)) == {"there": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def delete(
    admin: AdminRequests, *topics: tuple[str | None, str], version: int | None = None
) -> list[tuple[str | None, str, int]]:
    states = tuple(DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics)
    names = tuple(name for name, _ in topics if name is not None)
    by_state = version is None or version >= 6
    body = DeleteTopicsRequest(topics=states) if by_state else DeleteTopicsRequest(topic_names=names)
    response = admin.ask(ApiKey.DELETE_TOPICS, body, DeleteTopicsResponse, version=version)
    return [(each.name, each.topic_id, each.error_code) for each in response.responses]


def test_topics_are_deleted_by_name_and_by_id(admin: AdminRequests) -> None:
    ids = {"there": admin.root.topic("there").topic_id}
    ids["other"] = admin.root.create_topic("other").topic_id
    found = delete(admin, ("there", ZERO_UUID), (None, str(ids["other"])), (None, ANY_TOPIC_ID), ("nope", ZERO_UUID))
    assert set(found) == {
        ("there", ids["there"], ErrorCode.NONE),
        ("other", ids["other"], ErrorCode.NONE),
        (None, ANY_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID),
        ("nope", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
    assert admin.root.topics() == ()
    assert admin.notified.partitions >= {TopicPartition("there", 0), TopicPartition("there", 1)}


def test_ambiguous_deletions_delete_nothing(admin: AdminRequests) -> None:
    topic_id = str(admin.root.topic("there").topic_id)
    refused = ErrorCode.INVALID_REQUEST
    assert delete(admin, ("there", ZERO_UUID), ("there", ZERO_UUID)) == [("there", ZERO_UUID, refused)]
    assert delete(admin, (None, topic_id), (None, topic_id)) == [(None, topic_id, refused)]
    assert delete(admin, ("there", topic_id)) == [("there", topic_id, refused)]
    assert delete(admin, (None, ZERO_UUID)) == [(None, ZERO_UUID, refused)]
    assert delete(admin, (None, topic_id), ("there", ZERO_UUID)) == [("there", topic_id, refused)]
    assert admin.root.topics() == ("there",)


def test_deletion_hides_the_names_of_topics_that_may_not_be_described(admin: AdminRequests) -> None:
    topic_id = str(admin.root.topic("there").topic_id)
    delete_it = (AclOperation.DELETE, ResourceType.TOPIC, "there")
    cluster = (AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME)
    describe_it = (AclOperation.DESCRIBE, ResourceType.TOPIC, "there")
    may_describe = AdminRequests(admin.root, denied=[delete_it, cluster])
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert delete(may_describe, (None, topic_id)) == [("there", topic_id, code)]
    assert delete(may_describe, ("there", ZERO_UUID)) == [("there", ZERO_UUID, code)]
    may_nothing = AdminRequests(admin.root, denied=[delete_it, cluster, describe_it])
    assert delete(may_nothing, (None, topic_id)) == [(None, topic_id, code)]
    assert delete(may_nothing, ("there", ZERO_UUID)) == [("there", ZERO_UUID, code)]
    assert admin.root.topics() == ("there",)


@pytest.mark.parametrize(("version", "code"), [(6, "TOPIC_DELETION_DISABLED"), (1, "INVALID_REQUEST")])
def test_disabled_deletion_is_told_as_far_as_the_version_can(admin: AdminRequests, version: int, code: str) -> None:
    admin.root.alter_broker_configs(add={"delete.topic.enable": "false"})
    assert delete(admin, ("there", ZERO_UUID), version=version) == [("there", ZERO_UUID, ErrorCode[code])]
    assert admin.root.topics() == ("there",)


def delete_records(admin: AdminRequests, **offsets: int) -> dict[str, tuple[int, int]]:
    topics = tuple(
        DeleteRecordsTopic(name=name, partitions=(DeleteRecordsPartition(partition_index=0, offset=offset),))
        for name, offset in offsets.items()
    )
    response = admin.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=topics), DeleteRecordsResponse)
    return {each.name: (each.partitions[0].low_watermark, each.partitions[0].error_code) for each in response.topics}


def test_records_are_deleted_below_an_offset_or_the_high_watermark(admin: AdminRequests, root_place: RootPlace) -> None:
    log_dir = LogDir.open(root_place)
    for topic in ("one", "all", "kept", "above"):
        log_dir.append(topic, pa.table({"value": ["1", "2", "3"]}))
    log_dir.create_topic("compacted", configs={"cleanup.policy": "compact"})
    denied = AdminRequests(admin.root, denied=[(AclOperation.DELETE, ResourceType.TOPIC, "kept")])
    assert delete_records(denied, one=1, all=-1, kept=1, above=4, compacted=0, nope=1) == {
        "one": (1, ErrorCode.NONE),
        "all": (3, ErrorCode.NONE),
        "kept": (-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        "above": (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        "compacted": (-1, ErrorCode.POLICY_VIOLATION),
        "nope": (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
    assert delete_records(admin, one=0) == {"one": (1, ErrorCode.NONE)}
    assert admin.root.partition("all", 0).log_start_offset == 3
    assert admin.root.partition("kept", 0).log_start_offset == 0
