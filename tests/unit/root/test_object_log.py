"""The log of a partition in an object store: what travels with a plan, inline data, objects that are gone."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from builders.data_objects import T0, TOPIC_IDS, WRITE_ID, Plan, stage
from builders.object_roots import ObjectRootModel
from fakes.faulty_store import FaultyStore

from pyspark_kafkalog.errors import CorruptRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord
from pyspark_kafkalog.object_store.store import ObjectNotFoundError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.record.header import crc32c
from pyspark_kafkalog.root.object_log import ObjectLog, StoredBytes
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.upload import UploadTask, upload

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def write(model: ObjectRootModel, scratch: Path, number: int, *plans: Plan, inline_bytes: int = 0) -> None:
    directory = scratch / str(number)
    staged = [each for plan in plans for each in stage(directory, plan)]
    task = UploadTask(WRITE_ID, number, model.image.next_offset)
    objects = upload(model.store, task, staged, TOPIC_IDS, directory=directory, inline_bytes=inline_bytes)
    model.commit_write(objects, plans, inline_bytes=inline_bytes)


@pytest.fixture
def model(tmp_path: Path) -> ObjectRootModel:
    """Ten writes of two records to A and one to B."""
    made = ObjectRootModel(FaultyStore())
    for number in range(10):
        write(made, tmp_path, number, Plan(A, [[T0 + number, T0 + number]]), Plan(B, [[T0]]))
    return made


def offsets(reader: LogReader, start: int, end: int) -> list[int]:
    found = reader.read(start, end, schema=KAFKA_SCHEMA)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize(
    ("start", "end", "runs"), [(0, 20, 10), (5, 6, 1), (5, 7, 2), (4, 4, 0), (19, 20, 1), (20, 20, 0), (20, 25, 0)]
)
def test_part_has_runs_of_range_and_can_be_pickled(model: ObjectRootModel, start: int, end: int, runs: int) -> None:
    part = pickle.loads(pickle.dumps(ObjectLog.of(model.image, A).part(start, end)))
    assert len(part.runs) == len(part.objects) == runs
    extents = part.extents(model.store, lambda: part)
    assert offsets(LogReader(extents, A), start, min(end, 20)) == list(range(start, min(end, 20)))


def test_pickled_part_is_small(model: ObjectRootModel) -> None:
    assert len(pickle.dumps(ObjectLog.of(model.image, A).part(5, 6))) < 1200


def test_extents_have_records_of_later_commits_after_a_look_up(model: ObjectRootModel, tmp_path: Path) -> None:
    extents = model.extents(A)
    assert offsets(LogReader(extents, A), 0, 20) == list(range(20))
    write(model, tmp_path, 99, Plan(A, [[T0]]))
    extents.widen()
    assert offsets(LogReader(extents, A), 19, 21) == [19, 20]
    assert offsets(LogReader(extents, A), 20, 21) == [20]


def test_inline_data_is_read_once_for_all_partitions(tmp_path: Path) -> None:
    model = ObjectRootModel(FaultyStore())
    write(model, tmp_path, 0, Plan(A, [[T0, T0]]), Plan(B, [[T0]]), inline_bytes=10_000)
    model.store.requests.clear()
    for each in (A, B, A):
        log = ObjectLog.of(model.image, each)
        extents = log.extents(model.store, lambda log=log: log)
        assert offsets(LogReader(extents, each), 0, log.runs.table["end_offset"][-1])
    assert model.store.requests.total() == 1


def test_inline_data_of_an_earlier_root_at_the_same_url_with_the_same_topic_ids_is_not_read(tmp_path: Path) -> None:
    for records_count in (1, 2):
        model = ObjectRootModel(FaultyStore())
        scratch = tmp_path / str(records_count)
        scratch.mkdir()
        write(model, scratch, 0, Plan(A, [[T0] * records_count]), inline_bytes=10_000)
        log = ObjectLog.of(model.image, A)
        extents = log.extents(model.store, lambda log=log: log)
        assert offsets(LogReader(extents, A), 0, records_count) == list(range(records_count))


def test_inline_data_whose_commit_is_gone_is_not_found(tmp_path: Path) -> None:
    model = ObjectRootModel(FaultyStore())
    write(model, tmp_path, 0, Plan(A, [[T0]]), inline_bytes=10_000)
    model.store.bucket.objects.clear()
    with pytest.raises(ObjectNotFoundError, match="is gone"):
        StoredBytes(model.store, model.image.node.incarnation_id, model.image.objects).read(
            model.image.objects.last_id, 0, 5
        )


def test_commit_without_promised_data_is_damage(tmp_path: Path) -> None:
    model = ObjectRootModel(FaultyStore())
    write(model, tmp_path, 0, Plan(A, [[T0]]), inline_bytes=10_000)
    (offset,) = model.commits
    model.store_commit(offset, CommitRecord())
    with pytest.raises(CorruptRecordError, match="found CommitRecord"):
        StoredBytes(model.store, model.image.node.incarnation_id, model.image.objects).read(offset, 0, 5)


def test_object_of_no_run_is_not_found(model: ObjectRootModel) -> None:
    with pytest.raises(ObjectNotFoundError, match="no record of the partition is in it"):
        StoredBytes(model.store, model.image.node.incarnation_id, model.image.objects).read(1 << 40, 0, 5)


def test_extent_that_should_exist_and_does_not_is_out_of_range(model: ObjectRootModel) -> None:
    extents = model.extents(A)
    (extent,) = extents.current()
    model.store.bucket.objects.clear()
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 0 to 19 of orders-0 are in memory://bucket: orders-0"):
        extents.after_loss(extent)
    assert model.refreshes == 1


def test_unchanged_image_gives_same_extents(model: ObjectRootModel) -> None:
    extents = model.extents(A)
    assert extents.current() == extents.current()
    assert not extents.is_being_replaced(0)


def test_damage_in_batch_is_reported_with_object_and_position(model: ObjectRootModel) -> None:
    run = model.image.partition("orders", 0).runs.table[7]
    key = model.image.objects.find(int(run["object_id"])).key
    body = bytearray(model.store.bucket.body(key))
    body[int(run["position"]) + 70] ^= 1
    model.store.bucket.write(key, bytes(body))
    with pytest.raises(CorruptRecordError, match="CRC") as caught:
        offsets(model.reader(A), 0, 20)
    assert (caught.value.file, caught.value.position) == (f"memory://bucket/{key}", int(run["position"]) + 17)


def test_merge_during_read_is_followed_once(model: ObjectRootModel, tmp_path: Path) -> None:
    """The reader reads the image again when an object is gone, and ends with an error if that does not help."""
    reader = model.reader(A)
    assert offsets(reader, 0, 2) == [0, 1]
    gone = model.image.objects.find(int(model.image.partition("orders", 0).runs.table["object_id"][5])).key
    model.store.delete([gone])
    with pytest.raises(OffsetOutOfRangeError):
        offsets(reader, 0, 20)
    assert model.refreshes == 1
    assert reader.reached_offset <= 10


def test_record_that_cannot_be_decoded_is_reported_with_object_and_position(model: ObjectRootModel) -> None:
    """A batch with a valid CRC around bytes that are no records."""
    run = model.image.partition("orders", 0).runs.table[7]
    key = model.image.objects.find(int(run["object_id"])).key
    body = bytearray(model.store.bucket.body(key))
    start, end = int(run["position"]), int(run["position"] + run["size_bytes"])
    body[start + 61] ^= 0x7F  # the length of the first record
    body[start + 17 : start + 21] = crc32c(bytes(body[start + 21 : end])).to_bytes(4, "big")
    model.store.bucket.write(key, bytes(body))
    with pytest.raises(CorruptRecordError) as caught:
        offsets(model.reader(A), 0, 20)
    assert caught.value.file == f"memory://bucket/{key}"
    assert start <= caught.value.position < end
