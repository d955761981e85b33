"""Arbitrary Produce requests at two servers, of which one handles none straight: the same answers, logs and counts."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from builders.leader_writers import batch
from fakes.hostile_clients import mutated
from kafka_processes.served import serve
from tiers import SEED
from wire_answers import LAST, answers, check_alike, note_straight, sent_together

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.metadata.users import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    alter_quotas,
    quota_entity,
)
from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, joined
from pyspark_kafkalog.protocol.messages.records import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, CRC_AT, crc32c
from pyspark_kafkalog.server.straight.produce import UsualProduce, parse_usual
from pyspark_kafkalog.storage.names import encode_uuid

PRODUCE = APIS[ApiKey.PRODUCE]
TOPICS = ("a", "a", "zstd", "compact", "small", "denied")
NAMES = (*TOPICS, "unknown", "", "x" * 126, "x" * 127, "__consumer_offsets", "\udcff")


class Requests:
    """Draws requests: most of the usual form, some damaged, some with sequences that do not follow."""

    def __init__(self, source: random.Random, topic_ids: Mapping[str, str]) -> None:
        self._source = source
        self._topic_ids = topic_ids

    def frames(self) -> list[bytes]:
        return sent_together(self._frame, self._source.choice((1, 1, 2, 5)))

    def _frame(self) -> tuple[bytes, bool]:
        source = self._source
        is_usual = source.random() < 0.7
        count = 1 if is_usual else source.choice((0, 1, 1, 2))
        request = ProduceRequest(
            transactional_id=None if is_usual else source.choice((None, None, "t")),
            acks=source.choice((-1, 1) if is_usual else (-1, 1, 0, 2)),
            timeout_ms=source.randrange(60_000),
            topic_data=tuple(self._topic(is_usual=is_usual) for _ in range(count)),
        )
        version = source.choice((9, 10, 11, 12, 13, 13, 13) if is_usual else PRODUCE.versions)
        client_id = source.choice(("client", "", "__admin_client"))
        frame = joined(encode_request(PRODUCE, version, source.randrange(LAST), client_id, request))[4:]
        is_damaged = source.random() < 0.1
        if is_damaged:
            frame = mutated(source, frame)
        return struct.pack(">h", ApiKey.PRODUCE) + frame[2:], is_damaged or request.acks == 0

    def _topic(self, *, is_usual: bool) -> TopicProduceData:
        source = self._source
        indexes = [0] if is_usual else [source.choice((0, 1, 2, -1)) for _ in range(source.choice((0, 1, 1, 2)))]
        partitions = tuple(PartitionProduceData(index=each, records=self._records()) for each in indexes)
        name = source.choice(TOPICS if is_usual else NAMES)
        topic_id = self._topic_ids.get(name, "") or encode_uuid(source.randbytes(16))
        return TopicProduceData(name=name, topic_id=topic_id, partition_data=partitions)

    def _records(self) -> bytes | None:
        source = self._source
        values = [bytes(source.randrange(40)) for _ in range(source.choice((1, 1, 2, 5)))]
        if source.random() < 0.05:
            values.append(bytes(2 << 20))  # costly, if it is compressed; too large, if not
        made = bytearray(
            batch(
                values,
                key=source.choice((b"k", b"k", None)),
                codec=source.choice((CompressionType.NONE,) * 3 + tuple(CompressionType)),
                producer=self._producer(),
                at_ms=source.choice((1_700_000_000_000, -1, 1 << 60)) if source.random() < 0.1 else 1_700_000_000_000,
            )
        )
        kind = source.random()
        if kind < 0.04:  # of a transaction, a control batch, a codec that does not exist, another timestamp type
            made[ATTRIBUTES_AT + 1] |= source.choice((0x10, 0x20, 0x07, 0x08))
            struct.pack_into(">I", made, CRC_AT, crc32c(made[ATTRIBUTES_AT:]))
        elif kind < 0.12:
            at = source.randrange(len(made))
            made[at] = source.choice((0, made[at] ^ 1, 0xFF, 0x80))
        elif kind < 0.16:
            return source.choice((None, b"", bytes(made[:40]), bytes(made) * 2, bytes(made) + b"x", bytes(61)))
        return bytes(made)

    def _producer(self) -> tuple[int, int, int]:
        """None, one without batches, or one whose batches follow each other by chance."""
        source = self._source
        if source.random() < 0.7:
            return source.choice(((-1, -1, -1), (source.randrange(1000, 1 << 40), source.choice((0, 1)), 0)))
        return source.choice((1, 2)), source.choice((0, 0, 0, 0, 1)), source.choice((0, 0, 1, 2, 3, 5, (1 << 31) - 1))


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """Two roots with the same topics."""
    log_dir = LogDir.create(tmp_path / "a")
    log_dir.create_topic("a", 2)
    log_dir.create_topic("zstd", 1, configs={"compression.type": "zstd"})
    log_dir.create_topic("compact", 1, configs={"cleanup.policy": "compact"})
    log_dir.create_topic("small", 1, configs={"max.message.bytes": "200"})
    log_dir.create_topic("denied", 1)
    permissions = {"*": PermissionType.ALLOW, "denied": PermissionType.DENY}
    log_dir.access_control().add(
        [
            Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:*", "*", AclOperation.WRITE, permission)
            for name, permission in permissions.items()
        ]
    )
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch, roots: tuple[Path, Path]) -> list[bool]:
    """Whether each request of the first root was handled straight; none of the second is."""
    return note_straight(monkeypatch, roots[0], ApiKey.PRODUCE)


@pytest.mark.slow
def test_both_ways_answer_store_and_count_alike(
    roots: tuple[Path, Path], straight: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"KAFKALOG_SEED={SEED}")
    source = random.Random(SEED)
    topics = LogDir.open(roots[0]).root.native().store.image.topics
    requests = Requests(source, {name: topic.topic_id for name, topic in topics.items()})
    assert any("bytes" in name for name, _ in check_alike(monkeypatch, roots, requests.frames, "PRODUCE"))
    assert min(straight.count(True), straight.count(False)) > len(straight) // 4
    for name, topic in topics.items():
        for each in range(len(topic.partitions)):
            logs = [
                b"".join(path.read_bytes() for path in sorted((root / f"{name}-{each}").glob("*.log")))
                for root in roots
            ]
            assert logs[0] == logs[1]


def produce(port: int, topic_id: str, correlation_id: int = 5) -> list[bytes]:
    partition = PartitionProduceData(index=0, records=batch([b"x"]))
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=(TopicProduceData(topic_id=topic_id, partition_data=(partition,)),)
    )
    return answers(port, [joined(encode_request(PRODUCE, 13, correlation_id, "client", request))[4:]])


@pytest.mark.parametrize("quota", [PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, CONSUMER_BYTE_RATE])
def test_client_with_quotas_of_what_it_produces_is_not_handled_straight(
    roots: tuple[Path, Path], straight: list[bool], quota: str
) -> None:
    log_dir = LogDir.open(roots[0])
    topic_id = log_dir.root.native().store.image.topic("a").topic_id
    store = log_dir.root.native().store
    store.commit(
        lambda image: alter_quotas(image.client_quotas, quota_entity([(USER, None)]), {quota: 1e9}), operation="quota"
    )
    with serve(roots[0]) as bootstrap:
        assert len(produce(int(bootstrap.rpartition(":")[2]), topic_id)) == 2
    assert straight[0] == (quota == CONSUMER_BYTE_RATE)


def test_damaged_or_long_numbers_end_no_parse() -> None:
    usual = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=(TopicProduceData(name="a", partition_data=(PartitionProduceData(index=3, records=batch()),)),),
    )
    frame = bytearray(joined(encode_request(PRODUCE, 12, 7, "client", usual))[4:])
    found = parse_usual(frame)
    assert found == UsualProduce(12, 7, b"\x02a", 3, len(frame) - 3 - len(batch()), len(frame) - 3, 0, 3)
    for size in range(len(frame)):
        assert parse_usual(frame[:size]) is None
    assert parse_usual(frame + b"\0") is None
    at = found.begin - 2  # the length of the records, in two bytes
    long = frame[:at] + b"\x80" * 60 + b"\x01" + frame[found.begin :]
    assert parse_usual(long) is None
