"""Reindexing on object roots: damaged and missing indexes are rebuilt from the `.log`, right ones stay."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders.data_objects import T0, Plan, some_batches
from builders.metadata_roots import forget_images
from builders.object_roots import StoredRoot
from fakes.faulty_store import Fault
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.maintenance.reindex import reindex, reindex_log
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import OwnLayout, index_place, segment_keys
from pyspark_kafkalog.tiered.segments import TopicIdPartition

A = TopicPartition("orders", 0)
SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "300"}


@pytest.fixture
def stored(tmp_path: Path) -> StoredRoot:
    """A partition of several segments with indexes of some entries."""
    stored = StoredRoot(SMALL)
    stored.place.clock.now_ms = T0
    write_and_merge(stored, tmp_path)
    assert len(segments(stored)) > 2
    return stored


def write_and_merge(stored: StoredRoot, scratch: Path) -> None:
    rng = random.Random(1)
    for _ in range(6):
        stored.write(scratch, Plan(A, some_batches(rng, 6), 60))
    assert merge_partition(stored.metadata, stored.objects, stored.config, A, clock=stored.place.clock) is not None


def segments(stored: StoredRoot) -> tuple[SegmentObject, ...]:
    return stored.image.partition("orders", 0).segments


def place_of(stored: StoredRoot, number: int, kind: IndexKind) -> tuple[str, int, int]:
    of = TopicIdPartition("orders", stored.topic_id, 0)
    key, place = index_place(of, segments(stored)[number], kind, OwnLayout.AIVEN)
    assert place is not None
    return key, place.start, place.size_bytes


def index_bytes(stored: StoredRoot, number: int, kind: IndexKind) -> bytes:
    key, start, size_bytes = place_of(stored, number, kind)
    return stored.place.bucket.body(key)[start : start + size_bytes]


def keys_of(stored: StoredRoot, number: int) -> tuple[str, ...]:
    segment = segments(stored)[number]
    of = TopicIdPartition("orders", stored.topic_id, 0)
    return segment_keys(of, segment.base_offset, segment.segment_id)


def damage(stored: StoredRoot, number: int, kind: IndexKind, at: int = 3) -> None:
    """Flip a bit of the index."""
    key, start, _ = place_of(stored, number, kind)
    body = bytearray(stored.place.bucket.body(key))
    body[start + at] ^= 0x40
    stored.place.bucket.write(key, bytes(body))


def run(stored: StoredRoot, *, dry_run: bool = False, force: bool = False) -> PartitionReport:
    forget_images()
    root = stored.opened()
    [report] = reindex(root, partitions=[A], dry_run=dry_run, force=force)
    stored.metadata.refresh()
    return report


def test_right_indexes_stay_also_with_other_settings(stored: StoredRoot) -> None:
    before, puts = segments(stored), stored.place.bucket.keys("")
    assert run(stored).files_written == 0
    assert (segments(stored), stored.place.bucket.keys("")) == (before, puts)


@pytest.mark.parametrize("kind", [IndexKind.OFFSET, IndexKind.TIMESTAMP, IndexKind.PRODUCER_SNAPSHOT])
@pytest.mark.parametrize("number", [0, 1])
def test_damaged_index_is_rebuilt_as_it_was(stored: StoredRoot, tmp_path: Path, kind: IndexKind, number: int) -> None:
    before = segments(stored)
    contents = {each: index_bytes(stored, number, each) for each in IndexKind if each is not IndexKind.TRANSACTION}
    log = stored.place.bucket.body(keys_of(stored, number)[0])
    damage(stored, number, kind)
    assert run(stored, dry_run=True).files_written == 1
    assert segments(stored) == before
    report = run(stored)
    assert (report.error, report.files_written) == (None, 1)
    after = segments(stored)
    assert after[number].segment_id != before[number].segment_id
    assert [each for at, each in enumerate(after) if at != number] == [
        each for at, each in enumerate(before) if at != number
    ]
    assert {each: index_bytes(stored, number, each) for each in contents} == contents
    assert stored.place.bucket.body(keys_of(stored, number)[0]) == log
    assert run(stored).files_written == 0
    stored.check(tmp_path)


def test_missing_objects_of_indexes_are_put_again_and_verify_is_content(stored: StoredRoot, tmp_path: Path) -> None:
    remote_objects._cache.cache_clear()
    _, indexes, manifest = keys_of(stored, 1)
    del stored.place.bucket.objects[indexes]
    del stored.place.bucket.objects[keys_of(stored, 2)[2]]
    assert {each.what for each in verify(stored.opened()).findings} == {"missing-object", "damaged-index"}
    report = run(stored)
    assert report.error is None
    assert report.files_written >= 5
    forget_images()
    assert [each for each in verify(stored.opened()).findings if each.severity.value != "info"] == []
    assert manifest not in [key for at in range(len(segments(stored))) for key in keys_of(stored, at)]
    stored.check(tmp_path)


def test_force_rebuilds_by_present_settings(stored: StoredRoot) -> None:
    before = index_bytes(stored, 0, IndexKind.OFFSET)
    root = stored.opened()
    root.alter_topic("orders", add={"index.interval.bytes": "100"})
    assert run(stored).files_written == 0
    assert run(stored, force=True).files_written > 0
    assert len(index_bytes(stored, 0, IndexKind.OFFSET)) > len(before)


def test_damaged_log_is_an_error_and_other_segments_are_reindexed(stored: StoredRoot) -> None:
    before = segments(stored)
    log = keys_of(stored, 0)[0]
    body = bytearray(stored.place.bucket.body(log))
    body[-1] ^= 1
    stored.place.bucket.write(log, bytes(body))
    damage(stored, 0, IndexKind.OFFSET)
    damage(stored, 1, IndexKind.OFFSET)
    report = run(stored)
    assert report.error is not None
    assert log in report.error
    assert "a damaged or torn batch" in report.error
    assert report.files_written == 1
    assert segments(stored)[0] == before[0]
    assert segments(stored)[1] != before[1]


@pytest.mark.parametrize("fault", [Fault.FAILS_BEFORE, Fault.FAILS_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.slow
def test_reindexing_stopped_at_any_request_loses_nothing(tmp_path: Path, fault: Fault) -> None:
    call, is_done = 0, False
    while not is_done:
        stored = StoredRoot({**SMALL, "internal.segment.bytes": "100000"})
        write_and_merge(stored, tmp_path / f"{fault}-{call}")
        damage(stored, 0, IndexKind.OFFSET)
        forget_images()
        client = stored.place.client()
        root = stored.opened(client)
        first = len(client.calls)
        client.faults = {first + call: fault}
        try:
            report = reindex_log(root, A, now_ms=T0)
            is_done = len(client.calls) <= first + call and report.error is None
        except (Killed, KafkalogError):
            pass
        stored.metadata.refresh()
        stored.check(tmp_path)
        assert run(stored).error is None
        assert run(stored, dry_run=True).files_written == 0
        stored.check(tmp_path)
        call += 1
    assert call > 8
