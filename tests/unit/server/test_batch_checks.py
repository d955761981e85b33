"""Batches that take long to decompress are checked before their commit, and stay in the order of the connection."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.transaction_servers import Coordinated
from patience import PATIENCE_S

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import PartitionProduceData, ProduceRequest, TopicProduceData
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, COMPRESSION_MASK, RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend
from pyspark_kafkalog.server import produce as batch_checks
from pyspark_kafkalog.server.context import Request, Session
from pyspark_kafkalog.server.produce import Produces, is_costly
from pyspark_kafkalog.storage.log import leader_append
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import KIB, MIB

COMPRESSED = [each for each in CODECS if each]


def batch_of(value: bytes, codec: int = CompressionType.NONE) -> bytes:
    record = Record(offset=0, timestamp_ms=1, key=None, value=value, headers=())
    return encode_batch([record], base_offset=0, compression=CompressionType(codec))


def is_found_costly(data: bytes) -> bool:
    return is_costly(memoryview(data), data[ATTRIBUTES_AT + 1] & COMPRESSION_MASK)


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda each: CompressionType(each).name)
def test_batch_of_much_content_is_costly_and_a_usual_one_is_not(codec: int) -> None:
    assert is_found_costly(batch_of(bytes(16 * MIB), codec))
    assert not is_found_costly(batch_of(b"usual" * 100, codec))


def test_batch_without_compression_is_never_costly() -> None:
    assert not is_found_costly(batch_of(bytes(MIB)))


def test_small_zstd_batch_is_costly_by_its_content() -> None:
    small = batch_of(bytes(8 * MIB), CompressionType.ZSTD)
    assert len(small) < 16 * KIB
    assert is_found_costly(small)


@pytest.mark.parametrize("codec", [CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD])
def test_large_batch_is_costly_only_if_it_has_several_times_its_size_of_content(codec: CompressionType) -> None:
    incompressible = os.urandom(MIB)
    large = batch_of(incompressible, codec)
    assert len(large) > MIB
    assert not is_found_costly(large)
    assert is_found_costly(batch_of(incompressible + bytes(16 * MIB), codec))


def test_lz4_frame_of_a_great_many_blocks_is_costly_though_its_content_is_small() -> None:
    whole = batch_of(b"usual" * 100, CompressionType.LZ4)
    frame_head, end_mark = whole[RECORD_BATCH_OVERHEAD_BYTES:][:7], bytes(4)
    block = (1 | 1 << 31).to_bytes(4, "little") + b"x"
    few, many = (whole[:RECORD_BATCH_OVERHEAD_BYTES] + frame_head + block * each + end_mark for each in (100, 10_000))
    assert not is_found_costly(few)
    assert is_found_costly(many)


@pytest.mark.parametrize("codec", [CompressionType.SNAPPY, CompressionType.LZ4])
def test_damaged_frame_is_left_to_the_committer(codec: CompressionType) -> None:
    damaged = bytearray(batch_of(os.urandom(100 * KIB), codec))
    damaged[RECORD_BATCH_OVERHEAD_BYTES : RECORD_BATCH_OVERHEAD_BYTES + 24] = b"\xff" * 24
    assert not is_found_costly(bytes(damaged))


@pytest.mark.parametrize(("topic_codec", "is_checked"), [("lz4", False), ("producer", False), ("gzip", True)])
async def test_large_batch_is_prepared_in_a_thread_only_if_its_topic_has_another_codec(
    server: Coordinated, monkeypatch: pytest.MonkeyPatch, topic_codec: str, is_checked: bool
) -> None:
    prepared_sizes: list[int] = []
    prepared = batch_checks._prepared

    def recorded(context: Any, append: LeaderAppend, content_max: int | None) -> Any:
        prepared_sizes.append(len(append.data))
        return prepared(context, append, content_max)

    monkeypatch.setattr(batch_checks, "_prepared", recorded)
    server.served.root.alter_topic("a", add={"compression.type": topic_codec})
    sent = batch_of(os.urandom(64 * KIB), CompressionType.LZ4)
    (done,) = produce(server, Session("127.0.0.1", 1), [sent])
    answer = await done
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
    server.close()
    assert (len(sent) in prepared_sizes) is is_checked


def produce(server: Coordinated, session: Session, batches: Sequence[bytes]) -> list[asyncio.Task[Any]]:
    """One request a batch, begun one after the other as by a connection."""
    handle = Produces(server.admission).handle

    async def answer(data: bytes) -> Any:
        topic = TopicProduceData(name="a", partition_data=(PartitionProduceData(index=0, records=data),))
        response: Any = await handle(
            server.context, Request(0, 12, "c", ProduceRequest(acks=-1, topic_data=(topic,)), session)
        )
        (partition,) = response.responses[0].partition_responses
        return partition

    return [asyncio.ensure_future(answer(each)) for each in batches]


@pytest.fixture
def server(tmp_path: Path) -> Coordinated:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("a", 1)
    return Coordinated(tmp_path / "root")


async def test_later_requests_of_the_connection_wait_for_the_check_and_other_connections_do_not(
    server: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking = threading.Event()
    prepared = batch_checks._prepared

    def held(*values: Any) -> Any:
        checking.wait(PATIENCE_S)
        return prepared(*values)

    monkeypatch.setattr(batch_checks, "_prepared", held)
    session, other = Session("127.0.0.1", 1), Session("127.0.0.1", 2)
    costly = batch_of(bytes(4 * MIB), CompressionType.ZSTD)
    first, *later = produce(server, session, [costly, batch_of(b"2"), costly, batch_of(b"4")])
    assert [(await each).base_offset for each in produce(server, other, [batch_of(b"1")])] == [0]
    assert not any(each.done() for each in (first, *later))
    checking.set()
    assert [(await each).base_offset for each in (first, *later)] == [1, 2, 3, 4]
    assert not session.attachments
    server.close()


async def test_commit_does_not_decompress_what_was_checked(
    server: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    check = leader_append.validate_batches

    def recorded(*values: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return check(*values, **named)

    monkeypatch.setattr(leader_append, "validate_batches", recorded)
    # The time of the append has to be set in the batch, which only the longest check does.
    server.served.root.alter_topic("a", add={"message.timestamp.type": "LogAppendTime"})
    costly = batch_of(bytes(8 * MIB), CompressionType.GZIP)
    (done,) = produce(server, Session("127.0.0.1", 1), [costly])
    answer = await done
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
    assert answer.log_append_time_ms == server.served.now_ms
    server.close()
    assert len(threads) == 1
    assert threads[0].startswith("transactions")


async def test_batch_that_is_refused_by_its_check_is_answered_and_holds_up_nothing(server: Coordinated) -> None:
    damaged = bytearray(batch_of(bytes(8 * MIB), CompressionType.ZSTD))
    damaged[-1] ^= 1
    refused, stored = produce(server, Session("127.0.0.1", 1), [bytes(damaged), batch_of(b"2")])
    assert (await refused).error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await stored).base_offset == 0
    server.close()


async def test_batch_is_checked_again_if_the_configuration_of_its_topic_has_changed(
    server: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = batch_checks._prepared

    def then_changed(*values: Any) -> Any:
        result = prepared(*values)
        server.served.root.alter_topic("a", add={"max.message.bytes": "100"})
        return result

    monkeypatch.setattr(batch_checks, "_prepared", then_changed)
    (done,) = produce(server, Session("127.0.0.1", 1), [batch_of(bytes(2 * MIB), CompressionType.ZSTD)])
    assert (await done).error_code == ErrorCode.MESSAGE_TOO_LARGE
    server.close()


def test_error_of_a_refused_batch_holds_nothing_of_its_content(server: Coordinated) -> None:
    refused = batch_of(bytes(64 * MIB), CompressionType.GZIP)
    with pytest.raises(InvalidRecordError):
        leader_append.validate_batches(
            refused, next_offset=0, leader_epoch=0, config=LogConfig.from_properties({}), now_ms=1
        )
    (error,) = server.served.commit(CommitUnit.of(LeaderAppend(topic_partition=TopicPartition("a", 0), data=refused)))
    assert isinstance(error, InvalidRecordError)
    assert error.__traceback__ is error.__cause__ is error.__context__ is None
    server.close()


async def test_clients_that_wait_for_a_slot_take_turns() -> None:
    slots, order = batch_checks.Slots(1), []
    held = asyncio.Event()

    async def work(owner: str, name: str) -> None:
        async with slots.of(owner):
            order.append(name)
            await held.wait()

    names = [("bomber", f"bomb {at}") for at in range(4)] + [("other", "batch"), ("third", "one more")]
    tasks = [asyncio.create_task(work(*each)) for each in names]
    await asyncio.sleep(0)
    cancelled = tasks.pop(1)
    cancelled.cancel()
    held.set()
    await asyncio.gather(*tasks)
    assert order == ["bomb 0", "batch", "one more", "bomb 2", "bomb 3"]
    async with slots.of("bomber"):
        pass
