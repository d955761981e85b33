"""Arbitrary OffsetCommit requests at two servers, of which one handles none straight: the same answers and records."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes.hostile_clients import mutated
from kafka_processes.served import serve
from tiers import SEED
from wire_answers import LAST, answers, check_alike, note_straight, sent_together

from pyspark_kafkalog.groups.offsets_topic import GroupLogs, ensure_offsets_topic, group_names, offsets_partitions
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.metadata.users import REQUEST_PERCENTAGE, USER, alter_quotas, quota_entity
from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, joined
from pyspark_kafkalog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pyspark_kafkalog.server.groups.offsets import CommittingMember
from pyspark_kafkalog.server.straight.offsets import UsualCommit, parse_usual_commit
from pyspark_kafkalog.storage.names import encode_uuid

COMMIT = APIS[ApiKey.OFFSET_COMMIT]
TOPICS = ("a", "b", "other", "denied")
USUAL_TOPICS = (*TOPICS[:3] * 4, "denied")
GROUPS = (*("group", "another", "third") * 4, "denied")
INT64_MAX = (1 << 63) - 1


class Requests:
    """Draws requests: most of the usual form, some damaged."""

    def __init__(self, source: random.Random, topic_ids: Mapping[str, str]) -> None:
        self._source = source
        self._topic_ids = topic_ids

    def frames(self) -> list[bytes]:
        return sent_together(self._frame, self._source.choice((1, 1, 2, 4)))

    def _frame(self) -> tuple[bytes, bool]:
        source = self._source
        is_usual = source.random() < 0.8
        is_member = source.random() < 0.1
        version = source.choice((8, 9, 10, 10) if is_usual else COMMIT.versions)
        request = OffsetCommitRequest(
            group_id=source.choice(GROUPS if is_usual else (*GROUPS, "", "x" * 126, "x" * 127, "\u00e4", "\udcff")),
            generation_id_or_member_epoch=source.choice((0, 1, -1)) if is_member else -1,
            member_id=source.choice(("", "member")) if is_member else "",
            group_instance_id=source.choice((None, "instance")) if is_member and version >= 7 else None,
            retention_time_ms=source.choice((-1, 1000)) if 2 <= version <= 4 else -1,
            topics=tuple(
                self._topic(version, is_usual=is_usual) for _ in range(source.choice((1, 1, 2) if is_usual else (0, 3)))
            ),
        )
        client_id = source.choice(("client", "", "other"))
        frame = joined(encode_request(COMMIT, version, source.randrange(LAST), client_id, request))[4:]
        is_damaged = source.random() < 0.1
        if is_damaged:
            frame = mutated(source, frame)
        return struct.pack(">h", ApiKey.OFFSET_COMMIT) + frame[2:], is_damaged

    def _topic(self, version: int, *, is_usual: bool) -> OffsetCommitRequestTopic:
        source = self._source
        name = source.choice(USUAL_TOPICS if is_usual else (*TOPICS, "unknown", "", "__consumer_offsets", "\udcff"))
        topic_id = self._topic_ids.get(name, "") or encode_uuid(source.randbytes(16))
        numbers = [source.randrange(3) for _ in range(source.choice((1, 2, 5) if is_usual else (0, 1, 130)))]
        if source.random() < 0.03:
            numbers.append(source.choice((3, -1, 1 << 30)))
        partitions = tuple(self._partition(version, each) for each in numbers)
        return OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)

    def _partition(self, version: int, number: int) -> OffsetCommitRequestPartition:
        source = self._source
        metadata = (
            "" if source.random() < 0.8 else source.choice((None, "text", "x" * 126, "x" * 127, "\u00e4", "x" * 5000))
        )
        return OffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=source.choice((source.randrange(1 << 40), 0, -1, INT64_MAX)),
            committed_leader_epoch=source.choice((-1, 0, 7)) if version >= 6 else -1,
            committed_metadata=metadata,
        )


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """Two roots with the same topics."""
    log_dir = LogDir.create(tmp_path / "a")
    for name in TOPICS:
        log_dir.create_topic(name, 3)
    ensure_offsets_topic(log_dir.root)  # offsets of it are committed, too
    kinds = {ResourceType.TOPIC: "denied", ResourceType.GROUP: "denied"}
    log_dir.access_control().add(
        [
            Acl(kind, name, PatternType.LITERAL, "User:*", "*", AclOperation.READ, permission)
            for kind, denied in kinds.items()
            for name, permission in (("*", PermissionType.ALLOW), (denied, PermissionType.DENY))
        ]
    )
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch, roots: tuple[Path, Path]) -> list[bool]:
    """Whether each request of the first root was handled straight; none of the second is."""
    return note_straight(monkeypatch, roots[0], ApiKey.OFFSET_COMMIT)


def records(root: Path) -> dict[str, dict[bytes, bytes]]:
    """The live records of all groups, without the times of offsets, which are the 8 bytes before the topic's id."""
    log_dir = LogDir.open(root)
    logs = [GroupLogs.of(log_dir.root).caught_up(log_dir.root, each) for each in offsets_partitions(log_dir.root)]
    return {
        group: {key: _without_time(value) for log in logs for key, value in log.records(group).items()}
        for group in group_names(log_dir.root)
    }


def _without_time(value: bytes) -> bytes:
    version = int.from_bytes(value[:2], "big")
    if version == 1:  # its last fields are two times
        return value[:-16]
    at = len(value) - (27 if value[-19:-16] == b"\x01\x00\x10" else 9)
    return value[:at] + value[at + 8 :]


@pytest.mark.slow
def test_both_ways_answer_store_and_count_alike(
    roots: tuple[Path, Path], straight: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"KAFKALOG_SEED={SEED}")
    source = random.Random(SEED)
    topics = LogDir.open(roots[0]).root.native().store.image.topics
    requests = Requests(source, {name: topic.topic_id for name, topic in topics.items()})
    check_alike(monkeypatch, roots, requests.frames, "OFFSET_COMMIT")
    assert min(straight.count(True), straight.count(False)) > len(straight) // 4
    assert records(roots[0]) == records(roots[1])


def commit(port: int, topic_id: str) -> list[bytes]:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = OffsetCommitRequestTopic(topic_id=topic_id, partitions=(partition,))
    request = OffsetCommitRequest(group_id="group", topics=(topic,))
    return answers(port, [joined(encode_request(COMMIT, 10, 5, "client", request))[4:]])


@pytest.mark.parametrize("has_quota", [False, True])
def test_client_with_quota_of_time_is_not_handled_straight(
    roots: tuple[Path, Path], straight: list[bool], has_quota: bool
) -> None:
    log_dir = LogDir.open(roots[0])
    store = log_dir.root.native().store
    topic_id = store.image.topic("a").topic_id
    if has_quota:
        entity, quotas = quota_entity([(USER, None)]), {REQUEST_PERCENTAGE: 1e9}
        store.commit(lambda image: alter_quotas(image.client_quotas, entity, quotas), operation="quota")
    with serve(roots[0]) as bootstrap:
        port = int(bootstrap.rpartition(":")[2])
        for _ in range(2):  # the first one loads the partition of the group
            assert len(commit(port, topic_id)) == 2
    assert [straight[0], straight[-1]] == [False, not has_quota]


def test_request_without_a_byte_is_not_parsed() -> None:
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=each, committed_offset=7, committed_metadata="x" * each)
        for each in range(3)
    )
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=3,
        member_id="m",
        group_instance_id="i",
        topics=(OffsetCommitRequestTopic(name="a", partitions=partitions),),
    )
    frame = bytearray(joined(encode_request(COMMIT, 9, 7, "client", request))[4:])
    rows = [(each, 7, -1, b"x" * each) for each in range(3)]
    assert parse_usual_commit(frame) == UsualCommit(9, 7, "g", CommittingMember("m", "i", 3), ((b"\x02a", rows),))
    for size in range(len(frame)):
        assert parse_usual_commit(frame[:size]) is None
    assert parse_usual_commit(frame + b"\0") is None
