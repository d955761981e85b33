"""Transactions as producers see them: begun, ended, fenced, timed out, repeated, and in one commit with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transaction_servers import MINUTE_MS, Coordinated, run

from pyspark_kafkalog.errors import KafkalogError, OutOfOrderSequenceError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.leader.units import AppendedRange
from pyspark_kafkalog.root.transactions.appends import state_append
from pyspark_kafkalog.root.transactions.end_transaction import abort_transactional_id
from pyspark_kafkalog.root.transactions.states import TransactionStatus, transaction_states_of
from pyspark_kafkalog.server.error_codes import RefusedError
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch

Start = Callable[[], Coordinated]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server's coordinator over the same root."""
    log_dir = LogDir.open_or_create(tmp_path / "root")
    log_dir.create_topic("a", 2)
    log_dir.create_topic("b", 1)
    log_dir.alter_broker_configs(add={"transaction.state.log.num.partitions": "2"})
    started: list[Coordinated] = []

    def begin() -> Coordinated:
        started.append(Coordinated(tmp_path / "root"))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def error_of(result: object) -> ErrorCode:
    assert isinstance(result, RefusedError), result
    return result.error_code


def epoch_after(result: ProducerIdAndEpoch | ErrorCode) -> ProducerIdAndEpoch:
    assert isinstance(result, ProducerIdAndEpoch), result
    return result


def status_of(server: Coordinated, name: str = "t") -> TransactionStatus:
    root = server.served.root
    assert isinstance(root, FileRoot)
    root.refresh()
    return TransactionStatus(transaction_states_of(root)[name].status)


async def with_epoch(server: Coordinated, epoch: int) -> ProducerIdAndEpoch:
    """The producer after so many transactions that it has this epoch."""
    found = await server.coordinator.find("t")
    log = server.coordinator.logs.of(server.context.image(), "t")
    assert found is not None
    assert log is not None
    topic_id = server.context.image().topic("__transaction_state").topic_id
    step = replace(found, producer_epoch=epoch)
    server.served.append(state_append(log.topic_partition, [step], topic_id=topic_id, now_ms=server.served.now_ms))
    return ProducerIdAndEpoch(found.producer_id, epoch)


def test_committed_transaction_over_partitions_becomes_visible_with_one_commit(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1", b"2"])
        await server.produce(producer, [b"3"], topic="b")
        assert server.committed() == []
        assert len(server.unstable()) == 2
        version = server.served.root.version
        after = await server.end(producer)
        server.served.root.refresh()
        offsets = {each.offset for each in server.served.root.history() if each.offset >= version}
        assert len(offsets) == 1
        assert after == ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
        assert (server.committed(), server.committed("b"), server.unstable()) == ([b"1", b"2"], [b"3"], [])
        assert status_of(server) is TransactionStatus.COMPLETE_COMMIT

    run(scenario())


def test_aborted_transaction_is_never_visible(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        producer = epoch_after(await server.end(producer, is_commit=False))
        await server.produce(producer, [b"2"])
        await server.end(producer)
        assert (server.committed(), server.unstable()) == ([b"2"], [])

    run(scenario())


def test_producer_unknown_to_a_partition_begins_with_sequence_zero_in_transactions_of_version_2(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        assert isinstance(await server.produce(producer, [b"1"], sequence=1), OutOfOrderSequenceError)
        assert isinstance(await server.produce(producer, [b"0"]), AppendedRange)
        assert isinstance(await server.produce(producer, [b"1"], sequence=1), AppendedRange)
        await server.end(producer)
        assert server.committed() == [b"0", b"1"]

    run(scenario())


def test_producer_unknown_to_a_partition_begins_with_any_sequence_in_earlier_transactions(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        assert await server.add(producer, [("a", 0)]) is ErrorCode.NONE
        assert isinstance(await server.produce(producer, [b"1"], sequence=4, version=9), AppendedRange)

    run(scenario())


def test_old_client_adds_partitions_before_it_writes(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        assert error_of(await server.produce(producer, [b"0"], version=11)) is ErrorCode.TRANSACTION_ABORTABLE
        assert error_of(await server.produce(producer, [b"0"], version=9)) is ErrorCode.INVALID_TXN_STATE
        assert await server.add(producer, [("a", 0), ("b", 0)]) is ErrorCode.NONE
        assert isinstance(await server.produce(producer, [b"1"], version=9), AppendedRange)
        assert await server.end(producer, version=3) == producer
        assert (server.committed(), server.unstable()) == ([b"1"], [])

    run(scenario())


def test_second_producer_aborts_the_first_ones_transaction_and_fences_it(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        first = await server.begin()
        await server.produce(first, [b"1"])
        second = await server.begin()
        assert second.producer_id == first.producer_id
        assert second.producer_epoch == first.producer_epoch + 2
        assert server.unstable() == []
        assert error_of(await server.produce(first, [b"2"], sequence=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await server.end(first) is ErrorCode.PRODUCER_FENCED
        assert await server.end(first, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await server.add(first, [("a", 0)]) is ErrorCode.PRODUCER_FENCED
        assert await server.add(first, [("a", 0)], version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        fenced = await server.init(expected=first)
        assert fenced.error_code == ErrorCode.PRODUCER_FENCED
        assert (await server.init(expected=first, version=3)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        await server.produce(second, [b"3"])
        await server.end(second)
        assert server.committed() == [b"3"]

    run(scenario())


def test_zombie_that_asks_for_its_epoch_does_not_end_the_next_ones_transaction(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        zombie = await server.begin()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        assert (await server.init(expected=zombie)).error_code == ErrorCode.PRODUCER_FENCED
        await server.end(producer)
        assert server.committed() == [b"1"]

    run(scenario())


def test_end_that_is_repeated_succeeds_with_the_same_epoch(start: Start) -> None:
    async def scenario() -> None:
        server, other = start(), start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        after = await server.end(producer)
        end_offset = server.served.state().log_end_offset
        assert await server.end(producer) == after
        assert await other.end(producer) == after
        assert await server.end(producer, is_commit=False) is ErrorCode.INVALID_TXN_STATE
        assert server.served.state().log_end_offset == end_offset

    run(scenario())


def test_end_of_an_old_client_that_is_repeated_succeeds(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.add(producer, [("a", 0)])
        await server.produce(producer, [b"1"], version=9)
        for _ in range(2):
            assert await server.end(producer, version=3) == producer
        assert await server.end(producer, is_commit=False, version=3) is ErrorCode.INVALID_TXN_STATE

    run(scenario())


def test_abort_without_a_partition_raises_the_epoch_and_commit_is_refused(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        assert await server.end(producer) is ErrorCode.INVALID_TXN_STATE
        after = epoch_after(await server.end(producer, is_commit=False))
        assert after.producer_epoch == producer.producer_epoch + 1
        assert await server.end(after, is_commit=False, version=3) == after

    run(scenario())


def test_unknown_id_and_other_producer_id_are_no_mapping(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        other = replace(producer, producer_id=producer.producer_id + 1)
        assert await server.end(producer, name="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await server.end(other) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert error_of(await server.produce(other, [b"1"])) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await server.add_group(producer, "g", name="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING

    run(scenario())


def test_producer_that_goes_on_after_an_error_gets_the_next_epoch_once(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        first = await server.init(expected=producer)
        again = await server.init(expected=producer)
        assert first.producer_epoch == again.producer_epoch == producer.producer_epoch + 1

    run(scenario())


def test_exhausted_epochs_end_in_a_new_producer_id(start: Start) -> None:
    async def scenario() -> None:
        server, other = start(), start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        producer = epoch_after(await server.end(producer))
        producer = await with_epoch(server, 32766)
        await server.produce(producer, [b"2"])
        after = epoch_after(await server.end(producer))
        assert after.producer_id != producer.producer_id
        assert after.producer_epoch == 0
        assert await server.end(producer) == after  # repeated
        assert await other.end(producer) == after  # by another server, which has read it from the log
        await other.produce(after, [b"3"])
        await other.end(after)
        assert server.committed() == [b"1", b"2", b"3"]

    run(scenario())


def test_transaction_over_its_timeout_is_aborted_and_its_producer_fenced(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin(timeout_ms=1000)
        await server.produce(producer, [b"1"])
        await server.coordinator.abort_timed_out()
        assert server.unstable() != []
        server.served.now_ms += 1001
        await server.coordinator.abort_timed_out()
        assert (server.unstable(), status_of(server)) == ([], TransactionStatus.COMPLETE_ABORT)
        assert error_of(await server.produce(producer, [b"2"], sequence=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
        # It may go on with the epoch after, as the retry of an abort tells it.
        after = epoch_after(await server.end(producer, is_commit=False))
        await server.produce(after, [b"3"])
        await server.end(after)
        assert server.committed() == [b"3"]

    run(scenario())


def test_unused_id_is_removed_and_its_name_begins_anew(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        server.served.now_ms += 8 * 24 * 60 * MINUTE_MS
        await server.coordinator.remove_expired()
        assert await server.coordinator.find("t") is not None  # it has a transaction open
        await server.end(producer)
        await server.coordinator.remove_expired()
        assert await server.coordinator.find("t") is not None  # it was just used
        server.served.now_ms += 8 * 24 * 60 * MINUTE_MS
        await server.coordinator.remove_expired()
        assert await server.coordinator.find("t") is None
        assert await server.end(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await server.begin()).producer_id != producer.producer_id

    run(scenario())


def test_timeout_out_of_bounds_and_bad_producer_are_refused(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        for timeout_ms in (0, -1, 15 * MINUTE_MS + 1):
            assert (await server.init(timeout_ms=timeout_ms)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert (await server.init("")).error_code == ErrorCode.INVALID_REQUEST
        half = ProducerIdAndEpoch(5, -1)
        assert (await server.init(expected=half)).error_code == ErrorCode.INVALID_REQUEST

    run(scenario())


def test_offsets_in_a_transaction_count_when_it_commits(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        group = server.served.log_dir.group("g")
        producer = await server.begin()
        assert await server.commit_offset(producer, 5) is ErrorCode.NONE
        await server.produce(producer, [b"1"])
        server.served.log_dir.refresh()
        assert group.fetch() == {}
        producer = epoch_after(await server.end(producer))
        server.served.log_dir.refresh()
        assert [each.offset for each in group.fetch().values()] == [5]
        assert await server.commit_offset(producer, 9) is ErrorCode.NONE
        await server.end(producer, is_commit=False)
        server.served.log_dir.refresh()
        assert [each.offset for each in group.fetch().values()] == [5]
        assert server.unstable() == []

    run(scenario())


def test_old_client_adds_its_group_before_offsets(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        assert await server.commit_offset(producer, 5, version=3) is ErrorCode.INVALID_TXN_STATE
        assert await server.commit_offset(producer, 5, version=4) is ErrorCode.TRANSACTION_ABORTABLE
        assert await server.add_group(producer, "g") is ErrorCode.NONE
        assert await server.commit_offset(producer, 5, version=3) is ErrorCode.NONE
        assert await server.end(producer, version=3) == producer
        assert server.unstable() == []

    run(scenario())


def test_offsets_are_refused_for_members_topics_and_long_metadata(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        long = "m" * 4097
        assert await server.commit_offset(producer, 1, metadata=long) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await server.commit_offset(producer, 1, topic="none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await server.commit_offset(producer, 1, group="") is ErrorCode.INVALID_GROUP_ID
        server.groups.error = ErrorCode.ILLEGAL_GENERATION
        assert await server.commit_offset(producer, 1) is ErrorCode.ILLEGAL_GENERATION
        server.groups.error = ErrorCode.NONE
        await server.begin()
        assert await server.commit_offset(producer, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert server.unstable() == []

    run(scenario())


def test_batches_of_one_commit_join_one_transaction(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        results = await server.together(
            server.produce(producer, [b"1"]),
            server.produce(producer, [b"2"], sequence=1),
            server.produce(producer, [b"x"], topic="b"),
            server.produce(producer, [b"y"], partition=1),
        )
        assert all(isinstance(each, AppendedRange) for each in results)
        assert len(server.unstable()) == 3
        await server.end(producer)
        assert (server.committed(), server.committed("b"), server.unstable()) == ([b"1", b"2"], [b"x"], [])

    run(scenario())


def test_partition_of_a_refused_batch_loses_no_later_batch_of_the_commit(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"], topic="b")
        results = await server.together(
            server.produce(producer, [b"?"], topic="b", sequence=7),  # out of order
            server.produce(producer, [b"2"]),
            server.produce(producer, [b"3"], sequence=1),
        )
        assert [isinstance(each, KafkalogError) for each in results] == [True, False, False]
        await server.end(producer)
        assert (server.committed(), server.committed("b"), server.unstable()) == ([b"2", b"3"], [b"1"], [])

    run(scenario())


def test_batch_after_the_end_in_one_commit_is_refused(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.add(producer, [("a", 0)])
        await server.produce(producer, [b"1"], version=9)
        ended, late, other = await server.together(
            server.end(producer, version=3),
            server.produce(producer, [b"late"], sequence=1, version=9),
            server.produce(producer, [b"other"], topic="b", version=12),
        )
        assert ended == producer
        assert error_of(late) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert error_of(other) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (server.committed(), server.committed("b"), server.unstable()) == ([b"1"], [], [])

    run(scenario())


def test_refused_batch_does_not_keep_the_transaction_from_ending(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        assert isinstance(await server.produce(producer, [b"?"], sequence=9), KafkalogError)
        assert isinstance(await server.produce(producer, [b"?"], topic="b", partition=7), KafkalogError)
        assert isinstance(await server.end(producer, is_commit=False), ProducerIdAndEpoch)
        assert server.unstable() == []

    run(scenario())


def test_two_servers_decide_about_one_id_by_what_was_committed(start: Start) -> None:
    async def scenario() -> None:
        one, two = start(), start()
        producer = await one.begin()
        assert isinstance(await two.produce(producer, [b"1"]), AppendedRange)
        assert isinstance(await one.produce(producer, [b"2"], topic="b"), AppendedRange)
        after = epoch_after(await two.end(producer))
        assert error_of(await one.produce(producer, [b"late"], sequence=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert isinstance(await one.produce(after, [b"3"]), AppendedRange)
        newer = await two.begin()
        assert await one.end(after) is ErrorCode.PRODUCER_FENCED
        assert isinstance(await one.end(newer, is_commit=False), ProducerIdAndEpoch)
        assert (one.committed(), one.committed("b"), two.unstable()) == ([b"1"], [b"2"], [])

    run(scenario())


def test_sweep_beside_other_servers_looks_again_at_what_its_image_lacks(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        server, other = start(), start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        store = server.served.root.store
        old_image = store.refresh()
        await other.produce(producer, [b"2"], topic="b")
        newest_image = store.refresh()
        assert server.coordinator.logs.find(newest_image, "t") is not None
        images = [old_image, newest_image]  # a refresh that other threads overtake before its image is looked at
        monkeypatch.setattr(store, "refresh", lambda: images.pop(0) if len(images) > 1 else newest_image)
        server.served.now_ms += 2 * MINUTE_MS
        await server.coordinator.abort_timed_out()
        monkeypatch.undo()
        assert (server.unstable(), status_of(server)) == ([], TransactionStatus.COMPLETE_ABORT)
        assert caplog.messages == []

    run(scenario())


def test_first_reading_of_the_states_needs_no_newest_image(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        await server.begin()
        old_image = server.served.root.store.refresh()
        await server.begin("u")
        found = start().coordinator.logs.find(old_image, "t")
        assert found is not None
        assert found.status is TransactionStatus.EMPTY

    run(scenario())


def test_abort_by_the_operators_command_is_seen_by_the_server(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        root = server.served.root
        assert isinstance(root, FileRoot)
        root.refresh()
        abort_transactional_id(root, "t")
        assert server.unstable() == []
        assert error_of(await server.produce(producer, [b"2"], sequence=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
        after = await server.begin()
        await server.produce(after, [b"3"])
        await server.end(after)
        assert server.committed() == [b"3"]

    run(scenario())


def test_deleted_topic_keeps_no_transaction_open(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        await server.produce(producer, [b"2"], topic="b")
        server.served.root.delete_topic("b")
        assert isinstance(await server.end(producer), ProducerIdAndEpoch)
        assert (server.committed(), server.unstable()) == ([b"1"], [])

    run(scenario())


def test_other_coordinators_ids_are_not_decided_here(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        server.cluster.coordinator_id = 2
        assert (await server.init()).error_code == ErrorCode.NOT_COORDINATOR
        assert await server.add(producer, [("a", 0)]) is ErrorCode.NOT_COORDINATOR
        assert await server.add_group(producer, "g") is ErrorCode.NOT_COORDINATOR
        assert await server.commit_offset(producer, 1) is ErrorCode.NOT_COORDINATOR
        assert await server.end(producer) is ErrorCode.NOT_COORDINATOR
        described = await server.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=("t",))
        )
        assert described.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
        listed = await server.ask(ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest())
        assert listed.transaction_states == ()
        assert (await server.init(None)).error_code == ErrorCode.NONE  # any server gives out producer ids

    run(scenario())


def test_producer_ids_of_servers_and_of_spark_writers_never_meet(start: Start) -> None:
    async def scenario() -> None:
        one, two = start(), start()
        one.served.root.init_transaction("spark", "run 1")
        taken = [(await server.init(None)).producer_id for server in (one, two, one, two) for _ in range(3)]
        one.served.root.refresh()
        one.served.root.init_transaction("t", "run 1")
        taken.append((await one.begin()).producer_id)
        taken += [each.producer_id for each in one.served.root.store.refresh().transactional_ids.values()]
        assert len(set(taken)) == len(taken)

    run(scenario())


def test_requests_without_permission_are_refused(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        denied = server.permissions.denied
        denied.add((AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID))
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await server.init()).error_code == refused
        assert await server.end(producer) is refused
        assert await server.add(producer, [("a", 0)]) is refused
        assert await server.add_group(producer, "g") is refused
        assert await server.commit_offset(producer, 1) is refused
        denied.clear()
        denied.add((AclOperation.READ, ResourceType.GROUP))
        assert await server.add_group(producer, "g") is ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert await server.commit_offset(producer, 1) is ErrorCode.GROUP_AUTHORIZATION_FAILED
        denied.add((AclOperation.WRITE, ResourceType.TOPIC))
        assert await server.add(producer, [("a", 0)]) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        denied.add((AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER))
        assert (await server.init(None)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run(scenario())


def marker_request(producer: ProducerIdAndEpoch, *, coordinator_epoch: int, topic: str = "a") -> WriteTxnMarkersRequest:
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(0,)),),
        coordinator_epoch=coordinator_epoch,
    )
    return WriteTxnMarkersRequest(markers=(marker,))


async def write_marker(server: Coordinated, producer: ProducerIdAndEpoch, epoch: int = 0, topic: str = "a") -> int:
    body = marker_request(producer, coordinator_epoch=epoch, topic=topic)
    response = await server.ask(ApiKey.WRITE_TXN_MARKERS, 1, body)
    assert response.markers[0].producer_id == producer.producer_id
    error: int = response.markers[0].topics[0].partitions[0].error_code
    return error


def test_marker_of_an_operator_ends_the_transaction_in_its_partition_alone(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        await server.produce(producer, [b"2"], topic="b")
        assert await write_marker(server, producer) == ErrorCode.NONE
        assert [each.topic for each in server.unstable()] == ["b"]
        assert status_of(server) is TransactionStatus.ONGOING
        assert await write_marker(server, producer, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await server.end(producer)
        assert (server.committed(), server.committed("b"), server.unstable()) == ([], [b"2"], [])
        assert await write_marker(server, producer) == ErrorCode.INVALID_PRODUCER_EPOCH
        server.permissions.denied |= {
            (each, ResourceType.CLUSTER) for each in (AclOperation.ALTER, AclOperation.CLUSTER_ACTION)
        }
        assert await write_marker(server, producer) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run(scenario())


def test_marker_with_high_epochs_does_not_keep_later_transactions_open(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1"])
        assert await write_marker(server, producer, epoch=9) == ErrorCode.NONE
        producer = epoch_after(await server.end(producer))
        await server.produce(producer, [b"2"])
        producer = epoch_after(await server.end(producer))
        assert (server.committed(), server.unstable()) == ([b"2"], [])
        await server.produce(producer, [b"3"])
        await server.produce(producer, [b"4"], topic="b")
        newer = replace(producer, producer_epoch=producer.producer_epoch + 5)
        assert await write_marker(server, newer, epoch=9) == ErrorCode.NONE
        await server.end(producer)
        assert (server.committed(), server.committed("b"), server.unstable()) == ([b"2"], [b"4"], [])

    run(scenario())


def test_ids_are_listed_and_described_by_filters_and_permissions(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin("open")
        await server.produce(producer, [b"1"], name="open")
        unused = await server.begin("unused")
        server.served.now_ms += 5000

        async def names(version: int = 2, **filters: Any) -> list[str]:
            listed = await server.ask(ApiKey.LIST_TRANSACTIONS, version, ListTransactionsRequest(**filters))
            assert listed.error_code == ErrorCode.NONE
            return sorted(each.transactional_id for each in listed.transaction_states)

        assert await names() == ["open", "unused"]
        assert await names(state_filters=("Ongoing",)) == ["open"]
        assert await names(producer_id_filters=(unused.producer_id,)) == ["unused"]
        assert await names(duration_filter=4999, state_filters=("Ongoing",)) == ["open"]
        assert await names(duration_filter=5000, state_filters=("Ongoing",)) == []
        wanted = ListTransactionsRequest(state_filters=("Ongoing", "Sleeping"))
        assert (await server.ask(ApiKey.LIST_TRANSACTIONS, 0, wanted)).unknown_state_filters == ("Sleeping",)

        ids = DescribeTransactionsRequest(transactional_ids=("open", "none", ""))
        found, none, empty = (await server.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, ids)).transaction_states
        assert (found.transaction_state, found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (
            "Ongoing", producer.producer_id, producer.producer_epoch, MINUTE_MS,
        )  # fmt: skip
        assert [(each.topic, each.partitions) for each in found.topics] == [("a", (0,))]
        assert (none.error_code, empty.error_code) == (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST,
        )  # fmt: skip
        server.permissions.denied.add((AclOperation.DESCRIBE, ResourceType.TOPIC))
        assert (await server.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, ids)).transaction_states[0].topics == ()
        server.permissions.denied.add((AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID))
        assert await names() == []
        denied = (await server.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, ids)).transaction_states
        assert {each.error_code for each in denied} == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

    run(scenario())


def test_producers_of_a_partition_are_described_with_their_open_transactions(start: Start) -> None:
    async def scenario() -> None:
        server = start()
        producer = await server.begin()
        await server.produce(producer, [b"1", b"2"])
        wanted = TopicRequest(name="a", partition_indexes=(0, 1, 7))
        body = DescribeProducersRequest(topics=(wanted, TopicRequest(name="none", partition_indexes=(0,))))
        first, second = (await server.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body)).topics
        (found,) = first.partitions[0].active_producers
        assert (found.producer_id, found.producer_epoch, found.last_sequence, found.current_txn_start_offset) == (
            producer.producer_id, producer.producer_epoch, 1, 0,
        )  # fmt: skip
        assert [each.error_code for each in first.partitions] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert first.partitions[1].active_producers == ()
        assert second.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        server.permissions.denied.add((AclOperation.READ, ResourceType.TOPIC))
        first, _ = (await server.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body)).topics
        assert {each.error_code for each in first.partitions} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    run(scenario())
