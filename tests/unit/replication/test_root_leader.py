"""Another root as a leader: what its readers return, of both kinds of roots, beside writers and maintenance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from builders.root_places import RootPlace

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.record.header import BatchHeader
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.replication.leader import FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.replication.root_leader import RootLeader, last_batch
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


def rows(first: int, count: int, *, value_bytes: int = 20) -> pa.Table:
    values = [f"value {number}".ljust(value_bytes, ".") for number in range(first, first + count)]
    return pa.table({"key": [f"key {number}" for number in range(first, first + count)], "value": values})


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    made = LogDir.create(root_place)
    made.create_topic("orders", 2, {"segment.bytes": "1048576", "index.interval.bytes": "100"})
    return made


@pytest.fixture
def leader(root_place: RootPlace, log_dir: LogDir) -> Iterator[RootLeader]:
    made = RootLeader(open_root(root_place))
    yield made
    made.close()


def position(log_dir: LogDir, offset: int, *, last_epoch: int = -1, partition: int = 0) -> FetchPosition:
    topic_id = log_dir.topic("orders").topic_id
    assert topic_id is not None
    return FetchPosition(
        topic_partition=TopicPartition("orders", partition), topic_id=topic_id, offset=offset, last_epoch=last_epoch
    )


def fetch_one(
    leader: RootLeader, at: FetchPosition, *, wait_ms: int = 0, max_bytes: int = 1 << 20, partition_bytes: int = 1 << 20
) -> LeaderAnswer:
    (source,) = leader.sources([at.topic_partition])
    (found,) = leader.fetch(source, [at], wait_ms=wait_ms, max_bytes=max_bytes, partition_bytes=partition_bytes)
    return found


def fetch_all(leader: RootLeader, log_dir: LogDir, offset: int, end_offset: int, *, max_bytes: int) -> bytes:
    """All batches from the offset on, checked."""
    data, epoch = b"", -1
    while offset < end_offset:
        found = fetch_one(leader, position(log_dir, offset, last_epoch=epoch), max_bytes=max_bytes)
        assert found.outcome is FetchOutcome.RECORDS, found
        scan = scan_batches(found.data, file="answer")
        assert scan.fault is None
        assert scan.consumed_bytes == len(found.data) > 0
        verify_crcs(found.data, scan.batches, data_position=0, file="answer")
        data += bytes(found.data)
        offset, epoch = int(scan.batches["last_offset"][-1]) + 1, int(scan.batches["leader_epoch"][-1])
    return data


def bytes_of(log_dir: LogDir, offset: int, end_offset: int) -> bytes:
    """The same batches, as readers of the root see them."""
    runs = log_dir.reader("orders", 0).runs(offset, end_offset)
    found = b""
    for run in runs:
        for batch in run.batches:
            start = int(batch["position"]) - run.position
            found += bytes(run.data[start : start + int(batch["size_bytes"])])
    return found


@pytest.mark.parametrize("max_bytes", [1, 600_000, 1 << 20])
def test_fetches_return_all_batches_in_order(log_dir: LogDir, leader: RootLeader, max_bytes: int) -> None:
    for number in range(12):
        log_dir.append("orders", rows(100 * number, 100, value_bytes=2500), partition=0)
    found = fetch_all(leader, log_dir, 0, 1200, max_bytes=max_bytes)
    assert found == bytes_of(log_dir, 0, 1200)


def test_fetch_inside_a_batch_begins_with_that_batch(log_dir: LogDir, leader: RootLeader) -> None:
    log_dir.append("orders", rows(0, 10), partition=0)
    log_dir.append("orders", rows(10, 10), partition=0)
    found = fetch_one(leader, position(log_dir, 15))
    header = BatchHeader.unpack(found.data)
    assert (header.base_offset, header.last_offset) == (10, 19)


def test_fetch_at_the_end_waits_for_a_commit(log_dir: LogDir, leader: RootLeader) -> None:
    log_dir.append("orders", rows(0, 10), partition=0)
    assert not len(fetch_one(leader, position(log_dir, 10), wait_ms=20).data)
    timer = threading.Timer(0.1, lambda: log_dir.append("orders", rows(10, 5), partition=0))
    timer.start()
    found = fetch_one(leader, position(log_dir, 10), wait_ms=30_000)
    timer.join()
    assert BatchHeader.unpack(found.data).base_offset == 10
    assert found.high_watermark == 15


def test_positions_out_of_range_are_reported(log_dir: LogDir, leader: RootLeader) -> None:
    log_dir.append("orders", rows(0, 10), partition=0)
    assert fetch_one(leader, position(log_dir, 11)).outcome is FetchOutcome.OUT_OF_RANGE
    log_dir.append("orders", rows(10, 10), partition=0)
    delete_records(log_dir.root, {ORDERS: 12})
    assert fetch_one(leader, position(log_dir, 11)).outcome is FetchOutcome.OUT_OF_RANGE
    inside = fetch_one(leader, position(log_dir, 12))
    assert (inside.outcome, inside.log_start_offset) == (FetchOutcome.RECORDS, 12)
    assert BatchHeader.unpack(inside.data).base_offset == 10
    assert leader.range_of(position(log_dir, 0)) == (12, 20)


def test_unknown_last_epoch_is_out_of_range(log_dir: LogDir, leader: RootLeader) -> None:
    log_dir.append("orders", rows(0, 10), partition=0)
    assert fetch_one(leader, position(log_dir, 10, last_epoch=7)).outcome is FetchOutcome.OUT_OF_RANGE
    assert leader.epoch_end(position(log_dir, 10), 7) is None
    end = leader.epoch_end(position(log_dir, 10), 0)
    assert end is not None
    assert (end.epoch, end.end_offset) == (0, 10)


def test_topic_that_was_created_again_has_changed(log_dir: LogDir, leader: RootLeader) -> None:
    log_dir.append("orders", rows(0, 10), partition=0)
    at = position(log_dir, 5)
    assert fetch_one(leader, at).outcome is FetchOutcome.RECORDS
    log_dir.delete_topic("orders")
    assert fetch_one(leader, at).outcome is FetchOutcome.TOPIC_CHANGED
    log_dir.create_topic("orders", 2)
    assert fetch_one(leader, at).outcome is FetchOutcome.TOPIC_CHANGED


def test_limit_of_all_partitions_leaves_the_later_ones_for_the_next_fetch(root_place: RootPlace) -> None:
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("orders", 2)
    for partition in range(2):
        log_dir.append("orders", rows(0, 10), partition=partition)
    leader = RootLeader(open_root(root_place))
    ats = [position(log_dir, 0, partition=partition) for partition in range(2)]
    for source, partitions in leader.sources([each.topic_partition for each in ats]).items():
        wanted = [each for each in ats if each.topic_partition in partitions]
        found = leader.fetch(source, wanted, wait_ms=0, max_bytes=1, partition_bytes=1)
        assert [len(each.data) > 0 for each in found] == [True] + [False] * (len(wanted) - 1)
    leader.close()


def test_description_has_what_is_set_at_the_leader(log_dir: LogDir, leader: RootLeader) -> None:
    log_dir.create_topic("others", 1)
    log_dir.alter_broker_configs(add={"log.retention.ms": "1000", "num.partitions": "7"})
    found = leader.describe(lambda name: name == "orders")
    assert list(found.topics) == ["orders"]
    topic = found.topics["orders"]
    assert topic.topic_id == log_dir.topic("orders").topic_id
    assert topic.leader_epochs == (0, 0)
    assert topic.configs == {"segment.bytes": "1048576", "index.interval.bytes": "100"}
    assert found.cluster_configs == {"log.retention.ms": "1000"}
    assert (found.acls, found.has_authorizer) == ((), False)
    log_dir.alter_broker_configs(add={"super.users": "User:root"})
    assert leader.describe(lambda _: False).has_authorizer
    assert log_dir.identity is not None
    assert found.cluster_id == log_dir.identity.cluster_id


def test_last_batch_is_that_before_the_end(log_dir: LogDir) -> None:
    assert last_batch(log_dir.partition("orders", 0), 0) is None
    for number in range(30):
        log_dir.append("orders", rows(10 * number, 10, value_bytes=9000), partition=0)
    of = log_dir.partition("orders", 0)
    for end_offset in (300, 250, 10):
        found = last_batch(of, end_offset)
        assert found is not None
        assert found.next_offset == end_offset
    assert last_batch(of, 0) is None


@pytest.mark.file_roots
def test_segment_that_was_replaced_while_it_is_read_is_looked_up_again(log_dir: LogDir, leader: RootLeader) -> None:
    for number in range(8):
        log_dir.append("orders", rows(100 * number, 100, value_bytes=2500), partition=0)
    first = fetch_one(leader, position(log_dir, 0), max_bytes=300_000)
    following = int(scan_batches(first.data, file="answer").batches["last_offset"][-1]) + 1
    directory = Path(log_dir.partition("orders", 0).directory)
    for path in sorted(directory.glob("*.log")):
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
    found = fetch_all(leader, log_dir, following, 800, max_bytes=300_000)
    assert bytes(first.data) + found == bytes_of(log_dir, 0, 800)


@pytest.mark.file_roots
def test_uncommitted_tail_of_a_writer_is_not_returned(log_dir: LogDir, leader: RootLeader) -> None:
    log_dir.append("orders", rows(0, 10), partition=0)
    path = next(Path(log_dir.partition("orders", 0).directory).glob("*.log"))
    committed = path.read_bytes()
    header = BatchHeader.unpack(committed)
    with path.open("ab") as file:
        file.write((10).to_bytes(8, "big") + committed[8:])
    assert header.next_offset == 10
    assert bytes(fetch_one(leader, position(log_dir, 0)).data) == committed
    assert not len(fetch_one(leader, position(log_dir, 10)).data)
