"""controller_mutation_rate: how many partitions a client may create and delete."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.admin_requests import AdminRequests

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.users import CONTROLLER_MUTATION_RATE, USER, quota_entity
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from pyspark_kafkalog.server.security.quotas import ClientQuotas

NONE, THROTTLED = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
def admin(tmp_path: Path) -> AdminRequests:
    """A client that may create and delete one partition a second, ten at once."""
    quotas = {quota_entity([(USER, None)]): {CONTROLLER_MUTATION_RATE: 1.0}}
    return AdminRequests(LogDir.create(tmp_path / "log").root, quotas=ClientQuotas(lambda: quotas, monotonic_ms=int))


def create(
    admin: AdminRequests, *topics: tuple[str, int], version: int | None = None
) -> tuple[list[tuple[str, int]], int]:
    wanted = tuple(CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics)
    body = CreateTopicsRequest(topics=wanted)
    answer = admin.ask(ApiKey.CREATE_TOPICS, body, CreateTopicsResponse, version=version)
    return [(each.name, each.error_code) for each in answer.topics], answer.throttle_time_ms


def test_topics_beyond_the_quota_are_refused_with_the_time_to_wait(admin: AdminRequests) -> None:
    found = create(admin, ("a", 8), ("b", 5), ("c", 1))
    assert found == ([("a", NONE), ("b", NONE), ("c", THROTTLED)], 3_000)
    assert set(admin.root.topics()) == {"a", "b"}
    assert create(admin, ("c", 1)) == ([("c", THROTTLED)], 3_000)


def test_client_that_does_not_know_the_error_is_served_and_throttled(admin: AdminRequests) -> None:
    found = create(admin, ("a", 8), ("b", 5), ("c", 1), version=5)
    assert found == ([("a", NONE), ("b", NONE), ("c", NONE)], 4_000)


def test_topics_that_cannot_be_created_are_not_charged(admin: AdminRequests) -> None:
    create(admin, ("a", 5))
    for _ in range(5):
        assert create(admin, ("a", 5))[0] == [("a", ErrorCode.TOPIC_ALREADY_EXISTS)]
        assert create(admin, ("b/", 5))[0] == [("b/", ErrorCode.INVALID_TOPIC_EXCEPTION)]
    assert create(admin, ("b", 5), ("c", 1)) == ([("b", NONE), ("c", NONE)], 0)


def test_added_partitions_and_partitions_of_deleted_topics_are_charged(admin: AdminRequests) -> None:
    create(admin, ("a", 2), ("b", 1))
    added_to = (("a", 9), ("b", 2), ("no", 1))
    topics = tuple(CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in added_to)
    added = admin.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=topics), CreatePartitionsResponse)
    assert [(each.name, each.error_code) for each in added.results] == [
        ("a", NONE),
        ("b", NONE),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    body = DeleteTopicsRequest(topics=(DeleteTopicState(name="a"),))
    deleted = admin.ask(ApiKey.DELETE_TOPICS, body, DeleteTopicsResponse)
    assert [(each.name, each.error_code) for each in deleted.responses] == [("a", THROTTLED)]
    assert deleted.throttle_time_ms == 1_000
    assert "a" in admin.root.topics()
