"""Transactions with offsets, with others in one commit, at several servers, and without permission."""

from __future__ import annotations

import pytest
from fakes.transaction_servers import MINUTE_MS, Start, epoch_after, error_of, status_of

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from pyspark_kafkalog.root.commit.changes import AppendedRange
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.transactions.end_transaction import abort_transactional_id
from pyspark_kafkalog.root.transactions.states import TransactionStatus
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch


async def test_offsets_in_a_transaction_count_when_it_commits(start: Start) -> None:
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


async def test_old_client_adds_its_group_before_offsets(start: Start) -> None:
    server = start()
    producer = await server.begin()
    assert await server.commit_offset(producer, 5, version=3) is ErrorCode.INVALID_TXN_STATE
    assert await server.commit_offset(producer, 5, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    assert await server.add_group(producer, "g") is ErrorCode.NONE
    assert await server.commit_offset(producer, 5, version=3) is ErrorCode.NONE
    assert await server.end(producer, version=3) == producer
    assert server.unstable() == []


async def test_offsets_are_refused_for_members_topics_and_long_metadata(start: Start) -> None:
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


async def test_batches_of_one_commit_join_one_transaction(start: Start) -> None:
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


async def test_partition_of_a_refused_batch_loses_no_later_batch_of_the_commit(start: Start) -> None:
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


async def test_batch_after_the_end_in_one_commit_is_refused(start: Start) -> None:
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


async def test_refused_batch_does_not_keep_the_transaction_from_ending(start: Start) -> None:
    server = start()
    producer = await server.begin()
    await server.produce(producer, [b"1"])
    assert isinstance(await server.produce(producer, [b"?"], sequence=9), KafkalogError)
    assert isinstance(await server.produce(producer, [b"?"], topic="b", partition=7), KafkalogError)
    assert isinstance(await server.end(producer, is_commit=False), ProducerIdAndEpoch)
    assert server.unstable() == []


async def test_two_servers_decide_about_one_id_by_what_was_committed(start: Start) -> None:
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


async def test_sweep_beside_other_servers_looks_again_at_what_its_image_lacks(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_first_reading_of_the_states_needs_no_newest_image(start: Start) -> None:
    server = start()
    await server.begin()
    old_image = server.served.root.store.refresh()
    await server.begin("u")
    found = start().coordinator.logs.find(old_image, "t")
    assert found is not None
    assert found.status is TransactionStatus.EMPTY


async def test_abort_by_the_operators_command_is_seen_by_the_server(start: Start) -> None:
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


async def test_deleted_topic_keeps_no_transaction_open(start: Start) -> None:
    server = start()
    producer = await server.begin()
    await server.produce(producer, [b"1"])
    await server.produce(producer, [b"2"], topic="b")
    server.served.root.delete_topic("b")
    assert isinstance(await server.end(producer), ProducerIdAndEpoch)
    assert (server.committed(), server.unstable()) == ([b"1"], [])


async def test_other_coordinators_ids_are_not_decided_here(start: Start) -> None:
    server = start()
    producer = await server.begin()
    server.cluster.coordinator_id = 2
    assert (await server.init()).error_code == ErrorCode.NOT_COORDINATOR
    assert await server.add(producer, [("a", 0)]) is ErrorCode.NOT_COORDINATOR
    assert await server.add_group(producer, "g") is ErrorCode.NOT_COORDINATOR
    assert await server.commit_offset(producer, 1) is ErrorCode.NOT_COORDINATOR
    assert await server.end(producer) is ErrorCode.NOT_COORDINATOR
    described = await server.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=("t",)))
    assert described.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
    listed = await server.ask(ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest())
    assert listed.transaction_states == ()
    assert (await server.init(None)).error_code == ErrorCode.NONE  # any server gives out producer ids


async def test_producer_ids_of_servers_and_of_spark_writers_never_meet(start: Start) -> None:
    one, two = start(), start()
    one.served.root.init_transaction("spark", "run 1")
    taken = [(await server.init(None)).producer_id for server in (one, two, one, two) for _ in range(3)]
    one.served.root.refresh()
    one.served.root.init_transaction("t", "run 1")
    taken.append((await one.begin()).producer_id)
    taken += [each.producer_id for each in one.served.root.store.refresh().transactional_ids.values()]
    assert len(set(taken)) == len(taken)


async def test_requests_without_permission_are_refused(start: Start) -> None:
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
    assert await server.add(producer, [("__consumer_offsets", 0)]) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied.add((AclOperation.WRITE, ResourceType.TOPIC))
    assert await server.add(producer, [("a", 0)]) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied.add((AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER))
    assert (await server.init(None)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
