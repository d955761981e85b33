"""The follower's writer of a root in an object store: runs with the leader's epochs, refusals, races with merges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders.followers import FollowerRoot
from builders.leader_writers import T0, append, batch, copied
from builders.object_roots import StoredRoot

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.root.commit.changes import CommitUnit
from pyspark_kafkalog.root.commit.committer import FollowerWriter
from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
from pyspark_kafkalog.root.native import promote
from pyspark_kafkalog.root.reads import epochs_of
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition, encode_uuid
from pyspark_kafkalog.units import INT32_MAX

OF = TopicPartition("orders", 0)


@pytest.fixture
def stored() -> StoredRoot:
    stored = StoredRoot()
    stored.place.clock.now_ms = T0
    return stored


@pytest.fixture(params=[0, 100_000], ids=["objects", "inline"])
def follower(stored: StoredRoot, request: pytest.FixtureRequest) -> FollowerRoot:
    follower = opened(stored)
    root = stored.opened()
    engine = ObjectEngine(root, root.objects, following_id=follower.following_id, inline_bytes=request.param)
    follower.writer = FollowerWriter(engine)
    return follower


def opened(stored: StoredRoot) -> FollowerRoot:
    return FollowerRoot(Path("unused"), root=stored.opened(), topic="orders")


def runs(stored: StoredRoot) -> list[tuple[int, int, int]]:
    rows = stored.image.partition("orders", 0).runs.table
    return [(int(row["base_offset"]), int(row["end_offset"]), int(row["leader_epoch"])) for row in rows]


def offsets(stored: StoredRoot, partition: int = 0) -> list[int]:
    found: list[int] = LogDir(stored.opened()).read("orders", partition=partition)["offset"].to_pylist()
    return found


def test_each_leader_epoch_has_a_run_and_gaps_are_parts_of_runs(stored: StoredRoot, follower: FollowerRoot) -> None:
    data = copied(4, epoch=2) + copied(9, epoch=2) + copied(20, epoch=5)
    state, other = follower.make(follower.append(data), follower.append(copied(0), 1))
    assert (state.log_end_offset, state.leader_epoch, other.log_end_offset) == (23, 5, 3)
    assert runs(stored) == [(0, 12, 2), (12, 23, 5)]
    assert offsets(stored) == [4, 5, 6, 9, 10, 11, 20, 21, 22]
    root = stored.opened()
    epochs = [tuple(each) for each in epochs_of(root, root.partition("orders", 0))]
    assert epochs == [(2, 0), (5, 12)]


def test_an_empty_log_begins_with_the_batch_that_contains_its_start(stored: StoredRoot, follower: FollowerRoot) -> None:
    follower.make(follower.start_at(105))
    (state,) = follower.make(follower.append(copied(100, 10) + copied(110)))
    assert (state.log_start_offset, state.log_end_offset, runs(stored)) == (105, 113, [(100, 113, 0)])
    assert offsets(stored) == list(range(105, 113))


@pytest.mark.parametrize("is_merged", [False, True], ids=["runs", "segments"])
@pytest.mark.parametrize("offset", [0, 3, 4, 6, 7, 9, 12])
def test_truncation_keeps_whole_batches_below_the_offset(stored: StoredRoot, is_merged: bool, offset: int) -> None:
    follower = opened(stored)
    follower.make(follower.append(copied(0) + copied(3)))
    follower.make(follower.append(copied(6, epoch=1) + copied(9, epoch=2)))
    if is_merged:
        merge_partition(stored.metadata, stored.objects, stored.config, OF, clock=stored.place.clock)
    (state,) = follower.make(follower.truncation(offset))
    assert state.log_end_offset == offset // 3 * 3
    assert offsets(stored) == list(range(offset // 3 * 3))
    follower.make(follower.append(copied(state.log_end_offset, epoch=4)))
    assert offsets(stored) == list(range(state.log_end_offset + 3))


def test_what_a_merge_has_planned_before_a_truncation_is_never_committed(stored: StoredRoot) -> None:
    follower = opened(stored)
    for offset in (0, 3, 6):
        follower.make(follower.append(copied(offset)))
    planned_at = stored.image.next_offset
    follower.make(follower.truncation(3))
    for offset in (3, 6):  # the same number of runs with the same offsets, and other records
        follower.make(follower.append(copied(offset, epoch=1)))
    segment = SegmentObject(segment_id=encode_uuid(bytes(15) + b"\x05"), base_offset=0, end_offset=9, size_bytes=1)
    record = SegmentObjectsRecord(
        topic_id=stored.topic_id, partition=0, planned_at=planned_at, replaced_runs=3, segments=(segment,)
    )
    with pytest.raises(InvalidRecordError, match="has expired"):
        stored.metadata.commit(lambda image: [record], operation="merge")
    merge_partition(stored.metadata, stored.objects, stored.config, OF, clock=stored.place.clock)
    assert (offsets(stored), runs(stored)) == (list(range(9)), [])


def test_a_server_forgets_producers_of_what_was_truncated_while_the_root_followed(stored: StoredRoot) -> None:
    def produced(sequence: int) -> Callable[[], object]:
        data = batch((b"x",), producer=(7, 0, sequence))
        return lambda: leader.commit([CommitUnit.of(append(data, "orders"))])[0]

    leader = stored.opened().committer()
    for sequence in range(4):
        assert not isinstance(produced(sequence)(), KafkalogError)
    follower = opened(stored)
    follower.make(follower.truncation(2))
    follower.make(follower.append(copied(2, 8)))
    promote(stored.opened())
    assert not isinstance(produced(2)(), KafkalogError)  # the records of sequences 2 and 3 are gone


def test_a_gap_is_stored_up_to_the_size_that_a_run_can_have(stored: StoredRoot, follower: FollowerRoot) -> None:
    """Behind the log end, and between batches."""
    largest = INT32_MAX - 3
    follower.make(follower.append(copied(0) + copied(3 + largest)))
    end = follower.state().log_end_offset
    assert end == 6 + largest
    for data in (
        copied(end + largest + 1),
        copied(end) + copied(end + 3 + largest + 1),
        copied(end, epoch=1) + copied(1 << 40, epoch=2),
    ):
        (result, other) = follower.commit(
            follower.append(data), follower.append(copied(follower.state(1).log_end_offset), 1)
        )
        assert isinstance(result, InvalidRecordError)
        assert "an object store cannot hold such a gap, follow into a file system" in str(result)
        assert isinstance(other, LogState)  # refused alone
    follower.make(follower.append(copied(end + largest)))
    offsets = LogDir(stored.opened()).read("orders", partition=0)["offset"].to_pylist()
    assert offsets == [*range(3), *range(3 + largest, end), *range(end + largest, end + largest + 3)]
