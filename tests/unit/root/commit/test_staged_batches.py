"""Batches that a task has put into the store: committed as they are, checked, refused, and collected if nobody does."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.followers import FollowerRoot
from builders.leader_writers import T0, batch, copied, marker
from builders.object_roots import StoredRoot, named_objects

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.record.header import BASE_OFFSET_AT, LEADER_EPOCH_AT
from pyspark_kafkalog.root.commit.changes import FollowerAppend
from pyspark_kafkalog.root.commit.runs import StagedBatches, stage_batches
from pyspark_kafkalog.storage.log.follower import check_batches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.upload import WrittenObject
from pyspark_kafkalog.units import DAY_MS, INT64_MAX

OF = TopicPartition("orders", 0)


def moved(data: bytes, offset: int, epoch: int) -> bytes:
    """The batch at another offset, in another leader epoch."""
    found = bytearray(data)
    found[BASE_OFFSET_AT : BASE_OFFSET_AT + 8] = offset.to_bytes(8, "big")
    found[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = epoch.to_bytes(4, "big")
    return bytes(found)


def transactional(offset: int, producer_id: int = 7, *, epoch: int = 0) -> bytes:
    return moved(batch([b"a", b"b"], producer=(producer_id, 0, offset), is_transactional=True), offset, epoch)


def ended(offset: int, producer_id: int = 7, *, is_commit: bool = False, epoch: int = 0) -> bytes:
    return moved(marker(producer_id, 0, is_commit=is_commit), offset, epoch)


@pytest.fixture
def stored() -> StoredRoot:
    stored = StoredRoot()
    stored.place.clock.now_ms = T0
    return stored


@pytest.fixture
def follower(stored: StoredRoot) -> FollowerRoot:
    return FollowerRoot(Path("unused"), root=stored.opened(), topic="orders")


def staged(stored: StoredRoot, data: bytes, first_offset: int, *, planned_at: int | None = None) -> StagedBatches:
    """As a task hands it to the driver."""
    image = stored.image
    found = stage_batches(
        stored.objects,
        image.topic(OF.topic).topic_id,
        OF,
        first_offset,
        check_batches(data),
        planned_at=image.next_offset if planned_at is None else planned_at,
    )
    return pickle.loads(pickle.dumps(found))


def change(follower: FollowerRoot, batches: StagedBatches) -> FollowerAppend:
    return replace(follower.append(b""), data=batches)


def runs(stored: StoredRoot) -> list[tuple[int, int, int]]:
    rows = stored.image.partition("orders", 0).runs.table
    return [(int(row["base_offset"]), int(row["end_offset"]), int(row["leader_epoch"])) for row in rows]


def test_staged_batches_make_the_same_log_as_their_bytes(stored: StoredRoot) -> None:
    pieces = [
        copied(4, epoch=2) + transactional(9, epoch=2) + copied(20, epoch=5),
        copied(30, epoch=5) + transactional(33, 8, epoch=5) + ended(40, epoch=5) + copied(41, epoch=6),
        ended(50, 8, epoch=6) + copied(51, epoch=6),
    ]
    found: list[list[object]] = []
    for is_staged in (False, True):
        stored = StoredRoot()
        stored.place.clock.now_ms = T0
        follower = FollowerRoot(Path("unused"), root=stored.opened(), topic="orders")
        states: list[object] = []
        for data in pieces:
            append = follower.append(data)
            if is_staged:
                append = replace(append, data=staged(stored, data, append.expected_end_offset))
            states += follower.make(append)
        partition, log_dir = stored.image.partition("orders", 0), LogDir(stored.opened())
        reads = [log_dir.read("orders", partition=0, isolation=each) for each in ("read_committed", "read_uncommitted")]
        found.append(
            [
                states,
                runs(stored),
                partition.state,
                partition.producer_batches.table.tolist(),
                stored.image.next_producer_id,
                [each.column("offset").to_pylist() for each in reads],
                [each.column("value").to_pylist() for each in reads],
            ]
        )
    assert found[0] == found[1]
    assert isinstance(states[0], LogState)
    assert [each.first_unstable_offset for each in states if isinstance(each, LogState)] == [9, 33, -1]


def test_each_call_puts_another_object(stored: StoredRoot) -> None:
    first, second = (staged(stored, copied(0), 0) for _ in range(2))
    assert first.written.key != second.written.key


def of_run(**fields: int) -> Callable[[StagedBatches], StagedBatches]:
    def change_run(found: StagedBatches) -> StagedBatches:
        runs = (*found.written.runs[:-1], replace(found.written.runs[-1], **fields))  # type: ignore[arg-type]
        return replace(found, written=replace(found.written, runs=runs))

    return change_run


def of_written(**fields: Any) -> Callable[[StagedBatches], StagedBatches]:
    return lambda found: replace(found, written=replace(found.written, **fields))


def of_place(**fields: Any) -> Callable[[StagedBatches], StagedBatches]:
    return lambda found: replace(found, attributes=(*found.attributes[:-1], replace(found.attributes[-1], **fields)))


HOSTILE: dict[str, Callable[[StagedBatches], StagedBatches]] = {
    "beyond the object": of_run(position=1 << 40),
    "over the run before": of_run(position=0),
    "more bytes than the object": of_run(size_bytes=1 << 20),
    "no bytes": of_run(size_bytes=0),
    "negative bytes": of_run(size_bytes=-100),
    "more batches than bytes": of_run(batches_count=3),
    "no batches": of_run(batches_count=0),
    "no offsets": of_run(offsets_count=0),
    "many offsets": of_run(offsets_count=1 << 40),
    "more records than offsets": of_run(records_count=6),
    "negative records": of_run(records_count=-1),
    "another partition": of_run(partition=1),
    "another topic": of_run(topic_id="AAAAAAAAAAAAAAAAAAAAAQ"),  # type: ignore[arg-type]
    "planned later than its key says": of_written(planned_at=INT64_MAX),
    "a key of something else": of_written(key="__cluster_metadata-0/00000000000000000000.log"),
    "bytes of its own": of_written(inline_data=b"bytes"),
    "no runs": of_written(runs=()),
    "falling epochs": of_place(leader_epoch=1),
    "a negative epoch": of_place(leader_epoch=-5),
    "a base offset of its own": of_place(base_offset=0),
    "half a row": of_place(producer_batches=b"half"),
    "rows of other batches": lambda found: replace(found, attributes=found.attributes[::-1]),
    "fewer attributes": lambda found: replace(found, attributes=found.attributes[:1]),
    "a negative offset": lambda found: replace(found, first_offset=-1),
    "an offset that no log has": lambda found: replace(found, first_offset=INT64_MAX),
    "another log end": lambda found: replace(found, first_offset=3),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_task_cannot_have_put_is_refused_alone(stored: StoredRoot, follower: FollowerRoot, name: str) -> None:
    good = staged(stored, transactional(0, epoch=2) + ended(2, is_commit=True, epoch=2) + copied(5, epoch=3), 0)
    (result, other) = follower.commit(change(follower, HOSTILE[name](good)), follower.append(copied(0), 1))
    assert isinstance(result, InvalidRecordError)
    assert "orders-0" in str(result) or "batch of a producer" in str(result) or "batches of producers" in str(result)
    assert isinstance(other, LogState)
    assert (other.log_end_offset, runs(stored)) == (3, [])
    (state,) = follower.make(change(follower, good))
    assert state.log_end_offset == 8


def test_batches_of_an_older_epoch_than_the_log_are_refused(stored: StoredRoot, follower: FollowerRoot) -> None:
    follower.make(follower.append(copied(0, epoch=4)))
    (result,) = follower.commit(change(follower, staged(stored, copied(3, epoch=3), 3)))
    assert isinstance(result, InvalidRecordError)
    assert "diverges" in str(result)


def test_batches_that_were_put_before_a_truncation_are_refused(stored: StoredRoot, follower: FollowerRoot) -> None:
    follower.make(follower.append(copied(0)), follower.append(copied(0) + copied(3), 1))
    before = staged(stored, copied(3), 3)
    follower.make(follower.truncation(3, 1))
    (result,) = follower.commit(change(follower, before))
    assert isinstance(result, InvalidRecordError)
    assert "expired" in str(result)
    (state,) = follower.make(change(follower, staged(stored, copied(3), 3)))
    assert state.log_end_offset == 6


def test_object_that_is_not_committed_is_collected_and_one_that_is_stays(
    stored: StoredRoot, follower: FollowerRoot
) -> None:
    kept, left = (staged(stored, copied(0), 0) for _ in range(2))
    follower.make(change(follower, kept))
    present: list[set[str]] = []
    for day in range(0, 40, 10):
        clean_up_root(follower.root, now_ms=T0 + day * DAY_MS)  # type: ignore[arg-type]
        present.append(set(stored.place.bucket.keys()) & {kept.written.key, left.written.key})
    assert present[0] == {kept.written.key, left.written.key}
    assert present[-1] == {kept.written.key} == named_objects(stored.image)


def test_a_root_on_a_file_system_refuses_them(stored: StoredRoot, tmp_path: Path) -> None:
    follower = FollowerRoot.create(tmp_path / "files")
    append = follower.append(b"")
    elsewhere = staged(stored, copied(0), 0)
    runs = tuple(replace(each, topic_id=append.topic_id) for each in elsewhere.written.runs)
    written: WrittenObject = replace(elsewhere.written, runs=runs)
    (result,) = follower.commit(replace(append, data=replace(elsewhere, written=written)))
    assert isinstance(result, KafkalogError)
    assert "cannot be appended to a file" in str(result)
