"""The objects of an object root in the image: runs appended by writes, segments by merges, what is dropped when."""

from __future__ import annotations

import pickle
import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.delta import ImageDelta, start_delta
from pyspark_kafkalog.metadata.extents import NO_RUNS, DataObject, Runs
from pyspark_kafkalog.metadata.image import MetadataImage, StagingHorizon, image_records, partition_state_record
from pyspark_kafkalog.metadata.invariants import check_invariants
from pyspark_kafkalog.metadata.messages.metadata_records import (
    DataObjectRecord,
    DroppedObjectsRecord,
    DroppedSegment,
    FormatRecord,
    MetadataRecord,
    ObjectsDeletedRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionRunsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    Run,
    SegmentObject,
    SegmentObjectsRecord,
    StagingHorizonRecord,
    TopicRecord,
    TopicRuns,
)
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.metadata.root_format import RootFormat
from pyspark_kafkalog.storage.names import encode_uuid

TOPIC_ID = encode_uuid(bytes(15) + b"\x07")
#: Keys of objects that no write of this package makes.
FOREIGN_KEYS = (
    "meta.properties",
    "__cluster_metadata-0/00000000000000000000.log",
    "data/../x-0-0-0.batches",
    "/data/a-0-0-0.batches",
    "data//a-0-0-0.batches",
    "data/a-0-0-0.batches\n",
    "data/a-0-0-0.batches/../../b",
    "other/invoices-2026.parquet",
    f"data/{'a' * 1200}-0-0-0.batches",
)
INVALID_NAMES = ("../x", "/abs/x", "", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "a b", "a" * 250, "ä")
ROOT = encode_uuid(bytes(15) + b"\x01")


def commit(image: MetadataImage, *records: MetadataRecord, timestamp_ms: int = 1) -> MetadataImage:
    delta = start_delta(image, base_offset=image.next_offset, timestamp_ms=timestamp_ms)
    delta.replay([decode_record(encode_record(each)) for each in records])
    after = delta.build(image.next_offset + len(records))
    check_invariants(image, after, delta.changes)
    return after


def new_root(partitions: int = 2, *, is_object_root: bool = True) -> MetadataImage:
    delta = ImageDelta(MetadataImage(), commit_offset=0, timestamp_ms=1)
    delta.replay(
        [
            FormatRecord(format_version=2, is_object_root=is_object_root),
            RegisterBrokerRecord(broker_id=1, incarnation_id=ROOT, log_dirs=(ROOT,)),
            TopicRecord(name="t", topic_id=TOPIC_ID),
            *(PartitionRecord(partition_id=number, topic_id=TOPIC_ID, leader_epoch=0) for number in range(partitions)),
        ]
    )
    return delta.build(3 + partitions)


def data_object(key: str, *counts: tuple[int, int], planned_at: int = 100, data: bytes | None = None) -> MetadataRecord:
    """An object with one run of 10 bytes for each (partition, number of offsets)."""
    runs = tuple(
        Run(
            partition=partition,
            position=10 * at,
            size_bytes=10,
            offsets_count=count,
            records_count=count,
            batches_count=1,
            max_timestamp_ms=at,
        )
        for at, (partition, count) in enumerate(counts)
    )
    size_bytes = 10 * len(counts) + 5 if data is None else len(data)
    topics = (TopicRuns(topic_id=TOPIC_ID, runs=runs),)
    return DataObjectRecord(key=key, size_bytes=size_bytes, planned_at=planned_at, inline_data=data, topics=topics)


def segment(base_offset: int, end_offset: int, segment_id: int = 9, **fields: int) -> SegmentObject:
    name = encode_uuid(segment_id.to_bytes(16, "big"))
    return SegmentObject(segment_id=name, base_offset=base_offset, end_offset=end_offset, size_bytes=7, **fields)


def merged(
    *segments: SegmentObject, runs: int = 0, replaced: tuple[SegmentObject, ...] = (), planned_at: int = 100
) -> MetadataRecord:
    return SegmentObjectsRecord(
        topic_id=TOPIC_ID,
        partition=0,
        planned_at=planned_at,
        replaced_runs=runs,
        replaced_segments=tuple(each.segment_id for each in replaced),
        segments=segments,
    )


def log_start(image: MetadataImage, offset: int, partition: int = 0) -> MetadataRecord:
    state = image.partition("t", partition).state
    return partition_state_record(TOPIC_ID, partition, replace(state, log_start_offset=offset))


def reloaded(image: MetadataImage) -> MetadataImage:
    """The image after a snapshot of it is written and read."""
    delta = ImageDelta(
        MetadataImage(), commit_offset=image.next_offset, timestamp_ms=image.last_timestamp_ms, is_snapshot=True
    )
    delta.replay([decode_record(encode_record(each)) for each in image_records(image)])
    return delta.build(image.next_offset)


def restored(*records: MetadataRecord, of_format: MetadataRecord | None = None) -> MetadataImage:
    """The image of a snapshot at offset 9 of the root `new_root` that also has `records`."""
    delta = ImageDelta(MetadataImage(), commit_offset=9, timestamp_ms=1, is_snapshot=True)
    delta.replay(
        [
            of_format or FormatRecord(format_version=2, is_object_root=True),
            TopicRecord(name="t", topic_id=TOPIC_ID),
            PartitionRecord(partition_id=0, topic_id=TOPIC_ID, leader_epoch=0),
            *records,
        ]
    )
    return delta.build(9)


def ranges(image: MetadataImage, partition: int = 0) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The offsets of the partition's segments and of its runs."""
    found = image.partition("t", partition)
    runs = found.runs.table
    segments = [(each.base_offset, each.end_offset) for each in found.segments]
    return segments, list(zip(runs["base_offset"].tolist(), runs["end_offset"].tolist(), strict=True))


def test_runs_of_one_commit_follow_each_other_from_log_end() -> None:
    first = commit(
        new_root(),
        data_object("data/a-0-0-0.batches", (0, 5), (1, 3), (0, 2)),
        data_object("data/b-0-0-0.batches", (0, 4)),
    )
    second = commit(first, data_object("data/c-0-0-0.batches", (1, 6)))
    assert ranges(second, 0) == ([], [(0, 5), (5, 7), (7, 11)])
    assert ranges(second, 1) == ([], [(0, 3), (3, 9)])
    assert second.partition("t", 0).state.log_end_offset == 11
    assert ranges(first, 1) == ([], [(0, 3)]), "the older image is unchanged"
    run = second.partition("t", 1).runs.table[1]
    assert second.objects.find(int(run["object_id"])) == DataObject(7, "data/c-0-0-0.batches", 15, 7)


def test_run_has_leader_epoch_of_partition_at_its_commit() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)))
    image = commit(image, PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=1))
    image = commit(image, data_object("data/b-0-0-0.batches", (0, 5)))
    assert image.partition("t", 0).runs.table["leader_epoch"].tolist() == [0, 1]


def test_inline_data_keeps_commit_until_its_last_run_is_merged() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 1)))
    assert image.objects.lowest_inline_commit is None
    image = commit(image, data_object("", (0, 1), (1, 1), data=bytes(25)))
    assert image.objects.lowest_inline_commit == 6
    image = commit(image, merged(segment(0, 2), runs=2))
    assert image.objects.lowest_inline_commit == 6, "partition 1 still needs it"
    image = commit(image, log_start(image, 1, 1))
    assert image.objects.lowest_inline_commit is None
    assert [each.data_keys for each in image.dropped] == [("data/a-0-0-0.batches",)], (
        "nothing in the store belongs to inline data"
    )


@pytest.mark.parametrize("data", [None, bytes(4)])
def test_inline_data_of_other_size_is_refused(data: bytes | None) -> None:
    record = data_object("", (0, 1), data=bytes(25)).replace(inline_data=data)
    with pytest.raises(InvalidRecordError, match=r"states 25 bytes and holds (no data|4 bytes)"):
        commit(new_root(), record)


def test_merge_replaces_oldest_runs_and_drops_object_with_its_last_run() -> None:
    image = commit(
        new_root(), data_object("data/a-0-0-0.batches", (0, 5), (1, 3)), data_object("data/b-0-0-0.batches", (0, 4))
    )
    image = commit(image, data_object("data/c-0-0-0.batches", (0, 1)))
    image = commit(image, merged(segment(0, 6, 1), segment(6, 9, 2), runs=2), timestamp_ms=77)
    assert ranges(image) == ([(0, 6), (6, 9)], [(9, 10)])
    assert [each.key for each in image.objects] == ["data/a-0-0-0.batches", "data/c-0-0-0.batches"]
    assert [(each.commit_offset, each.timestamp_ms, each.data_keys) for each in image.dropped] == [
        (8, 77, ("data/b-0-0-0.batches",))
    ]


def test_second_merge_of_same_runs_is_refused() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)), data_object("data/b-0-0-0.batches", (0, 4)))
    after = commit(image, merged(segment(0, 9), runs=2))
    with pytest.raises(
        InvalidRecordError, match=r"t-0: segments of offsets 0 to 8 cannot replace 0 segments and 2 runs: "
    ):
        commit(after, merged(segment(0, 9, 10), runs=2))


@pytest.mark.parametrize(
    "record",
    [
        merged(segment(0, 5), runs=2),
        merged(segment(0, 4), runs=1),
        merged(segment(1, 5), runs=1),
        merged(segment(5, 9), runs=1),
        merged(segment(0, 5)),
        merged(segment(9, 12)),
        merged(segment(0, 5), runs=1, replaced=(segment(0, 5),)),
        merged(segment(0, 3), segment(4, 5), runs=1),
        merged(segment(5, 5), runs=0),
        merged(runs=1),
        merged(segment(0, 5, offset_index_bytes=-1), runs=1),
    ],
    ids=str,
)
def test_merge_that_does_not_fit_runs_is_refused(record: MetadataRecord) -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)), data_object("data/b-0-0-0.batches", (0, 4)))
    with pytest.raises(InvalidRecordError, match="t-0: "):
        commit(image, record)


def test_segments_are_replaced_by_id() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 9)))
    old = (segment(0, 3, 1), segment(3, 6, 2), segment(6, 9, 3))
    image = commit(image, merged(*old, runs=1))
    cleaned = commit(image, merged(segment(3, 9, 4), replaced=old[1:]))
    assert ranges(cleaned) == ([(0, 3), (3, 9)], [])
    assert [each.base_offset for each in cleaned.dropped[-1].segments] == [3, 6]
    with pytest.raises(InvalidRecordError, match="another job has replaced them"):
        commit(cleaned, merged(segment(3, 9, 5), replaced=old[1:]))


def test_log_start_drops_what_is_below_it() -> None:
    image = commit(
        new_root(),
        data_object("data/a-0-0-0.batches", (0, 5)),
        data_object("data/b-0-0-0.batches", (0, 4)),
        data_object("data/c-0-0-0.batches", (0, 3)),
    )
    image = commit(image, merged(segment(0, 5), runs=1))
    image = commit(image, log_start(image, 4))
    assert ranges(image) == ([(0, 5)], [(5, 9), (9, 12)])
    image = commit(image, log_start(image, 10), timestamp_ms=5)
    assert ranges(image) == ([], [(9, 12)])
    last = image.dropped[-1]
    dropped = DroppedSegment(
        topic="t", topic_id=TOPIC_ID, partition=0, base_offset=0, segment_id=segment(0, 5).segment_id
    )
    assert (last.data_keys, last.segments) == (("data/b-0-0-0.batches",), (dropped,))
    image = commit(image, log_start(image, 12))
    assert ranges(image) == ([], [])
    assert ranges(commit(image, data_object("data/d-0-0-0.batches", (0, 1)))) == ([], [(12, 13)])


def test_deleted_topic_drops_its_objects_and_not_those_of_others() -> None:
    other = encode_uuid(bytes(15) + b"\x08")
    image = commit(new_root(), TopicRecord(name="u", topic_id=other), PartitionRecord(partition_id=0, topic_id=other))
    shared = data_object("data/a-0-0-0.batches", (0, 5))
    both = (*shared.topics, shared.topics[0].replace(topic_id=other))
    image = commit(image, shared.replace(topics=both), data_object("data/b-0-0-0.batches", (0, 4), (1, 2)))
    image = commit(image, merged(segment(0, 5), runs=1))
    image = commit(image, RemoveTopicRecord(topic_id=TOPIC_ID))
    assert [each.key for each in image.objects] == ["data/a-0-0-0.batches"]
    assert image.dropped[-1].data_keys == ("data/b-0-0-0.batches",)
    assert [each.topic for each in image.dropped[-1].segments] == ["t"]


def test_deleted_objects_leave_image() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)), data_object("data/b-0-0-0.batches", (0, 4)))
    image = commit(image, merged(segment(0, 5, 1), runs=1))
    image = commit(image, merged(segment(5, 9, 2), runs=1))
    first, second = (each.commit_offset for each in image.dropped)
    image = commit(image, ObjectsDeletedRecord(dropped_below=second))
    assert [each.commit_offset for each in image.dropped] == [second]
    again = commit(image, ObjectsDeletedRecord(dropped_below=second))
    assert again.dropped == image.dropped
    assert first < second


def test_write_planned_below_staging_horizon_is_refused() -> None:
    image = commit(new_root(), StagingHorizonRecord(), timestamp_ms=4)
    assert image.staging_horizon == StagingHorizon(0, 5, 4)
    image = commit(image, StagingHorizonRecord(horizon_offset=5), timestamp_ms=9)
    assert image.staging_horizon == StagingHorizon(5, 6, 9)
    with pytest.raises(InvalidRecordError, match="planned at metadata offset 4; what was planned below 5 has expired"):
        commit(image, data_object("data/a-0-0-0.batches", (0, 5), planned_at=4))
    image = commit(image, data_object("data/a-0-0-0.batches", (0, 5), planned_at=5))
    assert ranges(image) == ([], [(0, 5)])
    with pytest.raises(InvalidRecordError, match="expired_writes_stay_out"):
        commit(image, merged(segment(0, 5), runs=1, planned_at=4))


@pytest.mark.parametrize(("horizon", "message"), [(4, "falls from 5 to 4"), (8, "above 7")])
def test_staging_horizon_neither_falls_nor_passes_earlier_commit(horizon: int, message: str) -> None:
    image = commit(new_root(), StagingHorizonRecord())
    image = commit(image, StagingHorizonRecord(horizon_offset=5))
    with pytest.raises(InvalidRecordError, match=message):
        commit(image, StagingHorizonRecord(horizon_offset=horizon))


def test_snapshot_gives_same_image() -> None:
    rng = random.Random(3)
    image = commit(new_root(3), StagingHorizonRecord())
    for number in range(300):
        counts = [(rng.randrange(3), rng.randint(1, 5)) for _ in range(rng.randint(1, 4))]
        is_inline = number % 7 == 0
        record = data_object(
            "" if is_inline else f"data/{number}-0-0-0.batches", *counts, data=bytes(60) if is_inline else None
        )
        image = commit(image, record)
        runs = image.partition("t", 0).runs
        if number % 50 == 49:
            count = len(runs) // 2
            base, end = int(runs.table["base_offset"][0]), int(runs.table["end_offset"][count - 1])
            image = commit(image, merged(segment(base, end, number), runs=count))
        if number % 70 == 69:
            image = commit(image, log_start(image, image.partition("t", 1).state.log_end_offset // 2, 1))
    assert image.dropped
    assert len(image.objects) > 100
    assert reloaded(image) == image
    assert reloaded(reloaded(image)) == image
    assert pickle.loads(pickle.dumps(image)) == image
    assert reloaded(commit(image, data_object("data/x-0-0-0.batches", (0, 1)))) == commit(
        reloaded(image), data_object("data/x-0-0-0.batches", (0, 1))
    )


@pytest.mark.parametrize("count", [1023, 1024, 1025, 3000])
def test_snapshot_of_many_runs_gives_same_image(count: int) -> None:
    image = new_root(1)
    for _ in range(3):
        image = commit(image, data_object("data/x-0-0-0.batches", *[(0, 2)] * (count // 3)))
    image = commit(image, data_object("data/y-0-0-0.batches", *[(0, 2)] * (count % 3), (0, 1)))
    assert len(reloaded(image).partition("t", 0).runs) == count + 1
    assert reloaded(image) == image


def test_two_candidates_for_next_commit_do_not_disturb_each_other() -> None:
    base = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)))
    base = commit(base, data_object("data/b-0-0-0.batches", (0, 5)))
    one = commit(base, data_object("data/c-0-0-0.batches", (0, 1)))
    other = commit(base, data_object("data/d-0-0-0.batches", (0, 2)), data_object("data/e-0-0-0.batches", (0, 2)))
    assert ranges(one) == ([], [(0, 5), (5, 10), (10, 11)])
    assert ranges(other) == ([], [(0, 5), (5, 10), (10, 12), (12, 14)])
    assert [each.key for each in one.objects] == [
        "data/a-0-0-0.batches",
        "data/b-0-0-0.batches",
        "data/c-0-0-0.batches",
    ]
    assert [each.key for each in other.objects] == [
        "data/a-0-0-0.batches",
        "data/b-0-0-0.batches",
        "data/d-0-0-0.batches",
        "data/e-0-0-0.batches",
    ]
    assert ranges(base) == ([], [(0, 5), (5, 10)])
    assert reloaded(other) == other


def test_threads_that_append_to_same_runs_get_their_own() -> None:
    base = NO_RUNS.appended([(0, 1, 1, 0, 0, 1, 1, 1, 0)])
    found: list[Runs] = []
    barrier = threading.Barrier(4)

    def append(number: int) -> None:
        runs = base
        barrier.wait()
        for at in range(500):
            runs = runs.appended([(at + 1, at + 2, number, 0, 0, 1, 1, 1, 0)])
        found.append(runs)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(runs.table["object_id"][1:].tolist()).pop() for runs in found) == [0, 1, 2, 3]
    assert all(len(set(runs.table["object_id"][1:].tolist())) == 1 for runs in found)


def test_rows_of_runs_are_read_only() -> None:
    runs = NO_RUNS.appended([(0, 1, 1, 0, 0, 1, 1, 1, 0)])
    with pytest.raises(ValueError, match="read-only"):
        runs.table["base_offset"] = 5


def test_memory_of_dropped_runs_is_released() -> None:
    runs = NO_RUNS.appended(np.zeros(10_000, NO_RUNS.dtype()))
    assert runs.without_first(9_990).table.base.nbytes < 10_000


@pytest.mark.parametrize(
    "change",
    [
        {"partition": 2},
        {"partition": -1},
        {"position": -1},
        {"position": 6},
        {"size_bytes": 0},
        {"size_bytes": 16},
        {"batches_count": 0},
        {"records_count": 6},
        {"records_count": -1},
        {"offsets_count": -1, "records_count": -1},
    ],
    ids=str,
)
def test_run_that_cannot_be_is_refused(change: dict[str, int]) -> None:
    record = data_object("data/a-0-0-0.batches", (0, 5))
    run = record.topics[0].runs[0].replace(**change)
    with pytest.raises(InvalidRecordError, match="partition"):
        commit(new_root(), record.replace(topics=(record.topics[0].replace(runs=(run,)),)))


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_key_of_no_data_object_is_refused(key: str) -> None:
    with pytest.raises(InvalidRecordError, match="expected the key of a data object"):
        commit(new_root(), data_object(key, (0, 1)))
    with pytest.raises(InvalidRecordError, match="expected the key of a data object"):
        restored(DroppedObjectsRecord(commit_offset=3, data_keys=("data/a-0-0-0.batches", key)))


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_topic_name_that_kafka_does_not_allow_is_refused(name: str) -> None:
    topic = TopicRecord(name=name, topic_id=encode_uuid(bytes(15) + b"\x08"))
    for is_object_root in (True, False):
        with pytest.raises(InvalidRecordError, match=r"topic name .* is invalid"):
            commit(new_root(is_object_root=is_object_root), topic)
    dropped = DroppedSegment(topic=name, topic_id=TOPIC_ID, segment_id=segment(0, 5).segment_id)
    with pytest.raises(InvalidRecordError, match=r"topic name .* is invalid"):
        restored(DroppedObjectsRecord(commit_offset=3, segments=(dropped,)))


def test_segment_id_that_another_writer_made_is_refused() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)))
    random_id = segment(0, 5, 77 << 100)
    with pytest.raises(InvalidRecordError, match="it is none of this root"):
        commit(image, merged(random_id, runs=1))
    dropped = DroppedSegment(topic="t", topic_id=TOPIC_ID, segment_id=random_id.segment_id)
    with pytest.raises(InvalidRecordError, match="it is none of this root"):
        restored(DroppedObjectsRecord(commit_offset=3, segments=(dropped,)))


@pytest.mark.parametrize("change", [{"partition": -1}, {"base_offset": -1}], ids=str)
def test_dropped_segment_that_cannot_be_is_refused(change: dict[str, int]) -> None:
    dropped = DroppedSegment(topic="t", topic_id=TOPIC_ID, segment_id=segment(0, 5).segment_id).replace(**change)
    with pytest.raises(InvalidRecordError, match="names a segment of partition"):
        restored(DroppedObjectsRecord(commit_offset=3, segments=(dropped,)))


@pytest.mark.parametrize("horizon", [-1, 7, 1 << 62])
def test_staging_horizon_beyond_log_is_refused(horizon: int) -> None:
    image = commit(new_root(), StagingHorizonRecord())
    assert image.next_offset == 6
    image = commit(image, StagingHorizonRecord(horizon_offset=6))
    with pytest.raises(InvalidRecordError, match="lets expire"):
        commit(new_root(), StagingHorizonRecord(horizon_offset=horizon))
    with pytest.raises(InvalidRecordError, match="lets expire"):
        restored(StagingHorizonRecord(horizon_offset=horizon << 4, commit_offset=3, timestamp_ms=1))


def test_dropped_objects_out_of_order_are_refused() -> None:
    for offsets in ((4, 4), (4, 3), (-1,), (9,)):
        with pytest.raises(InvalidRecordError, match="states commit"):
            restored(*(DroppedObjectsRecord(commit_offset=offset) for offset in offsets))


@pytest.mark.parametrize(
    "record",
    [
        DroppedObjectsRecord(commit_offset=1, data_keys=("data/a-0-0-0.batches",)),
        PartitionRunsRecord(topic_id=TOPIC_ID, runs=bytes(56)),
        StagingHorizonRecord(horizon_offset=4, commit_offset=3, timestamp_ms=1),
        data_object("data/a-0-0-0.batches", (0, 5)).replace(object_id=5, commit_offset=5),
    ],
    ids=lambda each: type(each).__name__,
)
def test_record_of_snapshots_is_refused_in_commit(record: MetadataRecord) -> None:
    with pytest.raises(InvalidRecordError, match="commit"):
        commit(new_root(), record)


@pytest.mark.parametrize("is_tiered", [False, True])
def test_dropped_objects_of_file_root_are_remote_segments_only(is_tiered: bool) -> None:
    dropped = DroppedSegment(topic="t", topic_id=TOPIC_ID, segment_id=segment(0, 5).segment_id)
    of_format = FormatRecord(format_version=2 if is_tiered else 1)
    remote = DroppedObjectsRecord(commit_offset=3, segments=(dropped,))
    if is_tiered:
        assert restored(remote, of_format=of_format).dropped == (remote,)
        remote = remote.replace(data_keys=("data/a-0-0-0.batches",))
    with pytest.raises(InvalidRecordError, match="never puts into a store"):
        restored(remote, of_format=of_format)


def test_runs_in_root_on_file_system_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="that is not in an object store"):
        commit(new_root(is_object_root=False), data_object("data/a-0-0-0.batches", (0, 1)))


def test_log_end_without_object_is_refused_in_object_root() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)))
    state = image.partition("t", 0).state
    with pytest.raises(InvalidRecordError, match="end at 5, its log at 7"):
        commit(image, partition_state_record(TOPIC_ID, 0, replace(state, log_end_offset=7)))
    with pytest.raises(InvalidRecordError, match="no object holds the offsets 0 to 6"):
        commit(new_root(), partition_state_record(TOPIC_ID, 0, replace(state, log_end_offset=7)))


def test_kind_of_root_cannot_change() -> None:
    with pytest.raises(InvalidRecordError, match="changes the root from is_object_root=True to False"):
        commit(new_root(), FormatRecord(format_version=2))


def test_tiered_segments_of_file_root_end_below_its_log_and_go_with_log_start() -> None:
    image = new_root(is_object_root=False)
    state = image.partition("t", 0).state
    image = commit(image, partition_state_record(TOPIC_ID, 0, replace(state, log_end_offset=20)))
    image = commit(image, merged(segment(0, 5, 1)))
    image = commit(image, merged(segment(5, 9, 2)))
    with pytest.raises(InvalidRecordError, match="cannot replace"):
        commit(image, merged(segment(10, 12, 3)))
    with pytest.raises(InvalidRecordError, match="extents_cover_log"):
        commit(image, merged(segment(9, 21, 3)))
    image = commit(image, log_start(image, 7))
    assert ranges(image) == ([(5, 9)], [])
    assert reloaded(image) == image


def tiered_log(*, local: int) -> MetadataImage:
    """A partition of a file root with the offsets 0 to 19, of which 0 to 8 are remote too, and the local log start."""
    image = new_root(is_object_root=False)
    state = replace(image.partition("t", 0).state, log_end_offset=20, active_base_offset=15, active_size_bytes=9)
    image = commit(image, partition_state_record(TOPIC_ID, 0, state), merged(segment(0, 5, 1), segment(5, 9, 2)))
    return commit(image, local_log_start(image, local))


def local_log_start(image: MetadataImage, offset: int) -> MetadataRecord:
    state = replace(image.partition("t", 0).state, local_log_start_offset=offset)
    return partition_state_record(TOPIC_ID, 0, state)


def test_local_log_start_is_log_start_until_commit_moves_it() -> None:
    image = tiered_log(local=-1)
    assert image.partition("t", 0).state.local_log_start_offset == 0
    assert image.partition("t", 0).state == tiered_log(local=0).partition("t", 0).state
    image = commit(image, local_log_start(image, 5))
    state = image.partition("t", 0).state
    assert (state.log_start_offset, state.local_log_start_offset, state.has_remote_start) == (0, 5, True)
    assert reloaded(image) == image


def test_log_start_takes_local_log_start_along() -> None:
    image = commit(tiered_log(local=5), log_start(tiered_log(local=5), 4))
    assert image.partition("t", 0).state.local_log_start_offset == 5
    image = commit(image, log_start(image, 7))
    assert image.partition("t", 0).state.local_log_start_offset == 7
    assert not image.partition("t", 0).state.has_remote_start


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (4, "local_log_start_never_falls: the local log start of t-0 falls from 5 to 4"),
        (-1, "local_log_start_never_falls: the local log start of t-0 falls from 5 to 0"),
        (10, "segments_reach_local_log_start: t-0 would have no local log below 10, .* end at 9"),
    ],
)
def test_local_log_start_that_loses_offsets_is_refused(offset: int, message: str) -> None:
    image = tiered_log(local=5)
    with pytest.raises(InvalidRecordError, match=message):
        commit(image, local_log_start(image, offset))


def test_local_log_start_above_active_segment_is_refused() -> None:
    image = commit(tiered_log(local=5), merged(segment(9, 18, 3)))
    with pytest.raises(InvalidRecordError, match=r"no local log below 16, .* end at 15"):
        commit(image, local_log_start(image, 16))


def test_all_remote_segments_are_dropped_once_the_log_begins_locally() -> None:
    image = tiered_log(local=5)
    with pytest.raises(InvalidRecordError, match="segments_reach_local_log_start"):
        commit(image, merged(replaced=(segment(0, 5, 1), segment(5, 9, 2))))
    image = commit(image, log_start(image, 5), merged(replaced=(segment(5, 9, 2),)))
    assert ranges(image) == ([], [])
    assert [each.base_offset for each in image.dropped[0].segments] == [0, 5]
    assert reloaded(image) == image
    image = commit(image, merged(segment(4, 12, 3)))
    assert ranges(image) == ([(4, 12)], [])


@pytest.mark.parametrize(("replaced", "runs"), [((1,), 0), ((2, 1), 0), ((1, 2), 1), ((), 0)])
def test_segments_are_dropped_only_as_they_are_stated(replaced: tuple[int, ...], runs: int) -> None:
    stated = tuple(segment(0, 5, each) for each in replaced)
    with pytest.raises(InvalidRecordError, match=r"expected all of the 2 segments"):
        commit(tiered_log(local=-1), merged(replaced=stated, runs=runs))


def test_dropping_segments_leaves_no_run() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)), data_object("data/b-0-0-0.batches", (0, 5)))
    image = commit(image, merged(segment(0, 5, 1), runs=1))
    with pytest.raises(InvalidRecordError, match="and 1 runs"):
        commit(image, merged(replaced=(segment(0, 5, 1),)))


def test_remote_segment_in_root_of_first_format_version_is_refused() -> None:
    image = replace(new_root(is_object_root=False), format=RootFormat(1))
    state = replace(image.partition("t", 0).state, log_end_offset=20)
    with pytest.raises(InvalidRecordError, match="segments_need_format_that_has_them: t-0 would have segments"):
        commit(image, partition_state_record(TOPIC_ID, 0, state), merged(segment(0, 5, 1)))


def test_object_root_has_no_local_log_start() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)))
    with pytest.raises(InvalidRecordError, match="segments_reach_local_log_start"):
        commit(image, local_log_start(image, 5))


@pytest.mark.parametrize(("runs", "message"), [(b"", "0 bytes"), (bytes(55), "55 bytes"), (bytes(56), "do not follow")])
def test_damaged_runs_of_snapshot_are_refused(runs: bytes, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        restored(PartitionRunsRecord(topic_id=TOPIC_ID, partition=0, runs=runs))


def test_runs_of_snapshot_in_unknown_object_are_refused() -> None:
    image = commit(new_root(), data_object("data/a-0-0-0.batches", (0, 5)))
    records = [each for each in image_records(image) if not isinstance(each, DataObjectRecord)]
    delta = ImageDelta(MetadataImage(), commit_offset=image.next_offset, timestamp_ms=1, is_snapshot=True)
    with pytest.raises(InvalidRecordError, match="a run is in data object 5, which does not exist"):
        delta.replay(records)
