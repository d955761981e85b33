"""What a server's units do on object roots alone: objects and requests, beside merges, lost races, faults."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builders.data_objects import Plan
from builders.leader_writers import T0, append, batch, mark, marker
from builders.object_roots import StoredRoot, named_objects
from fakes.faulty_store import Call, Fault, FaultyStore
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.errors import CommitStateUnknownError, OutOfOrderSequenceError
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.extents import data_object_record
from pyspark_kafkalog.metadata.image import MetadataImage, image_records, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStoreError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, RECORD_BATCH_OVERHEAD_BYTES, BatchHeader, crc32c
from pyspark_kafkalog.root.commit.changes import AppendOrigin, CommitUnit, LeaderAppend
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_producers import producers_of
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.transactions.states import producers_of as listed_producers
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered.own_segments import segment_keys
from pyspark_kafkalog.tiered.segments import TopicIdPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
P, Q = (7, 0), (8, 0)


def client_batch(
    *values: str,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    is_transactional: bool = False,
    at_ms: int = T0,
) -> bytes:
    return batch(
        [each.encode() for each in values],
        at_ms=at_ms,
        producer=(*producer, sequence),
        is_transactional=is_transactional,
    )


def without_sequence(data: bytes) -> bytes:
    """The batch as a group coordinator writes it, whose producers have no sequences."""
    header = replace(BatchHeader.unpack(data), base_sequence=-1)
    changed = header.pack() + data[RECORD_BATCH_OVERHEAD_BYTES:]
    return replace(header, crc=crc32c(changed[ATTRIBUTES_AT:])).pack() + data[RECORD_BATCH_OVERHEAD_BYTES:]


def produce(of: TopicPartition, data: bytes) -> CommitUnit:
    return CommitUnit.of(append(data, of.topic, of.partition))


def end_transaction(*partitions: TopicPartition, producer: tuple[int, int], is_commit: bool) -> CommitUnit:
    """A unit with the markers of a transaction in all its partitions."""
    data = marker(*producer, is_commit=is_commit)
    return CommitUnit.of(*(mark(data, each.topic, each.partition) for each in partitions))


class Servers:
    """A stored root and the servers that write to it; `clients` are their stores."""

    def __init__(self, configs: dict[str, str] | None = None) -> None:
        self.stored = StoredRoot(configs)
        self.stored.place.clock.now_ms = T0
        self.roots: list[ObjectRoot] = []
        self.clients: list[FaultyStore] = []

    def server(self, *, inline_bytes: int = 100_000, client: FaultyStore | None = None) -> LeaderWriter:
        client = self.stored.place.client() if client is None else client
        root = self.stored.opened(client)
        self.roots.append(root)
        self.clients.append(client)
        return LeaderWriter(ObjectEngine(root, root.objects, inline_bytes=inline_bytes))

    @property
    def image(self) -> MetadataImage:
        return self.stored.image

    def values(self, of: TopicPartition = A, *, committed: bool = False) -> list[str]:
        state = self.image.partition(of.topic, of.partition).state
        end = state.last_stable_offset if committed else state.log_end_offset
        batches = self.stored.reader(of).read(state.log_start_offset, end, schema=KAFKA_SCHEMA, committed=committed)
        return [value.decode() for each in batches for value in each.column("value").to_pylist()]

    def task_values(self, of: TopicPartition, start: int, end: int) -> list[str]:
        """What a Spark task of [start, end) reads with read_committed."""
        root = self.stored.opened()
        part = root.planned_partition(of, None).part(start, end, committed=True)
        batches = LogReader(part.extents(), of).read(start, end, schema=KAFKA_SCHEMA, committed=True)
        return [value.decode() for each in batches for value in each.column("value").to_pylist()]

    def merge(self, of: TopicPartition = A) -> None:
        stored = self.stored
        stored.metadata.refresh()
        assert merge_partition(stored.metadata, stored.objects, stored.config, of, clock=stored.place.clock)


@pytest.fixture
def servers() -> Servers:
    return Servers()


def range_of(result: object) -> tuple[int, int]:
    assert isinstance(result, tuple), result
    (appended,) = result
    return appended.first_offset, appended.last_offset


def test_commit_is_one_put_inline_and_two_with_an_object(servers: Servers) -> None:
    for number, (inline_bytes, expected) in enumerate(((100_000, {"create": 1}), (0, {"create": 1, "put": 1}))):
        writer = servers.server(inline_bytes=inline_bytes)
        writer.commit([produce(A, client_batch("first"))])
        client = servers.clients[-1]
        client.requests.clear()
        writer.commit([produce(A, client_batch("a", producer=P, sequence=number)), produce(B, client_batch("b"))])
        assert dict(client.requests) == expected
    assert (servers.values(A), servers.values(B)) == (["first", "a"] * 2, ["b"] * 2)


def test_data_inside_commits_makes_few_snapshots_due(servers: Servers) -> None:
    writer = servers.server()
    data = client_batch("v" * 50_000)
    for _ in range(22):
        writer.commit([produce(A, data)])
    creates = servers.clients[-1].requests["create"]
    assert 22 < creates <= 24  # of commits, and of snapshots


# Idempotence


@pytest.mark.parametrize("merges", [{5}, {1, 3, 4, 5}, set(range(6))], ids=["one segment", "several", "each its own"])
def test_each_of_the_last_five_batches_is_known_to_a_new_process_after_merges(
    servers: Servers, merges: set[int]
) -> None:
    writer = servers.server()
    for at in range(6):
        writer.commit([produce(A, client_batch("a", "b", producer=P, sequence=2 * at))])
        writer.commit([produce(A, client_batch("other", producer=Q, sequence=at))])
        if at in merges:
            servers.merge()
    for at in range(1, 6):
        (retried,) = servers.server().commit([produce(A, client_batch("a", "b", producer=P, sequence=2 * at))])
        assert range_of(retried) == (3 * at, 3 * at + 1)
    other = servers.server()
    for sequence in (0, 1, 14):  # older than five batches, within a batch, a gap
        (refused,) = other.commit([produce(A, client_batch("a", "b", producer=P, sequence=sequence))])
        assert isinstance(refused, OutOfOrderSequenceError)
    assert range_of(other.commit([produce(A, client_batch("c", producer=P, sequence=12))])[0]) == (18, 18)
    (again,) = other.commit([produce(A, client_batch("a", "b", producer=P, sequence=4))])
    assert range_of(again) == (6, 7)
    assert len(servers.values()) == 19


def test_earlier_batches_are_read_once_for_each_producer(servers: Servers) -> None:
    writer = servers.server()
    for at in range(6):
        writer.commit([produce(A, client_batch("a", producer=P, sequence=at))])
    servers.merge()
    other = servers.server()
    other.commit([produce(A, client_batch("b", producer=P, sequence=6))])
    requests = servers.clients[-1].requests
    counts = []
    for sequence in (0, 20, 0):
        (refused,) = other.commit([produce(A, client_batch("a", producer=P, sequence=sequence))])
        assert isinstance(refused, OutOfOrderSequenceError)
        counts.append(requests["get"] + requests["get_range"])
    assert [after - before for before, after in pairwise(counts)] == [1, 1]  # whether the image is the newest


def test_sequences_go_on_after_all_records_were_deleted(servers: Servers, tmp_path: Path) -> None:
    writer = servers.server()
    writer.commit([produce(A, client_batch("a", producer=P, sequence=0))])
    servers.merge()
    writer.commit([produce(A, client_batch("b", producer=P, sequence=1))])
    delete_up_to(servers, 2)
    assert (servers.values(), len(servers.image.partition("orders", 0).runs)) == ([], 0)
    (gap,) = servers.server().commit([produce(A, client_batch("d", producer=P, sequence=3))])
    assert isinstance(gap, OutOfOrderSequenceError)
    servers.server().commit([produce(A, client_batch("c", producer=P, sequence=2))])
    servers.merge()  # the snapshot has what was known of deleted runs
    (gap,) = servers.server().commit([produce(A, client_batch("e", producer=P, sequence=4))])
    assert isinstance(gap, OutOfOrderSequenceError)


def delete_up_to(servers: Servers, offset: int) -> None:
    def build(image: MetadataImage) -> list[MetadataRecord]:
        state = replace(image.partition("orders", 0).state, log_start_offset=offset)
        return [partition_state_record(servers.stored.topic_id, 0, state)]

    servers.stored.metadata.commit(build, operation="delete-records")


def test_producers_expire_by_the_times_of_their_records_at_the_second_merge(servers: Servers) -> None:
    old = client_batch("old", producer=P, sequence=0, at_ms=T0 - 10 * 86_400_000)
    servers.server().commit([produce(A, old)])
    servers.merge()
    ((again,),) = servers.server().commit([produce(A, old)])  # type: ignore[misc]
    assert again.is_duplicate
    servers.server().commit([produce(A, client_batch("a", producer=Q, sequence=0))])
    servers.stored.config = replace(servers.stored.config, segment_bytes=1)  # the first segment is not merged again
    servers.merge()
    known = producers_of(servers.image, servers.stored.objects, A)
    assert set(known.producers) == {8}


def test_lost_snapshot_of_producers_refuses_only_who_needs_it(servers: Servers) -> None:
    servers.server().commit([produce(A, client_batch("a", producer=P, sequence=0))])
    servers.merge()
    remote_objects._cache.cache_clear()
    keys = servers.stored.place.bucket.keys("")
    servers.stored.objects.delete([each for each in keys if each.endswith(".indexes")])
    results = servers.server().commit(
        [produce(A, client_batch("b", producer=P, sequence=1)), produce(B, client_batch("c", producer=P, sequence=0))]
    )
    assert isinstance(results[0], ObjectNotFoundError)
    assert range_of(results[1]) == (0, 0)


def test_plain_appends_read_no_producers_and_known_ones_take_no_request(servers: Servers) -> None:
    servers.server().commit([produce(A, client_batch("a", producer=P, sequence=0))])
    servers.merge()
    writer = servers.server()
    client = servers.clients[-1]
    client.requests.clear()
    writer.commit([produce(A, client_batch("b"))])
    assert "get_range" not in client.requests
    writer.commit([produce(A, client_batch("c", producer=P, sequence=1))])
    client.requests.clear()
    writer.commit([produce(A, client_batch("d", producer=P, sequence=2))])
    client.requests.pop("list", None)  # of the claims of other writers, which a writer looks for now and then
    assert dict(client.requests) == {"create": 1}


def test_writer_goes_on_after_others_have_written_and_merged(servers: Servers, tmp_path: Path) -> None:
    one, other = servers.server(), servers.server()
    for number in range(6):
        writer = (one, other)[number % 2]
        assert range_of(writer.commit([produce(A, client_batch("v", producer=P, sequence=number))])[0])
        if number == 3:
            servers.merge()
    written = servers.stored.upload(tmp_path, Plan(A, [[T0]]))  # a writer of Spark
    servers.stored.metadata.commit(lambda image: list(map(data_object_record, written)), operation="write")
    assert range_of(one.commit([produce(A, client_batch("w", producer=P, sequence=6))])[0]) == (7, 7)


# Transactions


def begin(servers: Servers, *, producer: tuple[int, int] = P, value: str = "t", sequence: int = 0) -> CommitUnit:
    return produce(A, client_batch(value, producer=producer, sequence=sequence, is_transactional=True))


def test_open_transaction_holds_the_last_stable_offset(servers: Servers) -> None:
    writer = servers.server()
    writer.commit([produce(A, client_batch("a")), begin(servers), produce(A, client_batch("b"))])
    assert servers.image.partition("orders", 0).state.last_stable_offset == 1
    assert (servers.values(), servers.values(committed=True)) == (["a", "t", "b"], ["a"])
    writer.commit([begin(servers, producer=Q, value="u")])
    servers.server().commit([end_transaction(A, producer=P, is_commit=True)])
    assert servers.image.partition("orders", 0).state.last_stable_offset == 3
    writer.commit([end_transaction(A, producer=Q, is_commit=False)])
    assert servers.values(committed=True) == ["a", "t", "b"]


@pytest.mark.parametrize("merges", ["never", "while it is open", "after its end", "both"])
def test_aborted_records_are_left_out(servers: Servers, merges: str) -> None:
    writer = servers.server()
    writer.commit([produce(A, client_batch("a")), begin(servers), produce(A, client_batch("b"))])
    if merges in ("while it is open", "both"):
        servers.merge()
    servers.server().commit([end_transaction(A, producer=P, is_commit=False)])
    if merges in ("after its end", "both"):
        servers.merge()
    writer.commit([begin(servers, value="later", sequence=1), end_transaction(A, producer=P, is_commit=True)])
    assert servers.values(committed=True) == ["a", "b", "later"]
    assert servers.values() == ["a", "t", "b", "later"]
    assert servers.task_values(A, 0, 2) == ["a"]
    assert servers.task_values(A, 1, 3) == ["b"]
    known = producers_of(servers.image, servers.stored.objects, A)
    assert (known.open_transactions, known.producers[7].last_sequence) == ({}, 1)


def test_planned_read_finds_aborted_transactions_after_its_segments_were_replaced(servers: Servers) -> None:
    writer = servers.server()
    writer.commit([begin(servers), produce(A, client_batch("a"))])
    servers.merge()
    writer.commit([end_transaction(A, producer=P, is_commit=False)])
    servers.stored.config = replace(servers.stored.config, segment_bytes=1)  # no segment is merged again
    servers.merge()
    planned = ObjectLog.of(servers.image, A).part(0, 1)
    assert len(planned.segments) == 2  # that of the range, and one behind it with a transaction index
    old = servers.image.partition("orders", 0).segments
    servers.stored.config = replace(servers.stored.config, segment_bytes=1 << 20)
    writer.commit([produce(A, client_batch("b" * 500))])
    servers.merge()
    of = TopicIdPartition("orders", servers.stored.topic_id, 0)
    servers.stored.objects.delete([key for each in old for key in segment_keys(of, each.base_offset, each.segment_id)])
    remote_objects._cache.cache_clear()
    image = servers.image
    extents = planned.extents(servers.stored.objects, lambda: ObjectLog.of(image, A))
    (found,) = extents.aborted_transactions(0, 1).transactions
    assert (found.producer_id, found.first_offset, found.last_offset) == (7, 0, 2)


def test_producers_of_a_snapshot_are_listed_as_of_a_directory(servers: Servers) -> None:
    servers.server().commit([begin(servers, producer=Q), produce(A, client_batch("a", producer=P, sequence=3))])
    servers.merge()
    servers.server().commit([begin(servers, producer=(9, 2))])
    snapshot = servers.stored.opened().partition("orders", 0)
    found = [
        (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_first_offset)
        for each in listed_producers(snapshot, expiration_ms=1, now_ms=T0)
    ]
    assert found == [(7, 0, 3, -1), (8, 0, 0, 0), (9, 2, 0, 2)]


def test_merged_segments_have_transaction_index_and_producers(servers: Servers) -> None:
    servers.server().commit(
        [begin(servers), begin(servers, producer=Q), end_transaction(A, producer=P, is_commit=False)]
    )
    servers.merge()
    partition = servers.image.partition("orders", 0)
    assert (len(partition.producer_batches), len(partition.runs)) == (0, 0)
    assert sum(each.transaction_index_bytes for each in partition.segments) == 34
    assert producers_of(servers.image, servers.stored.objects, A).open_transactions == {1: 8}
    assert partition.state.last_stable_offset == 1
    servers.server().commit([end_transaction(A, producer=Q, is_commit=True)])
    assert servers.image.partition("orders", 0).state.last_stable_offset == 4


def test_records_of_a_coordinator_need_no_sequence(servers: Servers) -> None:
    data = without_sequence(client_batch("offsets", producer=P, sequence=0, is_transactional=True))
    unit = CommitUnit.of(LeaderAppend(topic_partition=A, data=data, origin=AppendOrigin.COORDINATOR))
    results = servers.server().commit([unit, unit, end_transaction(A, producer=P, is_commit=True)])
    assert [range_of(each) for each in results] == [(0, 0), (1, 1), (2, 2)]
    assert servers.values(committed=True) == ["offsets", "offsets"]


def test_snapshot_of_the_image_keeps_producers(servers: Servers) -> None:
    servers.server().commit([begin(servers), produce(B, client_batch("a", producer=Q, sequence=5))])
    image = servers.image
    of, at_ms = image.next_offset, image.last_timestamp_ms
    delta = ImageDelta(MetadataImage(), commit_offset=of, timestamp_ms=at_ms, is_snapshot=True)
    delta.replay(list(image_records(image)))
    again = delta.build(image.next_offset)
    for number in (0, 1):
        assert again.partition("orders", number) == image.partition("orders", number)
    assert len(again.partition("orders", 0).producer_batches) == 1


# Races and faults


def test_lost_race_keeps_the_object_and_gives_later_offsets(servers: Servers, tmp_path: Path) -> None:
    writer = servers.server(inline_bytes=0)
    writer.commit([produce(A, client_batch("first"))])
    client = servers.clients[-1]

    def other_writes(call: Call) -> None:
        if call.kind == "create":
            client.before = None
            servers.server().commit([produce(A, client_batch("theirs", producer=P, sequence=0))])

    client.before = other_writes
    client.requests.clear()
    mine = client_batch("mine", producer=Q, sequence=0)
    assert range_of(writer.commit([produce(A, mine)])[0]) == (2, 2)
    assert (client.requests["put"], client.requests["create"]) == (1, 2)
    assert servers.values() == ["first", "theirs", "mine"]


def test_lost_race_against_the_same_batch_makes_it_a_duplicate(servers: Servers) -> None:
    writer = servers.server()
    writer.commit([produce(A, client_batch("first"))])
    client = servers.clients[-1]
    unit = produce(A, client_batch("mine", producer=Q, sequence=0))

    def other_writes(call: Call) -> None:
        if call.kind == "create":
            client.before = None
            servers.server().commit([unit])

    client.before = other_writes
    results = writer.commit([unit, produce(A, client_batch("next"))])
    assert [range_of(each) for each in results] == [(1, 1), (2, 2)]
    assert servers.values() == ["first", "mine", "next"]


FAULTS = [each for each in Fault if each not in (Fault.CRASH_IN_FLIGHT,)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("inline_bytes", [0, 100_000])
def test_commit_that_met_a_fault_is_whole_or_absent_and_can_be_sent_again(fault: Fault, inline_bytes: int) -> None:
    unit = CommitUnit.of(
        LeaderAppend(topic_partition=A, data=client_batch("a", producer=P, sequence=0, is_transactional=True)),
        LeaderAppend(topic_partition=B, data=client_batch("b", producer=P, sequence=0, is_transactional=True)),
    )
    for number in range(2):
        servers = Servers()
        writer = servers.server(inline_bytes=inline_bytes)
        client = servers.clients[-1]
        writer.commit([produce(A, client_batch("first"))])
        client.faults = {len(client.calls) + number: fault}
        try:
            (result,) = writer.commit([unit])
        except (CommitStateUnknownError, ObjectStoreError, Killed):
            result = None
        before = (servers.values(A), servers.values(B))
        assert before in ((["first"], []), (["first", "a"], ["b"]))
        if result is not None:
            assert before[1] == ["b"]
        servers.stored.place.bucket.land()
        again = servers.server()
        again.commit([unit])
        again.commit([end_transaction(A, B, producer=P, is_commit=True)])
        assert (servers.values(A, committed=True), servers.values(B, committed=True)) == (["first", "a"], ["b"])
        keys = set(servers.stored.place.bucket.keys(""))
        assert named_objects(servers.image) <= keys
