"""Merging the runs of an object root and cleaning up behind it: nothing is lost, whatever is killed or done twice."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.data_objects import T0, Plan, some_batches
from builders.metadata_roots import settings_of
from builders.object_roots import StoredRoot, table_of
from fakes.faulty_store import Call, Fault, FaultyStore
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.objects import merge as merging
from pyspark_kafkalog.maintenance.objects.clean_up import CleanedUp, clean_up, clean_up_root, finish_job, orphans
from pyspark_kafkalog.maintenance.objects.merge import Merged, merge_partition
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.metadata.extents import data_object_record, planned_at_of
from pyspark_kafkalog.metadata.image import partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import PartitionChangeRecord
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.store import ObjectStore, StoreRefusedError
from pyspark_kafkalog.root.admin import delete_topic
from pyspark_kafkalog.root.reads import leader_epochs
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.aiven_layout import AivenLayout
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.segments import TopicIdPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}
DAY_MS = 86_400_000


@pytest.fixture
def root() -> StoredRoot:
    return StoredRoot(SMALL)


def write_some(root: StoredRoot, scratch: Path, count: int, *, seed: int = 1, inline_bytes: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        plans = [Plan(each, some_batches(rng, rng.randint(1, 4)), 40) for each in (A, B)]
        root.write(scratch, *plans, inline_bytes=inline_bytes)


def merge(
    root: StoredRoot,
    of: TopicPartition = A,
    *,
    objects: ObjectStore | None = None,
    metadata: MetadataStore | None = None,
) -> Merged | None:
    return merge_partition(
        root.metadata if metadata is None else metadata,
        root.objects if objects is None else objects,
        root.config,
        of,
        clock=root.place.clock,
    )


def clean(root: StoredRoot, *, objects: ObjectStore | None = None, metadata: MetadataStore | None = None) -> CleanedUp:
    return clean_up(
        root.metadata if metadata is None else metadata,
        root.objects if objects is None else objects,
        delay_ms=lambda image, dropped: 60_000,
        staging_retention_ms=DAY_MS,
        clock=root.place.clock,
    )


def data_and_segments(root: StoredRoot) -> list[str]:
    return [key for key in root.place.bucket.keys("") if "/" in key and not key.startswith(METADATA_DIR)]


@pytest.mark.parametrize("inline_bytes", [0, 100_000])
def test_merged_log_reads_as_before(root: StoredRoot, tmp_path: Path, inline_bytes: int) -> None:
    write_some(root, tmp_path, 10, inline_bytes=inline_bytes)
    merged = merge(root)
    assert merged is not None
    assert (merged.runs_count, merged.replaced_count) == (10, 0)
    assert len(merged.segments) > 1
    partition = root.image.partition("orders", 0)
    assert (partition.segments, len(partition.runs)) == (merged.segments, 0)
    root.check(tmp_path)
    write_some(root, tmp_path, 3, seed=2)
    root.check(tmp_path)


def test_partition_without_runs_is_left_alone(root: StoredRoot, tmp_path: Path) -> None:
    assert merge(root) is None
    write_some(root, tmp_path, 2)
    assert merge(root) is not None
    assert merge(root) is None


def test_segments_are_whole_copies_in_layout_of_aiven(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 10)
    merged = merge(root)
    assert merged is not None
    of = TopicIdPartition("orders", root.topic_id, 0)
    layout = AivenLayout()
    found = layout.segments(root.objects, of, layout.objects_of(root.objects, of))
    assert [(each.segment_id, each.start_offset, each.end_offset, each.size_bytes) for each in found] == [
        (each.segment_id, each.base_offset, each.end_offset, each.size_bytes) for each in merged.segments
    ]
    for remote, own in zip(found, merged.segments, strict=True):
        assert layout.log_content(root.objects, of, remote).size_bytes == own.size_bytes
        for kind in IndexKind:
            index = layout.index(root.objects, of, remote, kind)
            assert (index is None) == (kind is IndexKind.TRANSACTION)
        assert remote.max_timestamp_ms == own.max_timestamp_ms


def test_small_segments_are_merged_again_and_full_ones_not(root: StoredRoot, tmp_path: Path) -> None:
    for number in range(8):
        write_some(root, tmp_path, 1, seed=number)
        merge(root)
        root.check(tmp_path)
    sizes = [each.size_bytes for each in root.image.partition("orders", 0).segments]
    assert sum(size < 1000 for size in sizes) <= 2
    assert max(sizes) <= 2000


def test_leader_epochs_survive_merges(root: StoredRoot, tmp_path: Path) -> None:
    epochs = []
    for number in range(4):
        write_some(root, tmp_path, 2, seed=number)
        epochs = list(leader_epochs(root.image.partition("orders", 0)))
        if number == 2:
            merge(root)
        change = PartitionChangeRecord(partition_id=0, topic_id=root.topic_id, leader=0)
        root.metadata.commit(lambda image, change=change: [change], operation="epoch")
    assert [each.epoch for each in epochs] == [0, 1, 2, 3]
    assert list(leader_epochs(root.image.partition("orders", 0))) == epochs
    merge(root)
    assert list(leader_epochs(root.image.partition("orders", 0))) == epochs
    root.check(tmp_path)


def test_second_of_two_merges_changes_nothing_and_takes_its_objects_back(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 5)
    other = root.place.open()
    raced: list[Merged | None] = []

    def race(call: object) -> None:
        if not raced and getattr(call, "kind", "") == "put":
            raced.append(None)
            raced[0] = merge(root, metadata=other)

    first = merge(root, objects=FaultyStore(root.place.bucket, before=race))
    assert raced[0] is not None
    assert len(raced[0].segments) > 0
    assert first is not None
    assert first.segments == ()
    assert root.image.partition("orders", 0).segments == raced[0].segments
    segments = [key for key in data_and_segments(root) if not key.startswith("data/")]
    assert len(segments) == 3 * len(raced[0].segments)
    root.check(tmp_path)


def test_merge_beside_writes_keeps_new_runs(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 5)
    wrote = []

    def write_once(call: object) -> None:
        if not wrote and getattr(call, "kind", "") == "put":
            wrote.append(1)
            write_some(root, tmp_path, 2, seed=5)

    merged = merge(root, objects=FaultyStore(root.place.bucket, before=write_once))
    assert merged is not None
    assert merged.segments
    assert len(root.image.partition("orders", 0).runs) == 2
    root.check(tmp_path)


def test_merge_of_topic_deleted_meanwhile_changes_nothing(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 3)
    done = []

    def delete_once(call: object) -> None:
        if not done and getattr(call, "kind", "") == "put":
            done.append(1)
            root.metadata.commit(lambda image: delete_topic(image, "orders"), operation="delete")

    merged = merge(root, objects=FaultyStore(root.place.bucket, before=delete_once))
    assert merged is not None
    assert merged.segments == ()


@pytest.mark.parametrize("fault", [Fault.FAILS_BEFORE, Fault.FAILS_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.slow
def test_merge_stopped_at_any_request_loses_nothing(tmp_path: Path, fault: Fault) -> None:
    call = 0
    while True:
        root = StoredRoot(SMALL)
        write_some(root, tmp_path / f"{fault}-{call}", 3)
        client = root.place.client()
        metadata = root.place.open_with(client)
        first = len(client.calls)
        client.faults = {first + call: fault}
        try:
            merge(root, objects=client, metadata=metadata)
            is_done = len(client.calls) <= first + call
        except (Killed, KafkalogError):
            is_done = False
        root.check(tmp_path)
        if is_done:
            break
        merge(root)
        assert len(root.image.partition("orders", 0).runs) == 0
        root.check(tmp_path)
        check_cleaned(root, tmp_path)
        call += 1
    assert call >= 6


def check_cleaned(root: StoredRoot, scratch: Path) -> None:
    """After clean-ups over some days exactly the objects that the image names are left, and all can be read."""
    for _ in range(3):
        root.place.clock.now_ms += 2 * DAY_MS
        clean(root)
    image = root.image
    assert image.dropped == ()
    named = {each.key for each in image.objects}
    left = {key for key in data_and_segments(root) if key.startswith("data/")}
    assert left == named
    segments = [segment for each in image.topics["orders"].partitions for segment in each.segments]
    assert len(data_and_segments(root)) == len(named) + 3 * len(segments)
    root.check(scratch)


def test_dropped_objects_are_deleted_after_their_delay(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 4)
    before = data_and_segments(root)
    merge(root, A)
    merge(root, B)
    assert clean(root).dropped_count == 0
    assert set(before) <= set(data_and_segments(root))
    root.place.clock.now_ms += 60_001
    assert clean(root).dropped_count == 4
    assert not set(before) & set(data_and_segments(root))
    assert root.image.dropped == ()
    root.check(tmp_path)


def test_reader_of_old_image_goes_on_in_merged_segments(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 6)
    end = root.image.partition("orders", 0).state.log_end_offset
    expected = table_of(root.reader(A), 0, end)
    latest = root.reader(A).offset_of_max_timestamp(0, end)
    first_since = root.reader(A).offset_for_timestamp(T0 + 5_000, 0, end)
    old = root.place.open()
    reader = root.reader(A)
    assert reader.extents.current()
    merge(root, A, metadata=old)
    merge(root, B, metadata=old)
    root.place.clock.now_ms += 60_001
    clean_up(old, root.objects, delay_ms=lambda image, dropped: 0, staging_retention_ms=DAY_MS, clock=root.place.clock)
    assert [key for key in data_and_segments(root) if key.startswith("data/")] == []
    assert root.metadata.image.partition("orders", 0).segments == (), "the reader's image is still the old one"
    since = T0 + 5_000
    assert root.reader(A).offset_of_max_timestamp(0, end) == latest
    assert root.reader(A).offset_for_timestamp(since, 0, end) == first_since
    assert table_of(reader, 0, end).equals(expected)


def test_object_of_abandoned_write_is_deleted_and_its_commit_refused(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 1)
    abandoned = root.upload(tmp_path, Plan(A, [[T0]]))
    clean(root)
    assert abandoned[0].key in root.place.bucket
    root.place.clock.now_ms += DAY_MS
    assert clean(root).orphans_count == 1
    assert abandoned[0].key not in root.place.bucket
    with pytest.raises(InvalidRecordError, match="has expired"):
        root.metadata.commit(lambda image: list(map(data_object_record, abandoned)), operation="write")
    root.check(tmp_path)


def test_object_of_running_write_stays(root: StoredRoot, tmp_path: Path) -> None:
    clean(root)
    root.place.clock.now_ms += DAY_MS
    running = root.upload(tmp_path, Plan(A, [[T0]]))
    for _ in range(5):
        assert clean(root).orphans_count == 0
        root.place.clock.now_ms += DAY_MS // 6
    root.metadata.commit(lambda image: list(map(data_object_record, running)), operation="write")
    root.place.clock.now_ms += 5 * DAY_MS
    clean(root)
    root.place.clock.now_ms += 5 * DAY_MS
    clean(root)
    assert running[0].key in root.place.bucket


def test_objects_of_others_are_never_orphans(root: StoredRoot) -> None:
    root.place.bucket.write("data/readme.txt", b"x")
    root.place.bucket.write("elsewhere/x", b"x")
    for _ in range(3):
        root.place.clock.now_ms += 2 * DAY_MS
        assert clean(root).orphans_count == 0
    assert list(orphans(root.image, root.objects, now_ms=0)) == []


def test_clean_up_stopped_at_any_request_is_finished_by_next_one(tmp_path: Path) -> None:
    call = 0
    while True:
        root = StoredRoot(SMALL)
        write_some(root, tmp_path / str(call), 2)
        merge(root)
        root.upload(tmp_path / str(call), Plan(A, [[T0]]))
        clean(root)
        root.place.clock.now_ms += 2 * DAY_MS
        client = root.place.client()
        metadata = root.place.open_with(client)
        first = len(client.calls)
        client.faults = {first + call: Fault.CRASH_AFTER}
        try:
            clean(root, objects=client, metadata=metadata)
            is_done = len(client.calls) <= first + call
        except Killed:
            is_done = False
        check_cleaned(root, tmp_path)
        if is_done:
            break
        call += 1
    assert call >= 3


def test_retention_of_merged_segments_deletes_their_objects(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 6)
    merged = merge(root)
    assert merged is not None
    start = merged.segments[1].base_offset
    state = replace(root.image.partition("orders", 0).state, log_start_offset=start)
    root.metadata.commit(lambda image: [partition_state_record(root.topic_id, 0, state)], operation="retention")
    assert root.image.partition("orders", 0).segments == merged.segments[1:]
    root.place.clock.now_ms += 60_001
    clean(root)
    names = [key for key in data_and_segments(root) if merged.segments[0].segment_id in key]
    assert names == []


def test_segment_id_tells_when_its_merge_was_planned(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 1)
    planned_at = root.image.next_offset
    merged = merge(root)
    assert merged is not None
    assert {planned_at_of(each.segment_id) for each in merged.segments} == {planned_at}


# Jobs over a whole root


def test_merge_segments_merges_all_partitions_and_reports(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 6)
    bytes_of_runs = [each.runs.table["size_bytes"].sum() for each in root.image.topics["orders"].partitions]
    dry = merge_segments(root.opened(), dry_run=True)
    assert [each.bytes_read for each in dry] == bytes_of_runs
    assert all(len(each.runs) for each in root.image.topics["orders"].partitions)
    reports = merge_segments(root.opened())
    assert [(each.topic_partition, each.bytes_read, each.error) for each in reports] == [
        (A, bytes_of_runs[0], None),
        (B, bytes_of_runs[1], None),
    ]
    segments = [len(each.segments) for each in root.image.topics["orders"].partitions]
    assert [each.segments_dropped for each in reports] == [6 - count for count in segments]
    assert not any(len(each.runs) for each in root.image.topics["orders"].partitions)
    root.check(tmp_path)
    assert [each.bytes_read for each in merge_segments(root.opened(), partitions=[A])] == [0]


def test_failure_of_one_partition_is_in_its_report(root: StoredRoot, tmp_path: Path) -> None:
    root.write(tmp_path, Plan(A, [[T0]]))
    gone = root.image.objects.find(root.image.objects.last_id)
    root.write(tmp_path, Plan(B, [[T0]]))
    root.objects.delete([gone.key])
    broken, fine = merge_segments(root.opened())
    assert broken.error is not None
    assert "missing" in broken.error
    assert fine.error is None
    assert len(root.image.partition("orders", 1).segments) == 1


class RefusesSegments(FaultyStore):
    """A store whose error, with its traceback, holds the body that was put."""

    def put(self, key: str, body: Any) -> None:
        view = memoryview(body)
        raise StoreRefusedError(f"{self.url}/{key}: put of {len(view)} bytes was refused: KMS.DisabledException")


def test_merge_that_a_store_refuses_reports_the_stores_error(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 2)
    reports = merge_segments(root.opened(RefusesSegments(root.place.bucket)))
    assert [each.error is not None and "KMS.DisabledException" in each.error for each in reports] == [True, True]


def test_clean_up_that_fails_after_a_job_is_a_warning(root: StoredRoot, caplog: pytest.LogCaptureFixture) -> None:
    client = FaultyStore(
        root.place.bucket, faults=lambda call: Fault.DENIED if call.kind == "list" and call.keys == ("",) else None
    )
    finish_job(root.opened(client))
    assert "what was dropped or abandoned is left to the next run" in caplog.text


def test_copy_that_was_put_for_nothing_and_stays_does_not_fail_the_others(
    root: StoredRoot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_some(root, tmp_path, 2)

    def overtake(call: Call) -> None:
        if call.kind == "create":
            client.before = None
            merge(root)

    client = FaultyStore(
        root.place.bucket, before=overtake, faults=lambda call: Fault.DENIED if call.kind == "delete" else None
    )
    reports = merge_segments(root.opened(client))
    assert [each.error for each in reports] == [None, None]
    assert "left to the clean-up" in caplog.text
    root.check(tmp_path)


def test_merge_in_several_steps_leaves_no_runs(
    root: StoredRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "ROUND_BYTES", 500)
    write_some(root, tmp_path, 8)
    merge_segments(root.opened())
    assert len(root.image.partition("orders", 0).runs) == 0
    root.check(tmp_path)


@pytest.mark.parametrize("is_merged", [False, True])
def test_retention_by_size_and_time(tmp_path: Path, is_merged: bool) -> None:
    root = StoredRoot({**SMALL, "retention.bytes": "1500", "retention.ms": "-1"})
    write_some(root, tmp_path, 8)
    if is_merged:
        merge_segments(root.opened())
    before = root.image.partition("orders", 0)
    sizes = [each.size_bytes for each in before.segments] + before.runs.table["size_bytes"].tolist()
    dry = apply_retention(root.opened(), dry_run=True)
    assert root.image.partition("orders", 0) == before
    reports = apply_retention(root.opened())
    assert [each.bytes_kept for each in dry] == [each.bytes_kept for each in reports]
    kept = reports[0].bytes_kept
    assert kept >= 1500
    assert kept - sizes[reports[0].segments_dropped] < 1500
    after = root.image.partition("orders", 0)
    assert after.state.log_start_offset == reports[0].log_start_offset > 0
    assert after.extents_range == (reports[0].log_start_offset, before.state.log_end_offset)
    start = reports[0].log_start_offset
    offsets = table_of(root.reader(A), start, before.state.log_end_offset)["offset"].to_pylist()
    assert offsets == list(range(start, before.state.log_end_offset))


def test_retention_by_time_can_delete_everything(tmp_path: Path) -> None:
    root = StoredRoot({**SMALL, "retention.ms": "1000"})
    write_some(root, tmp_path, 3)
    merge_segments(root.opened(), partitions=[A])
    apply_retention(root.opened(), now_ms=T0)
    assert root.image.partition("orders", 0).state.log_start_offset == 0
    apply_retention(root.opened(), now_ms=T0 + 20_000)
    for each in root.image.topics["orders"].partitions:
        assert each.state.log_start_offset == each.state.log_end_offset > 0
        assert not each.has_extents
    root.place.clock.now_ms += 3_600_001
    apply_retention(root.opened(), now_ms=T0 + 20_000)
    assert data_and_segments(root) == []
    write_some(root, tmp_path, 1)


def test_clean_up_waits_an_hour_or_the_delay_that_is_set(root: StoredRoot, tmp_path: Path) -> None:
    write_some(root, tmp_path, 2)
    merge_segments(root.opened())
    root.place.clock.now_ms += 3_599_000
    assert clean_up_root(root.opened()).dropped_count == 0
    settings_of(root.metadata, {"log.segment.delete.delay.ms": "60000"})
    assert clean_up_root(root.opened()).dropped_count == 2
