"""Transactions as producers see them: begun, ended, fenced, repeated, timed out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders.root_places import RootPlace, client_address, store_of
from fakes.faulty_store import FaultyStore
from fakes.transaction_servers import MINUTE_MS, Coordinated, Start, epoch_after, error_of, status_of, with_epoch

from pyspark_kafkalog.errors import OutOfOrderSequenceError, ReadOnlyLogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.commit.changes import AppendedRange
from pyspark_kafkalog.root.native import begin_following
from pyspark_kafkalog.root.transactions.state_log import expire_ids
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC, TransactionStatus
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch
from pyspark_kafkalog.units import DAY_MS, HOUR_MS


async def test_committed_transaction_over_partitions_becomes_visible_with_one_commit(start: Start) -> None:
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


async def test_aborted_transaction_is_never_visible(start: Start) -> None:
    server = start()
    producer = await server.begin()
    await server.produce(producer, [b"1"])
    producer = epoch_after(await server.end(producer, is_commit=False))
    await server.produce(producer, [b"2"])
    await server.end(producer)
    assert (server.committed(), server.unstable()) == ([b"2"], [])


async def test_producer_unknown_to_a_partition_begins_with_sequence_zero_in_transactions_of_version_2(
    start: Start,
) -> None:
    server = start()
    producer = await server.begin()
    assert isinstance(await server.produce(producer, [b"1"], sequence=1), OutOfOrderSequenceError)
    assert isinstance(await server.produce(producer, [b"0"]), AppendedRange)
    assert isinstance(await server.produce(producer, [b"1"], sequence=1), AppendedRange)
    await server.end(producer)
    assert server.committed() == [b"0", b"1"]


async def test_producer_unknown_to_a_partition_begins_with_any_sequence_in_earlier_transactions(start: Start) -> None:
    server = start()
    producer = await server.begin()
    assert await server.add(producer, [("a", 0)]) is ErrorCode.NONE
    assert isinstance(await server.produce(producer, [b"1"], sequence=4, version=9), AppendedRange)


async def test_old_client_adds_partitions_before_it_writes(start: Start) -> None:
    server = start()
    producer = await server.begin()
    assert error_of(await server.produce(producer, [b"0"], version=11)) is ErrorCode.TRANSACTION_ABORTABLE
    assert error_of(await server.produce(producer, [b"0"], version=9)) is ErrorCode.INVALID_TXN_STATE
    assert await server.add(producer, [("a", 0), ("b", 0)]) is ErrorCode.NONE
    assert isinstance(await server.produce(producer, [b"1"], version=9), AppendedRange)
    assert await server.end(producer, version=3) == producer
    assert (server.committed(), server.unstable()) == ([b"1"], [])


async def test_second_producer_aborts_the_first_ones_transaction_and_fences_it(start: Start) -> None:
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


async def test_zombie_that_asks_for_its_epoch_does_not_end_the_next_ones_transaction(start: Start) -> None:
    server = start()
    zombie = await server.begin()
    producer = await server.begin()
    await server.produce(producer, [b"1"])
    assert (await server.init(expected=zombie)).error_code == ErrorCode.PRODUCER_FENCED
    await server.end(producer)
    assert server.committed() == [b"1"]


async def test_end_that_is_repeated_succeeds_with_the_same_epoch(start: Start) -> None:
    server, other = start(), start()
    producer = await server.begin()
    await server.produce(producer, [b"1"])
    after = await server.end(producer)
    end_offset = server.served.state().log_end_offset
    assert await server.end(producer) == after
    assert await other.end(producer) == after
    assert await server.end(producer, is_commit=False) is ErrorCode.INVALID_TXN_STATE
    assert server.served.state().log_end_offset == end_offset


async def test_end_of_an_old_client_that_is_repeated_succeeds(start: Start) -> None:
    server = start()
    producer = await server.begin()
    await server.add(producer, [("a", 0)])
    await server.produce(producer, [b"1"], version=9)
    for _ in range(2):
        assert await server.end(producer, version=3) == producer
    assert await server.end(producer, is_commit=False, version=3) is ErrorCode.INVALID_TXN_STATE


async def test_abort_without_a_partition_raises_the_epoch_and_commit_is_refused(start: Start) -> None:
    server = start()
    producer = await server.begin()
    assert await server.end(producer) is ErrorCode.INVALID_TXN_STATE
    after = epoch_after(await server.end(producer, is_commit=False))
    assert after.producer_epoch == producer.producer_epoch + 1
    assert await server.end(after, is_commit=False, version=3) == after


async def test_unknown_id_and_other_producer_id_are_no_mapping(start: Start) -> None:
    server = start()
    producer = await server.begin()
    other = replace(producer, producer_id=producer.producer_id + 1)
    assert await server.end(producer, name="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await server.end(other) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert error_of(await server.produce(other, [b"1"])) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await server.add_group(producer, "g", name="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_producer_that_goes_on_after_an_error_gets_the_next_epoch_once(start: Start) -> None:
    server = start()
    producer = await server.begin()
    first = await server.init(expected=producer)
    again = await server.init(expected=producer)
    assert first.producer_epoch == again.producer_epoch == producer.producer_epoch + 1


async def test_exhausted_epochs_end_in_a_new_producer_id(start: Start) -> None:
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


async def test_transaction_over_its_timeout_is_aborted_and_its_producer_fenced(start: Start) -> None:
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


async def test_unused_id_is_removed_and_its_name_begins_anew(start: Start) -> None:
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


@pytest.fixture
def beside(root_place: RootPlace) -> Iterator[Coordinated]:
    """A server over a root of either kind, to which other processes write."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("a", 2)
    log_dir.alter_broker_configs(add={"transaction.state.log.num.partitions": "2"})
    opened: Path | StoreAddress
    if isinstance(root_place, str):
        opened = client_address(root_place, FaultyStore(store_of(root_place).bucket))
    else:
        opened = root_place
    server = Coordinated(opened)
    yield server
    server.close()


def _expired_ids(place: RootPlace, now_ms: int, *, dry_run: bool = False) -> list[int]:
    """What retention in another process expires in the partitions of the topic."""
    reports = apply_retention(LogDir.open(place).root, now_ms=now_ms, dry_run=dry_run)
    assert [each.error for each in reports if each.error] == []
    ids = [each.transactional_ids_expired for each in reports if each.topic == "__transaction_state"]
    assert {each.transactional_ids_expired for each in reports if each.topic == "a"} == {None}
    return [each for each in ids if each]


async def test_retention_job_removes_unused_ids_beside_a_server(root_place: RootPlace, beside: Coordinated) -> None:
    server = beside
    producer, busy = await server.begin(), await server.begin("busy")
    await server.produce(producer, [b"1"])
    await server.produce(busy, [b"2"], name="busy", partition=1)
    await server.end(producer)
    assert _expired_ids(root_place, server.served.now_ms) == []
    server.served.now_ms += 8 * 24 * 60 * MINUTE_MS
    assert _expired_ids(root_place, server.served.now_ms, dry_run=True) == [1]
    assert await server.coordinator.find("t") is not None
    assert _expired_ids(root_place, server.served.now_ms) == [1]
    assert await server.coordinator.find("t") is None
    assert await server.coordinator.find("busy") is not None  # it has a transaction open
    assert await server.end(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await server.begin()).producer_id != producer.producer_id
    assert _expired_ids(root_place, server.served.now_ms) == []
    assert verify(LogDir.open(root_place).root).is_sound


async def test_retention_leaves_the_ids_and_offsets_of_a_root_that_follows_to_its_leader(
    root_place: RootPlace, beside: Coordinated
) -> None:
    await beside.begin()
    LogDir.open(root_place).group("g").commit({("a", 0): 0})
    root = LogDir.open(root_place).root.native()
    begin_following(root, leader="elsewhere", cluster_id="x", topics=".*")
    assert _expired_ids(root_place, beside.served.now_ms + 80 * 24 * 60 * MINUTE_MS) == []
    assert await beside.coordinator.find("t") is not None


async def test_ids_of_any_length_are_removed_in_batches_that_fit_a_segment(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    names = [f"{number}-{'x' * 1_000}" for number in range(12)]
    for name in names:
        await server.begin(name)
    monkeypatch.setattr("pyspark_kafkalog.root.transactions.state_log._REMOVED_BYTES_MAX", 2_500)
    server.served.now_ms += 8 * 24 * 60 * MINUTE_MS
    root = server.coordinator.root
    version = root.version
    assert expire_ids(root, now_ms=server.served.now_ms) == len(names)
    commits = [each for each in root.history() if each.offset >= version]
    assert 6 <= len({each.offset for each in commits}) <= 8
    assert [await server.coordinator.find(name) for name in names] == [None] * len(names)


async def test_id_is_gone_if_its_removal_was_cleaned_before_it_was_read(start: Start, tmp_path: Path) -> None:
    log_dir = LogDir.open(tmp_path / "root")
    log_dir.alter_broker_configs(add={"transaction.state.log.num.partitions": "1"})
    server, behind = start(), start()
    await server.begin()
    assert await behind.coordinator.find("t") is not None
    log_dir.alter_topic(TRANSACTION_STATE_TOPIC, add={"internal.segment.bytes": "160", "delete.retention.ms": "0"})
    server.served.now_ms += 8 * DAY_MS
    assert expire_ids(server.coordinator.root, now_ms=server.served.now_ms) == 1
    for _ in range(4):
        await server.begin("another")
        log_dir.refresh()
        server.served.now_ms += HOUR_MS
        clean_partition(log_dir.root, TRANSACTION_STATE_TOPIC, 0, force=True, now_ms=server.served.now_ms)
    assert b"t" not in {each[4:] for each in log_dir.read(TRANSACTION_STATE_TOPIC)["key"].to_pylist()}
    assert await behind.coordinator.find("t") is None
    assert await behind.coordinator.find("another") is not None


async def test_ids_of_writers_without_a_server_expire_after_their_own_time(start: Start) -> None:
    server = start()
    root = server.coordinator.root
    root.init_transaction("query", "run")
    server.served.now_ms += 179 * 24 * 60 * MINUTE_MS
    await server.coordinator.remove_expired()
    assert root.has_transactional_id("query")
    server.served.now_ms += 2 * 24 * 60 * MINUTE_MS
    await server.coordinator.remove_expired()
    assert not root.has_transactional_id("query")


async def test_timeout_out_of_bounds_and_bad_producer_are_refused(start: Start) -> None:
    server = start()
    for timeout_ms in (0, -1, 15 * MINUTE_MS + 1):
        assert (await server.init(timeout_ms=timeout_ms)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (await server.init("")).error_code == ErrorCode.INVALID_REQUEST
    half = ProducerIdAndEpoch(5, -1)
    assert (await server.init(expected=half)).error_code == ErrorCode.INVALID_REQUEST


async def test_ids_of_a_block_are_not_given_out_once_the_root_follows_a_leader(start: Start, tmp_path: Path) -> None:
    server = start()
    assert await server.coordinator.producer_ids.take() + 1 == await server.coordinator.producer_ids.take()
    begin_following(open_root(tmp_path / "root").native(), leader="a:9092", cluster_id="theirs", topics=".*")
    server.served.root.refresh()
    with pytest.raises(ReadOnlyLogDirError):
        await server.coordinator.producer_ids.take()


async def test_sweep_looks_at_unfinished_transactions_and_not_at_all_ids(start: Start) -> None:
    server = start()
    for number in range(20):
        await server.begin(f"idle-{number}")
    producer = await server.begin("open")
    await server.add(producer, [("a", 0)], name="open")
    seen: list[str] = []
    for each in (server, start()):  # the second one reads the log
        await each.coordinator.coordinated(
            lambda found: seen.append(found.transactional_id) is None, only_unfinished=True
        )
        assert len(await each.coordinator.coordinated(lambda found: True)) == 21
    assert seen == ["open", "open"]
    await server.end(producer, name="open")
    assert await server.coordinator.coordinated(lambda found: True, only_unfinished=True) == []
