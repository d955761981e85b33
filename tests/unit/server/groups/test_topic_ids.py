"""Commits and fetches of offsets that name topics by id: OffsetCommit and OffsetFetch 10, TxnOffsetCommit 6."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.group_servers import GROUP, GroupServer

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import offsets, transactions
from pyspark_kafkalog.storage.names import encode_uuid

UNKNOWN_ID = encode_uuid(bytes(range(16)))


def id_of(server: GroupServer, topic: str = "a") -> str:
    return server.context.image().topic(topic).topic_id


async def commit(server: GroupServer, *topic_ids: str, version: int = 10, **fields: Any) -> list[tuple[str, int]]:
    """Commit offset 7 of partition 0 of each topic; the ids in the answer, with their errors."""
    one = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    body = offsets.OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        topics=tuple(offsets.OffsetCommitRequestTopic(topic_id=each, partitions=(one,)) for each in topic_ids),
        **fields,
    )
    response = await server.ask(ApiKey.OFFSET_COMMIT, version, body)
    decoded = offsets.OffsetCommitResponse.decode(version, response.encode(version))
    return [(each.topic_id, each.partitions[0].error_code) for each in decoded.topics]


async def fetch(server: GroupServer, *topic_ids: str) -> list[tuple[str, int, int]]:
    """Ids, offsets of partition 0 and errors; of all topics if none is named."""
    asked = tuple(offsets.OffsetFetchRequestTopics(topic_id=each, partition_indexes=(0,)) for each in topic_ids)
    group = offsets.OffsetFetchRequestGroup(group_id=GROUP, topics=asked or None)
    response = await server.ask(ApiKey.OFFSET_FETCH, 10, offsets.OffsetFetchRequest(groups=(group,)))
    (found,) = offsets.OffsetFetchResponse.decode(10, response.encode(10)).groups
    return [
        (each.topic_id, each.partitions[0].committed_offset, each.partitions[0].error_code) for each in found.topics
    ]


async def commit_in_transaction(
    server: GroupServer, *topic_ids: str, version: int = 6, member: str = "", epoch: int = -1
) -> list[tuple[str, int]]:
    """As `commit`, as a part of a transaction that begins with it; in versions before 6 of topic `a`."""
    producer = await server.parts.begin()
    one = transactions.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    body = transactions.TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=GROUP,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=tuple(
            transactions.TxnOffsetCommitRequestTopic(name="" if version >= 6 else "a", topic_id=each, partitions=(one,))
            for each in topic_ids
        ),
    )
    response = await server.ask(ApiKey.TXN_OFFSET_COMMIT, version, body)
    decoded = transactions.TxnOffsetCommitResponse.decode(version, response.encode(version))
    return [(each.topic_id, each.partitions[0].error_code) for each in decoded.topics]


async def test_offsets_committed_by_topic_id_are_those_of_the_topics_name(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    known = id_of(server)
    assert await commit(server, UNKNOWN_ID, known, ZERO_UUID) == [
        (UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID),
        (known, ErrorCode.NONE),
        (ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert await server.fetch() == (7, ErrorCode.NONE)
    assert await fetch(server, known, UNKNOWN_ID) == [
        (known, 7, ErrorCode.NONE),
        (UNKNOWN_ID, -1, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert await fetch(server) == [(known, 7, ErrorCode.NONE)]


async def test_id_of_a_topic_that_was_created_again_commits_nothing(
    servers: Callable[[], GroupServer], path: Path
) -> None:
    server = servers()
    before = id_of(server)
    log_dir = LogDir.open(path)
    log_dir.delete_topic("a")
    log_dir.create_topic("a", partitions=2)
    server.context.root.refresh()
    assert await commit(server, before) == [(before, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert await commit_in_transaction(server, before) == [(before, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert await commit(server, id_of(server)) == [(id_of(server), ErrorCode.NONE)]


async def test_topic_that_another_server_has_just_created_is_found_by_its_id(
    servers: Callable[[], GroupServer], path: Path
) -> None:
    server = servers()
    LogDir.open(path).create_topic("new")
    new_id = LogDir.open(path).topic("new").topic_id
    assert new_id is not None
    assert await commit(server, new_id) == [(new_id, ErrorCode.NONE)]


async def test_topics_that_a_client_may_not_read_are_refused_by_id(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    known = id_of(server)
    server.parts.permissions.denied |= {
        (each, ResourceType.TOPIC) for each in (AclOperation.READ, AclOperation.DESCRIBE)
    }
    assert await commit(server, known) == [(known, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    assert await fetch(server, known) == [(known, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    assert await commit_in_transaction(server, known) == [(known, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    server.parts.permissions.denied |= {(AclOperation.READ, ResourceType.GROUP)}
    assert await commit(server, UNKNOWN_ID) == [(UNKNOWN_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED)]


async def test_offsets_of_a_transaction_are_committed_by_topic_id(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    known = id_of(server)
    assert await commit_in_transaction(server, known, UNKNOWN_ID) == [
        (known, ErrorCode.NONE),
        (UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert await fetch(server, known) == [(known, -1, ErrorCode.NONE)]


@pytest.mark.parametrize(
    ("version", "expected"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)]
)
async def test_old_epoch_of_a_member_is_told_to_clients_that_know_of_epochs(
    servers: Callable[[], GroupServer], version: int, expected: ErrorCode
) -> None:
    server = servers()
    epoch = (await server.beat("m", 0)).member_epoch
    ((_, error),) = await commit_in_transaction(server, id_of(server), version=version, member="m", epoch=epoch + 1)
    assert error == expected


@pytest.mark.parametrize(
    ("version", "expected"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)]
)
async def test_group_that_does_not_exist_is_told_to_clients_that_know_of_epochs(
    servers: Callable[[], GroupServer], version: int, expected: ErrorCode
) -> None:
    server = servers()
    ((_, error),) = await commit_in_transaction(server, id_of(server), version=version, member="m", epoch=3)
    assert error == expected
