"""Fetch as a client sees it, over roots of all kinds: limits, errors, isolation, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.engine_fixtures import FixturePartition, expected_records, partitions_with_offsets
from builders.root_places import RootPlace, is_object_place
from builders.tiered_roots import SMALL_SEGMENTS, TOPIC, append_rounds
from fakes.server_calls import ReadServer
from patience import PATIENCE_S, until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.acl import AclOperation
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import ApiKey, find_api
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.server.connections.request_bytes import ResponseBytes
from pyspark_kafkalog.server.context import Request, Session
from pyspark_kafkalog.server.reads import fetch as fetch_module
from pyspark_kafkalog.storage.names import TopicPartition

RECORDS = 20
LAST_VERSION_BY_NAME = 12
VERSIONS = list(find_api(ApiKey.FETCH).versions)


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """Two partitions of four commits of twenty records each."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic(TOPIC, partitions=3, configs={} if is_object_place(root_place) else SMALL_SEGMENTS)
    for partition in (0, 1):
        append_rounds(log_dir, 4, partition=partition, records=RECORDS)
    return log_dir


@pytest.fixture
def server(log_dir: LogDir) -> Iterator[ReadServer]:
    with ReadServer(log_dir) as server:
        yield server


def asked(offsets: Mapping[int, int], *, topic: str = TOPIC, topic_id: str = ZERO_UUID, **named: Any) -> FetchRequest:
    """A request for partitions of one topic from these offsets on; `named` are fields of the request or a partition."""
    partition_fields = {name: named.pop(name) for name in list(named) if name in FetchPartition.FIELDS}
    values = {"partition_max_bytes": 1 << 20, **partition_fields}
    wanted = tuple(FetchPartition(partition=each, fetch_offset=at, **values) for each, at in offsets.items())
    return FetchRequest(topics=(FetchTopic(topic=topic, topic_id=topic_id, partitions=wanted),), **named)


def fetch(server: ReadServer, request: FetchRequest, version: int = LAST_VERSION_BY_NAME) -> list[PartitionData]:
    """The partitions of the only topic in the response."""
    response = server.call(ApiKey.FETCH, version, request, FetchResponse)
    assert response.error_code == ErrorCode.NONE
    assert response.session_id == 0
    [topic] = response.responses
    return list(topic.partitions)


def offsets_of(found: PartitionData) -> list[tuple[int, int]]:
    assert found.records is not None
    data = bytes(found.records)  # type: ignore[arg-type]
    scan = scan_batches(data, file="response")
    assert scan.consumed_bytes == len(data)
    return list(zip(scan.batches["base_offset"].tolist(), scan.batches["last_offset"].tolist(), strict=True))


def test_every_version_returns_the_records_and_offsets(server: ReadServer, log_dir: LogDir) -> None:
    topic_id = log_dir.topic(TOPIC).topic_id
    assert topic_id is not None
    for version in VERSIONS:
        named = {"topic_id": topic_id} if version > LAST_VERSION_BY_NAME else {}
        first, empty = fetch(server, asked({0: 5, 2: 0}, **named), version)
        assert offsets_of(first)[0] == (0, RECORDS - 1)
        found = (first.partition_index, first.error_code, first.high_watermark, first.last_stable_offset)
        assert found == (0, 0, 80, 80)
        assert (first.aborted_transactions, first.preferred_read_replica) == (None, -1)
        assert (empty.partition_index, empty.error_code, empty.high_watermark, empty.records) == (2, 0, 0, b"")


def test_whole_log_is_consumed_by_following_the_offsets(server: ReadServer) -> None:
    offset, bases = 0, []
    while offset < 80:
        [found] = fetch(server, asked({1: offset}, partition_max_bytes=1000))
        bases += [base for base, _ in offsets_of(found)]
        offset = offsets_of(found)[-1][1] + 1
    assert bases == [0, 20, 40, 60]


def test_bytes_of_records_are_counted_by_topic(server: ReadServer) -> None:
    found = fetch(server, asked({0: 0, 1: 0, 2: 0}))
    sent = sum(len(bytes(each.records or b"")) for each in found)  # type: ignore[arg-type]
    assert server.traffic.by_topic == {TOPIC: sent}
    assert sent > 0
    fetch(server, asked({0: 80}))
    assert server.traffic.by_topic == {TOPIC: sent}


def test_response_holds_exactly_the_partitions_asked_for_in_their_order(server: ReadServer) -> None:
    names = FetchRequest(
        topics=(
            FetchTopic(topic=TOPIC, partitions=(FetchPartition(partition=2), FetchPartition(partition=0))),
            FetchTopic(topic="other", partitions=(FetchPartition(partition=7), FetchPartition(partition=7))),
        )
    )
    response = server.call(ApiKey.FETCH, 12, names, FetchResponse)
    found = [(topic.topic, [each.partition_index for each in topic.partitions]) for topic in response.responses]
    assert found == [(TOPIC, [2, 0]), ("other", [7])]


def test_only_the_first_partition_with_records_may_exceed_the_limits(server: ReadServer) -> None:
    for _ in range(2):
        found = fetch(server, asked({2: 0, 0: 0, 1: 0}, max_bytes=10))
        assert [offsets_of(each) for each in found] == [[], [(0, 19)], []]
    found = fetch(server, asked({0: 0, 1: 0}, partition_max_bytes=10))
    assert [offsets_of(each) for each in found] == [[(0, 19)], []]


def test_max_bytes_bounds_all_partitions_together(server: ReadServer) -> None:
    one = len(bytes(fetch(server, asked({0: 0}, partition_max_bytes=1))[0].records))  # type: ignore[arg-type]
    for _ in range(2):
        found = fetch(server, asked({0: 60, 1: 0}, max_bytes=one + one // 2))
        assert [len(offsets_of(each)) for each in found] == [1, 0]


@pytest.mark.parametrize(
    ("offset", "error"),
    [(80, ErrorCode.NONE), (81, ErrorCode.OFFSET_OUT_OF_RANGE), (-1, ErrorCode.OFFSET_OUT_OF_RANGE)],
)
def test_offsets_outside_of_the_log_are_errors_its_end_is_not(
    server: ReadServer, offset: int, error: ErrorCode
) -> None:
    [found] = fetch(server, asked({0: offset}))
    assert found.error_code == error
    assert found.records == b""
    assert found.high_watermark == (80 if error is ErrorCode.NONE else -1)


def test_offset_below_a_moved_log_start_is_out_of_range(server: ReadServer, log_dir: LogDir) -> None:
    fetch(server, asked({0: 0}))
    delete_records(log_dir.root, {TopicPartition(TOPIC, 0): 50})
    below, inside = (fetch(server, asked({0: offset}))[0] for offset in (49, 50))
    assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert inside.log_start_offset == 50
    assert offsets_of(inside)[0] == (40, 59)


def test_what_another_process_committed_is_found_before_anything_is_called_unknown(
    server: ReadServer, log_dir: LogDir
) -> None:
    other = LogDir.open(log_dir.path)
    other.create_topic("new", partitions=1)
    append_rounds(other, 1, topic="new")
    append_rounds(other, 1, partition=0)
    assert fetch(server, asked({0: 0}, topic="new"))[0].error_code == ErrorCode.NONE
    assert offsets_of(fetch(server, asked({0: 80}))[0]) == [(80, 99)]
    other.add_partitions(TOPIC, 5)
    assert fetch(server, asked({4: 0}))[0].error_code == ErrorCode.NONE


def test_unknown_topics_partitions_and_ids_are_errors_of_their_own(server: ReadServer, log_dir: LogDir) -> None:
    assert fetch(server, asked({0: 0}, topic="none"))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(server, asked({9: 0}))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = fetch(server, asked({0: 0}, topic_id="AAAAAAAAAAAAAAAAAAAABw"), 13)
    assert unknown[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    before = log_dir.topic(TOPIC).topic_id
    log_dir.delete_topic(TOPIC)
    log_dir.create_topic(TOPIC, partitions=1)
    assert fetch(server, asked({0: 0}, topic_id=before or ""), 13)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_leader_epochs_of_the_client_are_compared(server: ReadServer, log_dir: LogDir) -> None:
    epoch = log_dir.partition(TOPIC, 0).leader_epoch
    errors = [fetch(server, asked({0: 0}, current_leader_epoch=each))[0].error_code for each in (-1, epoch, epoch + 1)]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]
    same, ahead, unknown = (
        fetch(server, asked({0: offset}, last_fetched_epoch=last))[0]
        for offset, last in ((60, epoch), (90, epoch), (60, epoch + 3))
    )
    assert offsets_of(same) == [(60, 79)]
    assert (ahead.diverging_epoch.epoch, ahead.diverging_epoch.end_offset, ahead.records) == (epoch, 80, b"")
    assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_client_that_has_read_what_another_process_committed_does_not_diverge(
    server: ReadServer, log_dir: LogDir
) -> None:
    epoch = log_dir.partition(TOPIC, 0).leader_epoch
    append_rounds(LogDir.open(log_dir.path), 2)
    found = fetch(server, asked({0: 100}, last_fetched_epoch=epoch))[0]
    assert (found.error_code, found.diverging_epoch.epoch) == (ErrorCode.NONE, -1)
    assert offsets_of(found) == [(100, 119)]


def test_clients_without_rights_get_an_error_for_each_partition(server: ReadServer, log_dir: LogDir) -> None:
    server.rights.denied.add((AclOperation.READ, TOPIC))
    denied = fetch(server, asked({0: 0, 7: 0}))
    assert [each.error_code for each in denied] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    by_id = fetch(server, asked({0: 0}, topic_id=log_dir.topic(TOPIC).topic_id or ""), 13)
    assert by_id[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert fetch(server, asked({0: 0}, replica_id=1))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    server.rights.denied.add((AclOperation.CLUSTER_ACTION, "kafka-cluster"))
    assert fetch(server, asked({0: 0}, replica_id=1))[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    server.rights.denied.remove((AclOperation.READ, TOPIC))
    assert fetch(server, asked({0: 0}))[0].error_code == ErrorCode.NONE
    as_replica = asked({0: 0}, replica_state=ReplicaState(replica_id=1), topic_id=log_dir.topic(TOPIC).topic_id or "")
    assert fetch(server, as_replica, 18)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


#: What a request waits for that is to be answered earlier.
LONG_MS = 600_000


def wait_for(
    server: ReadServer, request: FetchRequest, then: Any, version: int = LAST_VERSION_BY_NAME
) -> FetchResponse:
    """The response to a request that waits; `then` is called once it does.

    What ends the wait before its time must do so within our patience, which is shorter than LONG_MS.
    """

    async def both() -> FetchResponse:
        answer = asyncio.create_task(server.answer(ApiKey.FETCH, version, request, FetchResponse))
        while not server.waiters.events and not answer.done():
            await asyncio.sleep(0.001)
        then()
        return await asyncio.wait_for(answer, PATIENCE_S)

    return asyncio.run(both())


def test_fetch_at_the_end_waits_until_records_are_committed(server: ReadServer, log_dir: LogDir) -> None:
    def append() -> None:
        append_rounds(log_dir, 1, partition=0, records=RECORDS)
        server.waiters.notify(frozenset({TopicPartition(TOPIC, 0)}))

    response = wait_for(server, asked({1: 80, 0: 80}, max_wait_ms=LONG_MS, min_bytes=1), append)
    assert [offsets_of(each) for each in response.responses[0].partitions] == [[], [(80, 99)]]
    assert not server.waiters.events


def test_fetch_that_waits_returns_no_records_of_a_topic_that_the_client_may_no_longer_read(
    server: ReadServer, log_dir: LogDir
) -> None:
    def revoke_and_append() -> None:
        server.rights.denied.add((AclOperation.READ, TOPIC))
        append_rounds(log_dir, 1, partition=0, records=RECORDS)
        server.waiters.notify(None)

    response = wait_for(server, asked({0: 80}, max_wait_ms=LONG_MS, min_bytes=1), revoke_and_append)
    [found] = response.responses[0].partitions
    assert (found.error_code, found.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


def test_fetch_waits_for_min_bytes_over_all_partitions(server: ReadServer, log_dir: LogDir) -> None:
    def append() -> None:
        for partition in (0, 1):
            append_rounds(log_dir, 1, partition=partition, records=RECORDS)
            server.waiters.notify(None)

    response = wait_for(server, asked({0: 80, 1: 80}, max_wait_ms=LONG_MS, min_bytes=1000), append)
    assert [offsets_of(each) for each in response.responses[0].partitions] == [[(80, 99)], [(80, 99)]]


def test_fetch_returns_what_there_is_when_its_time_is_over(server: ReadServer) -> None:
    response = wait_for(server, asked({2: 0}, max_wait_ms=60, min_bytes=1), lambda: None)
    assert response.responses[0].partitions[0].records == b""
    assert server.waiters.subscribed.is_set()


def test_fetch_does_not_wait_if_there_is_an_error_or_more_than_was_taken(server: ReadServer) -> None:
    for request in (
        asked({2: 0, 9: 0}, max_wait_ms=LONG_MS, min_bytes=1),
        asked({0: 0}, max_wait_ms=LONG_MS, min_bytes=1 << 20, partition_max_bytes=10),
        asked({0: 0}, max_wait_ms=LONG_MS, min_bytes=1 << 20, max_bytes=10),
        asked({0: 90}, max_wait_ms=LONG_MS, min_bytes=1, last_fetched_epoch=0),
        FetchRequest(max_wait_ms=LONG_MS, min_bytes=1),
    ):
        server.call(ApiKey.FETCH, 12, request, FetchResponse)
        assert not server.waiters.subscribed.is_set()


@pytest.mark.parametrize(
    ("is_by_id", "error"), [(True, ErrorCode.INCONSISTENT_TOPIC_ID), (False, ErrorCode.OFFSET_OUT_OF_RANGE)]
)
def test_topic_that_is_replaced_by_another_ends_the_wait(
    server: ReadServer, log_dir: LogDir, is_by_id: bool, error: ErrorCode
) -> None:
    def delete() -> None:
        log_dir.delete_topic(TOPIC)
        log_dir.create_topic(TOPIC, partitions=1)
        server.waiters.notify(None)

    topic_id = log_dir.topic(TOPIC).topic_id or ""
    request = asked({0: 80}, max_wait_ms=LONG_MS, min_bytes=1, topic_id=topic_id)
    response = wait_for(server, request, delete, version=13 if is_by_id else 12)
    assert response.responses[0].partitions[0].error_code == error


@pytest.mark.file_roots
def test_damaged_log_is_an_error_of_its_partition_alone(server: ReadServer, log_dir: LogDir) -> None:
    path = log_dir.partition(TOPIC, 0).directory / "00000000000000000000.log"
    path.write_bytes(b"\x7f" * path.stat().st_size)
    damaged, whole = fetch(server, asked({0: 0, 1: 0}))
    assert damaged.error_code == ErrorCode.CORRUPT_MESSAGE
    assert whole.error_code == ErrorCode.NONE


def consumed(server: ReadServer, part: FixturePartition, isolation: int, start: int) -> Iterator[tuple[int, Any]]:
    """Offsets and values as a consumer gets them, which leaves out control records and aborted transactions."""
    offset = start
    while True:
        request = asked({part.partition: offset}, topic=part.topic, isolation_level=isolation, partition_max_bytes=4000)
        [found] = fetch(server, request)
        assert found.error_code == ErrorCode.NONE
        data = bytes(found.records or b"")  # type: ignore[arg-type]
        if not data:
            assert offset >= (found.last_stable_offset if isolation else found.high_watermark)
            return
        aborted = {(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()}
        ignored: set[int] = set()
        at = 0
        while at < len(data):
            batch = decode_batch(data, at, file="response", file_position=at)
            header = batch.header
            began = {each for each in aborted if each[1] <= header.last_offset}
            ignored |= {producer for producer, _ in began}
            aborted -= began
            if header.is_control:
                ignored.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in ignored):
                yield from ((each.offset, each.value) for each in batch.records if each.offset >= offset)
            at += header.size_bytes
            reached = header.next_offset
        offset = reached


@pytest.mark.parametrize("part", partitions_with_offsets(), ids=str)
def test_consumers_of_brokers_directories_get_what_real_consumers_got(part: FixturePartition) -> None:
    with ReadServer(LogDir.open(part.root)) as server:
        for isolation, name in ((0, "read_uncommitted"), (1, "read_committed")):
            expected = [each["offset"] for each in expected_records(part, name)]
            found = consumed(server, part, isolation, part.offsets["earliest"])
            assert [offset for offset, _ in found] == expected


def test_aborted_transactions_are_ordered_by_their_first_offsets() -> None:
    part = next(each for each in partitions_with_offsets() if each.fixture == "transactions")
    with ReadServer(LogDir.open(part.root)) as server:
        offset, seen = 0, 0
        while offset < part.offsets["last_stable"]:
            request = asked({part.partition: offset}, topic=part.topic, isolation_level=1)
            [found] = fetch(server, request)
            firsts = [each.first_offset for each in found.aborted_transactions or ()]
            assert firsts == sorted(firsts)
            assert all(first <= offsets_of(found)[-1][1] for first in firsts)
            seen += len(firsts)
            offset = offsets_of(found)[-1][1] + 1
        assert seen > 3


def test_many_partitions_are_answered_from_memory(root_place: RootPlace) -> None:
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("wide", partitions=40)
    log_dir.append("wide", pa.table({"value": [f"v{each}" for each in range(400)]}))
    with ReadServer(log_dir) as server:
        counts = 0
        for found in fetch(server, asked(dict.fromkeys(range(40), 0), topic="wide")):
            counts += sum(last - base + 1 for base, last in offsets_of(found))
        assert counts == 400


def test_fetch_of_thousands_of_partitions_lets_others_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get the event loop after each thousand partitions that are read, and between the steps of the request."""
    monkeypatch.setattr("pyspark_kafkalog.server.event_loop._TURN_S", 0.0)
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic(TOPIC, partitions=5000)

    async def turns_of_others(server: ReadServer) -> int:
        count = 0

        async def others() -> None:
            nonlocal count
            while True:
                await asyncio.sleep(0)
                count += 1

        watching = asyncio.create_task(others())
        answered = await server.answer(
            ApiKey.FETCH, LAST_VERSION_BY_NAME, asked(dict.fromkeys(range(5000), 0), max_bytes=1 << 20), FetchResponse
        )
        watching.cancel()
        assert len(answered.responses[0].partitions) == 5000
        return count

    with ReadServer(log_dir) as server:
        assert asyncio.run(turns_of_others(server)) >= 5 + 3


async def test_records_of_a_store_count_as_long_as_they_are_in_memory(
    server: ReadServer, root_place: RootPlace
) -> None:
    memory = ResponseBytes(1 << 20, server.context.monotonic_ms)
    server.context = replace(server.context, record_memory=memory)
    request = asked({0: 0, 1: 0}, min_bytes=1)
    asking = server.handlers[ApiKey.FETCH](
        server.context, Request(ApiKey.FETCH, LAST_VERSION_BY_NAME, "app", request, Session("h", 1))
    )
    answer = await asking
    assert (memory.read_bytes > 0) == is_object_place(root_place)
    del answer
    await until(lambda: memory.read_bytes == 0)


def test_fetch_that_holds_many_records_does_not_wait_long_for_others(
    server: ReadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_HELD_BYTES_MAX", 10)
    monkeypatch.setattr(fetch_module, "_HELD_MS_MAX", 5)
    response = wait_for(server, asked({0: 60}, max_wait_ms=LONG_MS, min_bytes=1 << 20), lambda: None)
    assert offsets_of(response.responses[0].partitions[0]) == [(60, 79)]
