"""The log cleaner on object roots: the same segments as on file roots, and nothing lost in a race or by a kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import adopt_log_dir, create_log_dir, open_log_dir
from builders.engine_fixtures import manifest
from builders.object_roots import imported
from builders.root_places import client_address, forget, memory_root, store_of
from fakes.faulty_store import Call, Fault, FaultyStore
from fakes.stopping_filesystem import Killed
from fakes.thread_tasks import ThreadTasks
from repository import FIXTURES
from tiers import rest_full

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.export.export import export_to
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.metrics import collect_metrics
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root, orphans
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    segment_file,
)
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import OwnLayout, segment_keys
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition

NOW_MS = 1_795_400_000_000
DAY_MS = 86_400_000
ORDERS = TopicPartition("orders", 0)
CONFIGS = {"cleanup.policy": "compact", "internal.segment.bytes": "1500", "index.interval.bytes": "200"}
Row = tuple[int, bytes, bytes | None]


def object_root(log_dir: LogDir) -> ObjectRoot:
    native = log_dir.root.native()
    assert isinstance(native, ObjectRoot)
    return native


def append(log_dir: LogDir, keys: list[str], values: list[str | None], at_ms: int = NOW_MS - 1000) -> None:
    stamps = pa.array([at_ms * 1000] * len(keys), pa.timestamp("us", "UTC"))
    log_dir.append("orders", pa.table({"key": keys, "value": pa.array(values, pa.string()), "timestamp": stamps}))


def some_writes(log_dir: LogDir, count: int, mark: str = "") -> None:
    for number in range(count):
        keys = [str(number % 10), str(number * 7 % 10)] * 4
        append(log_dir, keys, [f"{mark}{number}-{at}" + "." * 20 for at in range(8)])


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    """A log of some ten merged segments, of which four fit a new one, and of runs after them."""
    log_dir = create_log_dir(memory_root(), clock=lambda: NOW_MS)
    log_dir.create_topic("orders", partitions=1, configs=CONFIGS)
    some_writes(log_dir, 20)
    merge_segments(log_dir.root)
    some_writes(log_dir, 20, "new-")
    log_dir.alter_topic("orders", add={"internal.segment.bytes": "6000"})
    return log_dir


def anew(log_dir: LogDir) -> LogDir:
    """The same root in a process of its own."""
    return open_log_dir(str(log_dir.path), clock=lambda: NOW_MS)


def records(log_dir: LogDir, topic: str = "orders", *, isolation: str = "read_uncommitted") -> list[Row]:
    log_dir.refresh()
    table = log_dir.read(topic, columns=["offset", "key", "value"], isolation=isolation)
    rows = zip(table["offset"].to_pylist(), table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    found = [(offset, key, value) for offset, key, value in rows]
    assert [each[0] for each in found] == sorted({each[0] for each in found})
    return found


def latest(found: list[Row]) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, key, value in found}


def segments_of(log_dir: LogDir, topic: str = "orders") -> tuple[SegmentObject, ...]:
    return object_root(log_dir).store.refresh().partition(topic, 0).segments


def fine(report: PartitionReport) -> PartitionReport:
    assert (report.error, report.skipped) == (None, None)
    return report


def check_sound(log_dir: LogDir) -> None:
    found = verify(anew(log_dir).root, are_records_checked=True).findings
    assert [each for each in found if each.severity.value != "info"] == []


# Equal to file roots, which equal Kafka.


@pytest.mark.parametrize("topic", ["compacted-plain", "compacted-batched", "compacted-idempotent", "compacted-txn"])
@pytest.mark.parametrize("fixture", ["compacted-1-dirty", "compacted-3-dirty"])
def test_cleaned_segments_equal_those_of_file_root(tmp_path: Path, fixture: str, topic: str) -> None:
    shutil.copytree(FIXTURES / fixture, tmp_path / "root", ignore=shutil.ignore_patterns("expected"))
    files = adopt_log_dir(tmp_path / "root", clock=lambda: NOW_MS)
    files.alter_topic(topic, add=manifest(fixture)["topics"][topic]["configs"])
    log_dir = imported(files, topic, clock=lambda: NOW_MS)
    of_files = fine(clean_partition(files.root, topic, 0, now_ms=NOW_MS))
    of_objects = fine(clean_partition(log_dir.root, topic, 0, now_ms=NOW_MS))
    counters = ("first_dirty_offset", "first_uncleanable_offset", "records_kept", "records_read", "dirty_percent")
    for name in counters:
        assert getattr(of_objects, name) == getattr(of_files, name), name
    directory = tmp_path / "root" / f"{topic}-0"
    root = object_root(log_dir)
    of = TopicIdPartition(topic, root.store.image.topic(topic).topic_id, 0)
    segments = [each for each in segments_of(log_dir, topic) if each.is_cleaned]
    bases = [each for each in list_base_offsets(directory) if each < (of_files.first_uncleanable_offset or 0)]
    assert [each.base_offset for each in segments] == bases
    assert segments[-1].end_offset == of_files.first_uncleanable_offset
    for each in segments:
        stored = RemoteExtent(root.objects, of, each, OwnLayout.AIVEN)
        log = store_of(str(log_dir.path)).bucket.body(segment_keys(of, each.base_offset, each.segment_id)[0])
        assert log == segment_file(directory, each.base_offset, LOG_SUFFIX).read_bytes()
        assert (
            stored.index_bytes(IndexKind.OFFSET) == segment_file(directory, each.base_offset, INDEX_SUFFIX).read_bytes()
        )
        time_index = segment_file(directory, each.base_offset, TIME_INDEX_SUFFIX)
        assert stored.index_bytes(IndexKind.TIMESTAMP) == time_index.read_bytes()
        txn_index = segment_file(directory, each.base_offset, TXN_INDEX_SUFFIX)
        assert stored.index_bytes(IndexKind.TRANSACTION) == (txn_index.read_bytes() if txn_index.exists() else b"")
    for isolation in ("read_uncommitted", "read_committed"):
        assert records(log_dir, topic, isolation=isolation) == records(files, topic, isolation=isolation)
    check_sound(log_dir)


# What the cleaner takes and leaves.


def test_cleaning_merges_runs_only_if_that_closes_a_segment(log_dir: LogDir) -> None:
    fine(clean_partition(log_dir.root, "orders", 0))
    partition = object_root(log_dir).store.refresh().partition("orders", 0)
    assert len(partition.runs) == 0
    some_writes(log_dir, 2, "few-")
    store = store_of(str(log_dir.path))
    before = store.requests["put"]
    assert clean_partition(log_dir.root, "orders", 0, force=True).skipped == "nothing to clean"
    assert len(object_root(log_dir).store.refresh().partition("orders", 0).runs) == 2
    assert store.requests["put"] == before


def test_segment_that_lasts_longer_than_segment_ms_is_closed(log_dir: LogDir) -> None:
    log_dir.alter_topic("orders", add={"internal.segment.bytes": "100000", "segment.ms": "1000"})
    merge_segments(log_dir.root)
    for number in range(3):
        append(log_dir, ["late"] * 4, [str(number)] * 4, NOW_MS + 5000 * number)
    fine(clean_partition(log_dir.root, "orders", 0, force=True, now_ms=NOW_MS + 20_000))
    assert sum(key == b"late" for _, key, _ in records(log_dir)) < 12


def test_segments_keep_offsets_without_records(log_dir: LogDir, tmp_path: Path) -> None:
    for _ in range(10):
        append(log_dir, [str(each) for each in range(10)], ["last" + "." * 90] * 10)
    before = records(log_dir)
    fine(clean_partition(log_dir.root, "orders", 0))
    segments = segments_of(log_dir)
    assert segments[0].base_offset == 0
    assert all(one.end_offset == other.base_offset for one, other in pairwise(segments))
    after = records(log_dir)
    assert latest(after) == latest(before)
    assert after[0][0] > segments[0].base_offset
    partition = log_dir.topic("orders").partitions[0]
    assert (partition.log_start_offset, partition.high_watermark) == (0, before[-1][0] + 1)
    check_sound(log_dir)
    export_to(log_dir.root, tmp_path / "copy")
    copy = LogDir.open(tmp_path / "copy")
    assert records(copy) == after
    assert copy.topic("orders").partitions[0].high_watermark == partition.high_watermark


def test_cleaned_segment_is_not_merged_with_new_runs(log_dir: LogDir) -> None:
    fine(clean_partition(log_dir.root, "orders", 0))
    cleaned = [each for each in segments_of(log_dir) if each.is_cleaned]
    assert cleaned
    assert sum(each.size_bytes for each in cleaned) < 3000
    some_writes(log_dir, 20, "more-")
    merge_segments(log_dir.root)
    assert [each for each in segments_of(log_dir) if each.is_cleaned] == cleaned


def test_mark_of_cleaned_segments_survives_snapshot(log_dir: LogDir) -> None:
    fine(clean_partition(log_dir.root, "orders", 0))
    root = object_root(log_dir)
    before = [each.is_cleaned for each in segments_of(log_dir)]
    assert before == [True] * (len(before) - 1) + [False]
    next_offset = root.store.image.next_offset
    restored = ImageDelta(MetadataImage(), commit_offset=next_offset, timestamp_ms=NOW_MS, is_snapshot=True)
    restored.replay(list(image_records(root.store.image)))
    image = restored.build(root.store.image.next_offset)
    assert [each.is_cleaned for each in image.partition("orders", 0).segments] == before


@pytest.mark.parametrize(("delay_ms", "is_deleted"), [(1000, [False, True, True]), (7_200_000, [False, False, True])])
def test_replaced_objects_remain_for_the_delay_of_their_topic(
    log_dir: LogDir, delay_ms: int, is_deleted: list[bool]
) -> None:
    log_dir.alter_topic("orders", add={"file.delete.delay.ms": str(delay_ms)})
    fine(clean_partition(log_dir.root, "orders", 0))
    root = object_root(log_dir)
    times = (NOW_MS + 999, NOW_MS + 3_600_000, NOW_MS + 7_200_000)
    counts = [clean_up_root(root, now_ms=each).dropped_count for each in times]
    assert [sum(counts[: at + 1]) > 0 for at in range(3)] == is_deleted


def test_replaced_objects_are_deleted_after_their_delay(log_dir: LogDir) -> None:
    fine(clean_partition(log_dir.root, "orders", 0))
    after = records(log_dir)
    root = object_root(log_dir)
    bucket = store_of(str(log_dir.path)).bucket
    assert clean_up_root(root, now_ms=NOW_MS + 1).dropped_count == 0
    assert clean_up_root(root, now_ms=NOW_MS + DAY_MS).dropped_count > 10
    assert len([key for key in bucket.keys("") if key.endswith(".log") and key.startswith("orders-")]) == len(
        segments_of(log_dir)
    )
    assert records(log_dir) == after


def test_tombstone_and_its_segment_go_in_a_later_pass(log_dir: LogDir) -> None:
    log_dir.alter_topic("orders", add={"delete.retention.ms": "5000", "min.cleanable.dirty.ratio": "0"})
    append(log_dir, ["0"], [None])
    for number in range(8):
        append(log_dir, [str(at) for at in range(1, 10)], [f"{number}" + "." * 90] * 9)
    fine(clean_partition(log_dir.root, "orders", 0, now_ms=NOW_MS))
    assert latest(records(log_dir))[b"0"][1] is None
    for number in range(8):
        append(log_dir, [str(at) for at in range(1, 10)], [f"more-{number}" + "." * 90] * 9)
    fine(clean_partition(log_dir.root, "orders", 0, now_ms=NOW_MS + 5000))
    assert b"0" not in latest(records(log_dir))


# Races and kills.


def while_cleaning(
    log_dir: LogDir,
    act: Callable[[], object],
    *,
    at_put: int = 0,
    at: tuple[str, str] = ("put", ".rsm-manifest"),
    is_merged: bool = True,
) -> PartitionReport:
    """Clean as another process, and act before a request: by default before a segment's manifest is put.

    `at`: the kind of request, and how its key ends, of which `at_put` come before. `is_merged`: no runs are left.
    """
    url, bucket = str(log_dir.path), store_of(str(log_dir.path)).bucket
    if is_merged:
        merge_segments(log_dir.root)
    left = at_put + 1

    def before(call: Call) -> None:
        nonlocal left
        if call.kind == at[0] and call.keys[0].endswith(at[1]):
            left -= 1
            if left == 0:
                act()

    root = ObjectRoot(client_address(url, FaultyStore(bucket, before=before)), clock=lambda: NOW_MS)
    report = clean_partition(root, "orders", 0)
    assert left <= 0, "it sent no such request"
    return report


def check_nothing_lost(log_dir: LogDir, before: list[Row]) -> list[Row]:
    after = records(anew(log_dir))
    assert set(after) <= set(before)
    assert latest(after) == latest(before)
    check_sound(log_dir)
    return after


def test_records_written_during_cleaning_stay(log_dir: LogDir) -> None:
    def write_and_merge() -> None:
        some_writes(log_dir, 5, "beside-")
        merge_segments(log_dir.root)

    fine(while_cleaning(log_dir, write_and_merge))
    found = records(anew(log_dir))
    assert sum(b"beside-" in (value or b"") for _, _, value in found) == 40
    check_sound(log_dir)


@pytest.mark.parametrize("at_put", [0, 1])
def test_of_two_cleanings_the_later_one_ends_and_nothing_is_lost(log_dir: LogDir, at_put: int) -> None:
    merge_segments(log_dir.root)
    before = records(log_dir)
    inner: list[PartitionReport] = []
    outer = while_cleaning(log_dir, lambda: inner.append(clean_partition(log_dir.root, "orders", 0)), at_put=at_put)
    assert inner[0].error is None
    assert outer.error is None
    assert at_put or outer.skipped == "another run has the partition"
    check_nothing_lost(log_dir, before)
    assert [each for each in orphans_of(log_dir) if not each.startswith("data/")] == []


def test_cleaning_whose_segments_were_replaced_and_deleted_leaves_the_log_to_the_other(log_dir: LogDir) -> None:
    before = records(log_dir)

    def clean_and_delete() -> None:
        assert clean_partition(log_dir.root, "orders", 0).error is None
        assert clean_up_root(object_root(log_dir), now_ms=NOW_MS + DAY_MS).dropped_count > 0

    outer = while_cleaning(log_dir, clean_and_delete, at=("get_range", ".log"))
    assert (outer.error, outer.skipped) == (None, "another run has the partition")
    check_nothing_lost(log_dir, before)


def test_object_that_is_lost_during_cleaning_is_an_error(log_dir: LogDir) -> None:
    bucket = store_of(str(log_dir.path)).bucket

    def lose() -> None:
        [first] = {key for key in bucket.objects if f"{segments_of(log_dir)[0].segment_id}.log" in key}
        del bucket.objects[first]

    report = while_cleaning(log_dir, lose, at=("get_range", ".log"))
    assert "no such object" in (report.error or "")


def test_runs_that_come_while_cleaning_merges_wait_for_the_next_cleaning(log_dir: LogDir) -> None:
    last = [*records(log_dir)][-1][0]
    report = while_cleaning(log_dir, lambda: some_writes(log_dir, 20, "beside-"), is_merged=False)
    fine(report)
    found = records(anew(log_dir))
    assert [offset for offset, _, _ in found if offset > last] == list(range(last + 1, last + 161))
    fine(clean_partition(log_dir.root, "orders", 0, force=True))
    check_nothing_lost(log_dir, found)


def orphans_of(log_dir: LogDir) -> list[str]:
    """Objects that nothing names, once they have expired."""
    root = object_root(log_dir)
    for days in (1, 3, 5):
        clean_up_root(root, now_ms=NOW_MS + days * DAY_MS)
    return [each.key for each in orphans(root.store.refresh(), root.objects, now_ms=0)]


def test_retention_during_cleaning_ends_it_without_loss(log_dir: LogDir) -> None:
    merge_segments(log_dir.root)
    before = records(log_dir)
    log_dir.alter_topic("orders", add={"cleanup.policy": "compact,delete"})
    start = segments_of(log_dir)[1].base_offset
    report = while_cleaning(log_dir, lambda: delete_records(log_dir.root, {ORDERS: start}))
    assert report.skipped == "another run has the partition"
    assert records(anew(log_dir)) == [each for each in before if each[0] >= start]
    fine(clean_partition(anew(log_dir).root, "orders", 0, force=True))
    check_nothing_lost(log_dir, [each for each in before if each[0] >= start])


def test_topic_made_anew_during_cleaning_is_not_changed(log_dir: LogDir) -> None:
    def make_anew() -> None:
        log_dir.delete_topic("orders")
        log_dir.create_topic("orders", partitions=1, configs=CONFIGS)
        append(log_dir, ["a"], ["b"])

    assert while_cleaning(log_dir, make_anew).skipped == "another run has the partition"
    assert records(anew(log_dir)) == [(0, b"a", b"b")]


def test_reader_of_old_image_goes_on_in_cleaned_segments(log_dir: LogDir) -> None:
    merge_segments(log_dir.root)
    reader = anew(log_dir)
    before = records(reader)
    fine(clean_partition(log_dir.root, "orders", 0))
    clean_up_root(object_root(log_dir), now_ms=NOW_MS + DAY_MS)
    table = reader.read("orders", columns=["offset", "key", "value"])
    found = list(zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True))
    assert found == records(log_dir)
    assert latest(found) == latest(before)


_FAULTS = [Fault.FAILS_BEFORE, Fault.FAILS_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_IN_FLIGHT]


@pytest.mark.slow
@pytest.mark.parametrize("fault", rest_full(_FAULTS))
@pytest.mark.slow
def test_cleaning_stopped_at_any_request_loses_nothing(fault: Fault) -> None:
    """In order: each request of a cleaning that merges first."""
    call, is_done = 0, False
    while not is_done:
        url = memory_root()
        log_dir = create_log_dir(url, clock=lambda: NOW_MS)
        log_dir.create_topic("orders", partitions=1, configs={**CONFIGS, "internal.segment.bytes": "700"})
        some_writes(log_dir, 6)
        before = records(log_dir)
        bucket = store_of(url).bucket
        client = FaultyStore(bucket)
        root = ObjectRoot(client_address(url, client), clock=lambda: NOW_MS)
        first = len(client.calls)
        client.faults = {first + call: fault}
        try:
            clean_partition(root, "orders", 0)
            is_done = len(client.calls) <= first + call
        except (Killed, KafkalogError):
            pass
        bucket.land()
        check_nothing_lost(log_dir, before)
        report = clean_partition(anew(log_dir).root, "orders", 0)
        assert report.error is None
        after = check_nothing_lost(log_dir, before)
        closed = [row for row in after if row[0] < segments_of(log_dir)[-1].base_offset]
        assert len(closed) == len({key for _, key, _ in closed})
        assert orphans_of(log_dir) == []
        forget(url)
        call += 1
    assert call > 15


# Large partitions, spread over tasks.


def spread(log_dir: LogDir, topic: str, tasks: ThreadTasks, now_ms: int = NOW_MS) -> PartitionReport:
    job_run = JobRun(path=str(log_dir.path), topics=(topic,), now_ms=now_ms)
    job = CleanerJob(spread_bytes=1)
    [report] = job.run(tasks, job_run, job.choose(job_run))
    return report


def shape(log_dir: LogDir, topic: str) -> list[tuple[int, int, int, bool]]:
    return [
        (each.base_offset, each.end_offset, each.size_bytes, each.is_cleaned) for each in segments_of(log_dir, topic)
    ]


@pytest.mark.parametrize("topic", ["compacted-plain", "compacted-txn"])
@pytest.mark.parametrize("fixture", ["compacted-1-dirty", "compacted-3-dirty"])
def test_spread_cleaning_equals_that_of_one_process(tmp_path: Path, fixture: str, topic: str) -> None:
    shutil.copytree(FIXTURES / fixture, tmp_path / "root", ignore=shutil.ignore_patterns("expected"))
    files = adopt_log_dir(tmp_path / "root", clock=lambda: NOW_MS)
    files.alter_topic(topic, add=manifest(fixture)["topics"][topic]["configs"])
    one, several = imported(files, topic, clock=lambda: NOW_MS), imported(files, topic, clock=lambda: NOW_MS)
    in_one = fine(clean_partition(one.root, topic, 0, now_ms=NOW_MS))
    tasks = ThreadTasks(3)
    in_several = fine(spread(several, topic, tasks))
    assert tasks.submitted > 3
    for name in ("records_kept", "records_read", "bytes_kept", "segments_dropped", "first_uncleanable_offset"):
        assert getattr(in_several, name) == getattr(in_one, name), name
    assert shape(several, topic) == shape(one, topic)
    for isolation in ("read_uncommitted", "read_committed"):
        assert records(several, topic, isolation=isolation) == records(one, topic, isolation=isolation)
    check_sound(several)


def test_spread_cleaning_merges_runs_first(log_dir: LogDir) -> None:
    before = records(log_dir)
    tasks = ThreadTasks(3)
    report = fine(spread(log_dir, "orders", tasks))
    assert tasks.submitted > 4
    assert report.records_dropped > 0
    check_nothing_lost(log_dir, before)


@pytest.mark.parametrize("lost", range(1, 5))
@pytest.mark.slow
def test_lost_task_of_spread_cleaning_fails_run_and_next_run_completes_it(log_dir: LogDir, lost: int) -> None:
    before = records(log_dir)
    report = spread(log_dir, "orders", ThreadTasks(3, lose=lambda number: number == lost))
    assert "executor died" in str(report.error)
    check_nothing_lost(log_dir, before)
    assert spread(log_dir, "orders", ThreadTasks(3)).error is None
    after = check_nothing_lost(log_dir, before)
    closed = [row for row in after if row[0] < segments_of(log_dir)[-1].base_offset]
    assert len(closed) == len({key for _, key, _ in closed})


# What runs leave for the metrics.


def test_runs_leave_totals_and_marks_for_the_metrics(log_dir: LogDir) -> None:
    def collected() -> dict[str, float]:
        log_dir.refresh()
        found = collect_metrics(log_dir.root, now_ms=NOW_MS)
        return {each.name: next(iter(each.values.values())) for each in found if each.bean_type.startswith("LogClean")}

    assert collected() == {"uncleanable-partitions-count": 0, "uncleanable-bytes": 0}
    merge_segments(log_dir.root)
    bucket = store_of(str(log_dir.path)).bucket
    [lost] = [key for key in bucket.objects if f"{segments_of(log_dir)[0].segment_id}.log" in key]
    kept = bucket.objects.pop(lost)
    assert spread(log_dir, "orders", ThreadTasks(3)).error is not None
    found = collected()
    assert found["uncleanable-partitions-count"] == 1
    assert "time-since-last-run-ms" in found
    assert found["uncleanable-bytes"] == sum(each.size_bytes for each in segments_of(log_dir)[:-1])
    bucket.objects[lost] = kept
    fine(spread(log_dir, "orders", ThreadTasks(3)))
    found = collected()
    assert (found["uncleanable-partitions-count"], found["max-dirty-percent"]) == (0, 100)
    assert 0 < found["cleaner-recopy-percent"] < 100
    check_sound(log_dir)


# Internal topics.


def test_committed_offsets_of_groups_are_compacted_and_stay() -> None:
    """The consumer offsets are a compacted topic of this root as any other."""
    url = memory_root()
    log_dir = create_log_dir(url, clock=lambda: NOW_MS)
    log_dir.create_topic("orders", partitions=1)
    append(log_dir, ["a"] * 60, ["b"] * 60)
    group = log_dir.group("billing")
    for offset in range(60):
        group.commit({("orders", 0): offset})
    name = "__consumer_offsets"
    [number] = [each.partition for each in log_dir.topic(name).partitions if each.high_watermark]
    log_dir.alter_topic(name, add={"internal.segment.bytes": "1000", "min.cleanable.dirty.ratio": "0"})
    report = fine(clean_partition(log_dir.root, name, number))
    assert report.records_dropped > 40
    fresh = open_log_dir(url, clock=lambda: NOW_MS)
    assert fresh.group("billing").fetch()[ORDERS].offset == 59
    forget(url)
