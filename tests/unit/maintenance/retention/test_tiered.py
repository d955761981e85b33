"""Retention of a tiered log: what is local goes once it is copied, what is remote by total retention, objects later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.root_places import forget, memory_root, store_of
from builders.tiered_roots import DAY_MS, HOUR_MS, ORDERS, ROWS, T0, TOPIC, Tiered, file_root, tiered_root
from fakes.faulty_store import Fault, FaultyStore, VirtualClock

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.repair import rewrite_epochs
from pyspark_kafkalog.maintenance.retention.delete import apply_retention, finish
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import PartitionChangeRecord
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    LeaderEpochCheckpoint,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT
from pyspark_kafkalog.tiered.objects import DirectoryObjects, SegmentStore
from pyspark_kafkalog.tiered.own_segments import segment_keys
from pyspark_kafkalog.tiered.segments import TopicIdPartition


@pytest.fixture(params=["local", "aiven"])
def tiered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tiered]:
    """Layout local in a directory, layout aiven in a bucket in memory; ten commits an hour apart, all tiered."""
    clock = VirtualClock(T0)
    if request.param == "local":
        location: Path | str = tmp_path / "remote"
        Path(location).mkdir()
        objects: SegmentStore = DirectoryObjects(tmp_path / "remote")
    else:
        location = memory_root()
        store_of(location).bucket.clock = clock
        objects = store_of(location)
    log_dir = tiered_root(
        tmp_path / "log", location, layout=request.param, clock=clock.now_ms, retention_ms=str(7 * DAY_MS)
    )
    made = Tiered(log_dir, clock, objects)
    made.append(10)
    made.tier()
    yield made
    if isinstance(location, str):
        forget(location)


def test_local_retention_removes_copied_segments_and_leaves_the_log(tiered: Tiered) -> None:
    bases, remote, keys = tiered.local_bases, tiered.remote_bases, tiered.keys
    assert remote == bases[:-1]
    assert tiered.retain().local_segments_dropped == 0
    tiered.alter(local_retention_ms=str(4 * HOUR_MS + HOUR_MS // 2))
    report = tiered.retain()
    kept = next(base for base, after in itertools.pairwise(bases) if (after - 1) // ROWS >= 6)
    assert tiered.starts == (0, kept)
    assert tiered.local_bases == [base for base in bases if base >= kept]
    assert (tiered.remote_bases, tiered.keys) == (remote, keys)
    assert (report.log_start_offset, report.local_log_start_offset) == (0, kept)
    assert (report.segments_dropped, report.local_segments_dropped) == (0, sum(base < kept for base in bases))
    assert report.bytes_dropped == 0
    assert report.local_bytes_dropped == sum(
        each.size_bytes for each in tiered.image.segments if each.base_offset < kept
    )
    assert tiered.offsets() == list(range(200))


def test_read_that_began_locally_goes_on_in_remote_storage(tiered: Tiered) -> None:
    tiered.log_dir.refresh()
    batches = tiered.log_dir.reader(TOPIC, 0).read(0, 200, schema=KAFKA_SCHEMA)
    offsets = next(batches)["offset"].to_pylist()
    tiered.alter(local_retention_ms=str(3 * HOUR_MS + HOUR_MS // 2), file_delete_delay_ms="0")
    tiered.retain()
    tiered.retain()
    assert len(offsets) < tiered.starts[1] == tiered.local_bases[0]
    assert not list(tiered.directory.glob("*.deleted"))
    for batch in batches:
        offsets += batch["offset"].to_pylist()
    assert offsets == list(range(200))


def test_local_retention_by_size_keeps_fewest_segments_with_that_size(tiered: Tiered) -> None:
    sizes = {each: (tiered.directory / f"{each:020d}.log").stat().st_size for each in tiered.local_bases}
    tiered.alter(local_retention_bytes="5000")
    tiered.retain()
    total = sum(sizes[each] for each in tiered.local_bases)
    assert total >= 5000 > total - sizes[tiered.local_bases[0]]
    assert tiered.offsets() == list(range(200))


def test_segment_that_is_not_copied_stays_whatever_its_age_and_size(tiered: Tiered) -> None:
    copied = tiered.image.segments[-1].end_offset
    tiered.append(5)
    tiered.alter(local_retention_ms="0", retention_ms="1000", local_retention_bytes="0", retention_bytes="0")
    tiered.clock.advance(DAY_MS)
    tiered.retain()
    assert tiered.starts == (copied, copied)
    assert tiered.local_bases[0] == copied
    assert tiered.remote_bases == []
    assert tiered.offsets() == list(range(copied, 300))
    tiered.tier()
    tiered.retain()
    assert tiered.remote_bases == []
    assert len(tiered.local_bases) == 2  # the active one was rolled, and is copied next
    tiered.tier()
    tiered.retain()
    assert tiered.starts == (300, 300)
    assert tiered.local_bases == [300]
    assert tiered.offsets() == []


def test_due_active_segment_is_rolled_once_all_others_are_copied(tiered: Tiered) -> None:
    tiered.alter(local_retention_ms="0")
    tiered.clock.advance(HOUR_MS)
    active = tiered.local_bases[-1]
    tiered.retain()
    assert tiered.local_bases == [active, 200]
    tiered.retain()
    assert tiered.local_bases == [active, 200]
    assert tiered.offsets() == list(range(200))
    tiered.tier()
    tiered.retain()
    assert tiered.starts == (0, 200)
    assert tiered.local_bases == [200]
    version = tiered.log_dir.version
    tiered.retain()
    assert tiered.log_dir.version == version
    assert tiered.offsets() == list(range(200))
    tiered.append(1)
    assert tiered.offsets() == list(range(220))


def test_total_retention_drops_remote_segments_and_takes_the_local_log_along(tiered: Tiered) -> None:
    sizes = {each.base_offset: each.size_bytes for each in tiered.image.segments}
    tiered.alter(local_retention_ms=str(4 * HOUR_MS))
    tiered.retain()
    _, local_start = tiered.starts
    tiered.alter(retention_ms=str(6 * HOUR_MS))
    report = tiered.retain()
    log_start = tiered.remote_bases[0]
    assert 0 < log_start < local_start
    assert tiered.starts == (log_start, local_start)
    assert report.bytes_dropped == sum(size for base, size in sizes.items() if base < log_start)
    assert report.segments_dropped == sum(base < log_start for base in sizes)
    assert tiered.offsets() == list(range(log_start, 200))
    tiered.alter(retention_ms=str(3 * HOUR_MS + HOUR_MS // 2), local_retention_ms="-2")
    tiered.retain()
    log_start, local_start = tiered.starts
    assert log_start == local_start == tiered.local_bases[0] == tiered.remote_bases[0]
    assert tiered.offsets() == list(range(log_start, 200))


def test_total_retention_by_size_counts_what_is_only_local(tiered: Tiered) -> None:
    segments = tiered.image.segments
    active_bytes = tiered.image.state.active_size_bytes
    kept_bytes = sum(each.size_bytes for each in segments[-3:]) + active_bytes
    tiered.alter(local_retention_ms="0", retention_bytes=str(kept_bytes))
    tiered.retain()
    assert tiered.remote_bases == [each.base_offset for each in segments[-3:]]
    tiered.append(1)
    tiered.retain()
    assert len(tiered.remote_bases) < 3


def test_dropped_objects_go_after_the_delay_and_others_stay(tiered: Tiered) -> None:
    before = tiered.keys
    tiered.alter(retention_ms=str(5 * HOUR_MS))
    tiered.retain()
    assert tiered.keys == before
    tiered.clock.advance(HOUR_MS - 60_000)
    tiered.alter(retention_ms=str(7 * DAY_MS))
    finish(tiered.log_dir.root)
    assert tiered.keys == before
    tiered.clock.advance(120_000)
    finish(tiered.log_dir.root)
    assert tiered.keys == tiered.named_keys
    assert 0 < len(tiered.keys) < len(before)
    assert file_root(tiered.log_dir).store.refresh().dropped == ()


def test_dry_run_tells_the_same_and_changes_nothing(tiered: Tiered) -> None:
    tiered.alter(local_retention_ms=str(4 * HOUR_MS), retention_ms=str(6 * HOUR_MS))
    before = (tiered.local_bases, tiered.keys, tiered.log_dir.version)
    [told] = apply_retention(tiered.log_dir.root, dry_run=True)
    assert (tiered.local_bases, tiered.keys, tiered.log_dir.version) == before
    done = tiered.retain()
    for name in ("bytes_dropped", "bytes_kept", "segments_dropped", "local_segments_dropped", "local_bytes_dropped"):
        assert getattr(told, name) == getattr(done, name)
    assert (told.log_start_offset, told.local_log_start_offset) == tiered.starts


def test_delete_records_reaches_into_remote_segments(tiered: Tiered) -> None:
    tiered.alter(local_retention_ms=str(4 * HOUR_MS))
    tiered.retain()
    _, local_start = tiered.starts
    [report] = delete_records(tiered.log_dir.root, {ORDERS: 45})
    assert report.log_start_offset == 45
    assert tiered.starts == (45, local_start)
    assert tiered.image.segments[0].base_offset <= 45 < tiered.image.segments[0].end_offset
    assert tiered.offsets() == list(range(45, 200))
    with pytest.raises(OffsetOutOfRangeError):
        tiered.log_dir.read(TOPIC, partition=0, start_offset=44)
    delete_records(tiered.log_dir.root, {ORDERS: local_start + 3})
    tiered.retain()
    assert tiered.starts == (local_start + 3, local_start + 3)
    assert tiered.local_bases[0] == local_start
    assert tiered.remote_bases[0] == local_start
    delete_records(tiered.log_dir.root, {ORDERS: -1})
    tiered.retain()
    assert (tiered.remote_bases, tiered.offsets()) == ([], [])
    tiered.append(2)
    tiered.tier()
    assert tiered.offsets() == list(range(200, 240))


def test_without_copying_total_retention_deletes_what_was_not_copied(tiered: Tiered) -> None:
    tiered.append(5)
    tiered.alter(remote_log_copy_disable="true", retention_ms="1000", local_retention_ms="1000")
    tiered.clock.advance(HOUR_MS)
    tiered.retain()
    assert tiered.starts == (300, 300)
    assert (tiered.local_bases, tiered.remote_bases) == ([300], [])


def test_switching_remote_storage_off_leaves_the_local_log(tiered: Tiered) -> None:
    tiered.alter(local_retention_ms=str(4 * HOUR_MS))
    tiered.retain()
    _, local_start = tiered.starts
    tiered.alter(remote_storage_enable="false", remote_log_delete_on_disable="true")
    assert tiered.starts == (local_start, local_start)
    assert tiered.remote_bases == []
    assert tiered.offsets() == list(range(local_start, 200))
    tiered.clock.advance(2 * HOUR_MS)
    tiered.retain()
    assert tiered.keys == []
    assert LeaderEpochCheckpoint.open(tiered.directory / LEADER_EPOCH_CHECKPOINT).entries[0].start_offset == local_start
    assert read_offset_checkpoint(file_root(tiered.log_dir).path / LOG_START_OFFSET_CHECKPOINT) == {}
    tiered.alter(remote_storage_enable="true")
    tiered.tier()
    assert tiered.remote_bases == tiered.local_bases[:-1]
    assert tiered.offsets() == list(range(local_start, 200))


def test_deleted_topic_takes_its_objects_along_after_the_delay(tiered: Tiered) -> None:
    tiered.log_dir.delete_topic(TOPIC)
    before = tiered.keys
    assert before
    finish(tiered.log_dir.root)
    assert tiered.keys == before
    tiered.clock.advance(2 * HOUR_MS)
    finish(tiered.log_dir.root)
    assert tiered.keys == []


def test_files_of_brokers_show_where_the_log_starts(tiered: Tiered) -> None:
    checkpoint = file_root(tiered.log_dir).path / LOG_START_OFFSET_CHECKPOINT
    tiered.alter(local_retention_ms=str(4 * HOUR_MS))
    tiered.retain()
    assert read_offset_checkpoint(checkpoint) == {ORDERS: 0}
    assert LeaderEpochCheckpoint.open(tiered.directory / LEADER_EPOCH_CHECKPOINT).entries[0].start_offset == 0
    delete_records(tiered.log_dir.root, {ORDERS: 45})
    assert read_offset_checkpoint(checkpoint) == {ORDERS: 45}
    assert LeaderEpochCheckpoint.open(tiered.directory / LEADER_EPOCH_CHECKPOINT).entries[0].start_offset == 45


@pytest.mark.parametrize("cut_at", [0, 45, 60, 130, 150])
def test_leader_epochs_are_rebuilt_from_remote_and_local_segments(tmp_path: Path, cut_at: int) -> None:
    """Epochs begin at 0, 60, 120 and 180: in remote segments, at the local log start or after it."""
    clock = VirtualClock(T0)
    (tmp_path / "remote").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "remote", layout="local", clock=clock.now_ms)
    tiered = Tiered(log_dir, clock, DirectoryObjects(tmp_path / "remote"))
    root = file_root(log_dir)
    new_epoch = PartitionChangeRecord(partition_id=0, topic_id=tiered.id_partition.topic_id, leader=1)
    for _ in range(3):
        tiered.append(3)
        root.commit(lambda image: [new_epoch], operation="new epoch")
    tiered.append(3)
    tiered.tier()
    tiered.alter(local_retention_ms=str(4 * HOUR_MS + HOUR_MS // 2), retention_ms=str(DAY_MS))
    tiered.retain()
    delete_records(log_dir.root, {ORDERS: cut_at})
    assert tiered.starts[1] > 130
    path = tiered.directory / LEADER_EPOCH_CHECKPOINT
    whole = path.read_bytes()
    path.unlink()
    rewrite_epochs(root, ORDERS, clock.now_ms())
    assert path.read_bytes() == whole
    assert tiered.offsets() == list(range(cut_at, 240))


def test_segments_without_timestamps_are_as_old_as_their_objects(tmp_path: Path) -> None:
    clock = VirtualClock(T0)
    location = memory_root()
    store_of(location).bucket.clock = clock
    log_dir = tiered_root(tmp_path / "log", location, clock=clock.now_ms, retention_ms=str(2 * HOUR_MS))
    tiered = Tiered(log_dir, clock, store_of(location))
    tiered.append(3)
    tiered.tier()
    root = file_root(log_dir)
    image = root.store.refresh()
    drop_timestamps(image.partition(TOPIC, 0))
    clock.advance(HOUR_MS)
    tiered.retain()
    assert tiered.starts[0] == 0
    clock.advance(2 * HOUR_MS)
    tiered.retain()
    assert tiered.remote_bases == []
    forget(location)


def drop_timestamps(partition: PartitionImage) -> None:
    for each in partition.segments:
        object.__setattr__(each, "max_timestamp_ms", -1)


def test_leftovers_of_killed_copies_expire_and_nobody_elses_objects(tiered: Tiered) -> None:
    layout, of = tiered.storage.layout, tiered.id_partition
    left = segment_keys(of, 180, new_segment_id(tiered.log_dir.version), layout)
    other_root = segment_keys(TopicIdPartition(TOPIC, "0123456789abcdefghijkA", 0), 0, new_segment_id(1), layout)
    broker = segment_keys(of, 180, "zzzzzzzzzzzzzzzzzzzzzA", layout)
    for key in (*left, *other_root, *broker, "notes/readme.txt"):
        tiered.objects.put(key, b"x")
    others = {*other_root, *broker, "notes/readme.txt"}
    finish(tiered.log_dir.root)
    assert set(left) <= set(tiered.keys)
    for _ in range(3):
        tiered.clock.advance(DAY_MS + 1)
        finish(tiered.log_dir.root)
    assert set(tiered.keys) == {*tiered.named_keys, *others}


def test_root_without_remote_storage_has_no_staging_horizon(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    version = log_dir.version
    finish(log_dir.root)
    log_dir.refresh()
    assert log_dir.version == version


def test_failing_store_keeps_no_file_and_no_commit_back(tiered: Tiered) -> None:
    tiered.alter(retention_ms=str(5 * HOUR_MS))
    tiered.clock.advance(2 * HOUR_MS)
    if isinstance(tiered.objects, FaultyStore):
        tiered.objects.faults = lambda call: Fault.UNAVAILABLE
    else:
        Path(tiered.storage.location).rename(Path(tiered.storage.location).with_name("away"))
    tiered.retain()
    assert tiered.starts[0] > 0
    assert tiered.local_bases[0] == tiered.starts[0]
