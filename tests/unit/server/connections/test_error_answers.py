"""A handler that fails is answered with errors for all that was asked for, in the versions of all APIs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from fakes.hostile_clients import NAMED, answer_or_end, batch_of, connected, frame_of, produce_of, sized
from kafka_processes.served import serve
from simulations.random_messages import RandomMessages

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    CommitStateUnknownError,
    CorruptRecordError,
    FollowingRootError,
    LogDirError,
    ReadOnlyLogDirError,
    UnknownTopicError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.api import APIS, Api, ApiKey, decode_response, encode_request, joined, parse_request
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from pyspark_kafkalog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pyspark_kafkalog.server.connections.dispatch import Exchange
from pyspark_kafkalog.server.context import CloseConnection, Session
from pyspark_kafkalog.server.request_errors import ApiError, RequestError

#: Their answers have no error codes, or none if nothing is named: all topics, all log directories.
WITHOUT_PLACE = frozenset({ApiKey.METADATA})
PLACE: Final = "/srv/secret"
DAMAGE: Final = {"file": f"{PLACE}/orders-0", "position": 1, "expected": "a batch", "found": "none"}
SERVERS_OWN: Final = (
    LogDirError(f"{PLACE} cannot be read"),
    OSError(5, "Input/output error", PLACE),
    CorruptRecordError(**DAMAGE),  # type: ignore[arg-type]
    UnsupportedFormatError(**DAMAGE),  # type: ignore[arg-type]
    CommitStateUnknownError(f"{PLACE}: it is unknown whether the commit was made"),
    ReadOnlyLogDirError(f"{PLACE} is read-only"),
    FollowingRootError(f"{PLACE} follows /srv/secret-leader"),
    UnknownTopicError(f"no topic orders in {PLACE}"),
    ZeroDivisionError(PLACE),
)


class NoQuotas:
    names: frozenset[str] = frozenset()

    @staticmethod
    def throttle(*charged: Any) -> int:
        return 0


class Context:
    @staticmethod
    async def run(work: Callable[[], Any]) -> Any:
        return work()


class Policy:
    quotas = NoQuotas


def answered(api: Api, version: int, body: Message, error: Exception) -> Message:
    """The response of a handler that raises."""

    async def handler(context: Any, request: Any) -> Any:
        raise error

    frame = bytearray(joined(encode_request(api, version, 1, "tests", body))[4:])  # type: ignore[arg-type]
    parsed = parse_request(frame)
    parts: Any = (Context, Policy, parsed, handler, parsed.body(), Session("h", 1), 1, lambda *told: None)
    pieces = asyncio.run(Exchange(*parts).handle())
    assert pieces is not None
    return decode_response(api, version, joined(pieces)[4:], api.response)[1]


def codes(value: Any) -> list[int]:
    """All error codes in a response."""
    if isinstance(value, tuple):
        return [code for each in value for code in codes(each)]
    if not isinstance(value, Message):
        return []
    found = []
    for name in value.FIELDS:
        inner = getattr(value, name)
        found += [inner] if name.endswith("error_code") else codes(inner)
    return found


@pytest.mark.parametrize("api", APIS.values(), ids=[each.key.name for each in APIS.values()])
def test_error_of_a_handler_is_answered_in_all_versions(api: Api) -> None:
    messages = RandomMessages(random.Random(5))
    for version in api.versions:
        told = 0
        for _ in range(12):
            try:
                body = messages.draw(api.request, version)
                response = answered(api, version, body, LogDirError("cannot be read"))
            except CloseConnection:
                continue
            told += 1
            assert ErrorCode.KAFKA_STORAGE_ERROR in codes(response)
        assert told or api.key in WITHOUT_PLACE, version


def test_defect_of_a_handler_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    heartbeat = APIS[ApiKey.HEARTBEAT]
    assert codes(answered(heartbeat, 4, heartbeat.request(), ZeroDivisionError())) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert "HEARTBEAT failed" in caplog.text


def test_refusal_of_a_request_keeps_its_code_and_text() -> None:
    refused = RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "wait for the group")
    heartbeat = APIS[ApiKey.HEARTBEAT]
    assert codes(answered(heartbeat, 4, heartbeat.request(), refused)) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert ApiError.of(refused) == ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "wait for the group")


@pytest.mark.parametrize("error", SERVERS_OWN, ids=lambda error: type(error).__name__)
def test_client_is_told_no_name_of_a_file_or_store(error: Exception) -> None:
    messages = RandomMessages(random.Random(7))
    for api in APIS.values():
        told = 0
        for _ in range(12):
            body = messages.draw(api.request, api.versions[-1])
            try:
                response = answered(api, api.versions[-1], body, error)
            except CloseConnection:
                continue
            told += 1
            assert PLACE not in str(response), api.key
            assert ErrorCode.CORRUPT_MESSAGE not in codes(response), api.key
        assert told or api.key in WITHOUT_PLACE, api.key
    assert PLACE not in str(ApiError.of(error).message)


def requests_on(topic: str, group: str) -> dict[ApiKey, Message]:
    """Requests that use the topic, the group, or the commit log."""
    return {
        ApiKey.METADATA: MetadataRequest(topics=(MetadataRequestTopic(name=topic),)),
        ApiKey.CREATE_TOPICS: CreateTopicsRequest(
            topics=(CreatableTopic(name="new", num_partitions=1, replication_factor=1),), timeout_ms=1000
        ),
        ApiKey.DELETE_TOPICS: DeleteTopicsRequest(topics=(DeleteTopicState(name=topic),), timeout_ms=1000),
        ApiKey.JOIN_GROUP: JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
        ),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="A" * 22, rebalance_timeout_ms=1000, subscribed_topic_names=(topic,)
        ),
        ApiKey.PRODUCE: produce_of(topic, batch_of(b"x")),
    }


@pytest.mark.parametrize("damage", ["commit", "segment", "group's segment", "gone"])
def test_answers_over_a_damaged_log_directory_name_none_of_its_files(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "secret-place"
    log_dir = LogDir.create(root)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", pa.table({"value": ["x"]}))
    log_dir.group("readers").commit({("orders", 0): 1})
    answers: dict[ApiKey, bytes] = {}
    with serve(root) as bootstrap:
        if damage == "commit":
            log_dir.create_topic("other", partitions=1)
            newest = sorted((root / "__cluster_metadata-0").glob("*.log"))[-1]
            newest.write_bytes(newest.read_bytes()[:-9] + b"damaged!!")
        elif damage == "gone":
            root.rename(tmp_path / "gone")
        else:
            partition = "orders-0" if damage == "segment" else "__consumer_offsets-0"
            (segment,) = (root / partition).glob("*.log")
            segment.write_bytes(b"\xff" * segment.stat().st_size)
        for key, body in requests_on("orders", "readers").items():
            version = min(APIS[key].versions[-1], NAMED)
            with connected(int(bootstrap.rpartition(":")[2])) as client:
                client.sendall(sized(frame_of(APIS[key], version, body)))  # type: ignore[arg-type]
                answers[key] = answer_or_end(client)
    assert {key for key, answer in answers.items() if b"secret-place" in answer} == set()
    assert all(answers.values())
