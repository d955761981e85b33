"""What tools and operators ask about transactions: markers, lists, descriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fakes.transaction_servers import MINUTE_MS, Coordinated, Start, epoch_after, status_of

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
from pyspark_kafkalog.root.transactions.states import TransactionStatus
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch


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


async def test_marker_of_an_operator_ends_the_transaction_in_its_partition_alone(start: Start) -> None:
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


async def test_marker_with_high_epochs_does_not_keep_later_transactions_open(start: Start) -> None:
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


async def test_ids_are_listed_and_described_by_filters_and_permissions(start: Start) -> None:
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


async def test_producers_of_a_partition_are_described_with_their_open_transactions(start: Start) -> None:
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


async def test_marker_of_a_transaction_of_version_2_has_a_newer_epoch_than_its_batches(start: Start) -> None:
    server = start()
    producer = await server.begin()
    await server.produce(producer, [b"1"])
    (marker,) = marker_request(producer, coordinator_epoch=0).markers

    async def write(epoch: int) -> int:
        body = WriteTxnMarkersRequest(markers=(marker.replace(producer_epoch=epoch, transaction_version=2),))
        (answer,) = (await server.ask(ApiKey.WRITE_TXN_MARKERS, 2, body)).markers
        return int(answer.topics[0].partitions[0].error_code)

    assert await write(producer.producer_epoch) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert [each.topic for each in server.unstable()] == ["a"]
    assert await write(producer.producer_epoch + 1) == ErrorCode.NONE
    assert server.unstable() == []
    # A marker that is repeated after its transaction has ended ends nothing, and is no error.
    assert await write(producer.producer_epoch + 1) == ErrorCode.NONE
    assert await write(producer.producer_epoch) == ErrorCode.INVALID_PRODUCER_EPOCH
