"""Retention and delete-records in an object store: runs and segments go by Kafka's rules, objects after a delay."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from builders.data_objects import T0, Plan
from builders.object_roots import StoredRoot
from fakes.faulty_store import Fault
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.extents import data_object_record
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def stored_with_runs(scratch: Path, count: int = 5, **configs: str) -> StoredRoot:
    """`count` runs of one record each in both partitions, an hour apart, ending now."""
    stored = StoredRoot({name.replace("_", "."): value for name, value in configs.items()})
    stored.place.clock.now_ms = T0 + (count - 1) * HOUR_MS
    for number in range(count):
        stored.write(scratch, *(Plan(each, [[T0 + number * HOUR_MS]], 100) for each in (A, B)))
    return stored


def starts(image: MetadataImage) -> list[int]:
    return [each.state.log_start_offset for each in image.topics["orders"].partitions]


def of(reports: Collection[PartitionReport], topic_partition: TopicPartition) -> PartitionReport:
    return next(each for each in reports if each.topic_partition == topic_partition)


def data_keys(stored: StoredRoot) -> list[str]:
    return [each for each in stored.place.bucket.keys("") if "/" in each and not each.startswith(METADATA_DIR)]


def test_runs_older_than_retention_ms_are_dropped_and_younger_ones_stay(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms=str(2 * HOUR_MS))
    root = stored.opened()
    reports = apply_retention(root)
    assert starts(stored.image) == [2, 2]
    report = of(reports, A)
    assert (report.segments_dropped, report.log_start_offset, report.error) == (2, 2, None)
    assert report.bytes_kept == 3 * report.bytes_dropped // 2
    assert len(stored.image.partition("orders", 0).runs) == 3


def test_runs_above_retention_bytes_are_dropped_oldest_first(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms="-1")
    size = int(stored.image.partition("orders", 0).runs.table["size_bytes"][0])
    root = stored.opened()
    root.alter_topic("orders", add={"retention.bytes": str(2 * size)})
    apply_retention(root)
    assert starts(stored.image) == [3, 3]


def test_whole_log_goes_if_all_of_it_is_due_and_takes_new_records_after(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms="1000")
    root = stored.opened()
    stored.place.clock.now_ms += DAY_MS
    apply_retention(root)
    assert starts(stored.image) == [5, 5]
    assert len(stored.image.objects) == 0
    stored.write(tmp_path, Plan(A, [[stored.place.clock()]]))
    assert stored.image.partition("orders", 0).state.log_end_offset == 6


def test_segments_and_runs_are_dropped_by_the_same_rules(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms=str(2 * HOUR_MS), internal_segment_bytes="300")
    merged = merge_partition(stored.metadata, stored.objects, stored.config, A, clock=stored.place.clock)
    assert merged is not None
    assert len(merged.segments) > 2
    apply_retention(stored.opened())
    kept = [each for each in merged.segments if each.max_timestamp_ms >= T0 + 2 * HOUR_MS]
    partition = stored.image.partition("orders", 0)
    assert list(partition.segments) == kept
    assert partition.state.log_start_offset == kept[0].base_offset


def test_dry_run_reports_the_same_and_changes_nothing(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms=str(2 * HOUR_MS))
    root = stored.opened()
    version, before = root.version, dict(stored.place.bucket.objects)
    planned = apply_retention(root, dry_run=True)
    assert (root.version, stored.place.bucket.objects) == (version, before)
    done = apply_retention(root)
    for one, other in zip(planned, done, strict=True):
        assert (one.bytes_dropped, one.segments_dropped, one.log_start_offset) == (
            other.bytes_dropped,
            other.segments_dropped,
            other.log_start_offset,
        )


@pytest.mark.parametrize("inline_bytes", [0, 100_000])
def test_records_without_timestamps_are_as_old_as_their_object_or_commit(tmp_path: Path, inline_bytes: int) -> None:
    stored = StoredRoot({"retention.ms": str(HOUR_MS)})
    stored.place.clock.now_ms = T0
    stored.write(tmp_path, Plan(A, [[-1]]), inline_bytes=inline_bytes)
    stored.place.clock.now_ms = T0 + HOUR_MS
    apply_retention(stored.opened())
    assert starts(stored.image) == [0, 0]
    stored.place.clock.now_ms = T0 + HOUR_MS + 1
    apply_retention(stored.opened())
    assert starts(stored.image) == [1, 0]


def test_write_while_retention_commits_is_kept(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms="1000")
    stored.place.clock.now_ms += DAY_MS
    raced = []

    def write_first(call: Any) -> None:
        if not raced and call.kind == "create" and call.keys[0].startswith(METADATA_DIR):
            raced.append(call)
            stored.write(tmp_path, Plan(A, [[stored.place.clock()]]))

    root = stored.opened(stored.place.client(before=write_first))
    apply_retention(root)
    assert raced
    partition = stored.image.partition("orders", 0)
    assert (partition.state.log_start_offset, partition.state.log_end_offset, len(partition.runs)) == (5, 6, 1)


def test_topic_created_anew_under_the_name_meanwhile_keeps_its_records(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms="1000")
    stored.place.clock.now_ms += DAY_MS
    other = stored.opened()
    raced = []

    def replace_first(call: Any) -> None:
        if not raced and call.kind == "create" and call.keys[0].startswith(METADATA_DIR):
            raced.append(call)
            other.delete_topic("orders")
            other.create_topic("orders", 2)

    reports = apply_retention(stored.opened(stored.place.client(before=replace_first)))
    assert "re-created" in (of(reports, A).error or "")
    assert starts(stored.image) == [0, 0]


def test_delete_records_moves_log_start_into_a_run_and_drops_whole_ones(tmp_path: Path) -> None:
    stored = StoredRoot()
    for _ in range(2):
        stored.write(tmp_path, Plan(A, [[T0, T0, T0]]), Plan(B, [[T0]]))
    root = stored.opened()
    (preview,) = delete_records(root, {A: 4}, dry_run=True)
    assert preview.log_start_offset == 4
    assert starts(stored.image) == [0, 0]
    reports = delete_records(root, {A: 4, B: -1, TopicPartition("nix", 0): 1})
    assert [each.error is None for each in reports] == [False, True, True]
    assert starts(stored.image) == [4, 2]
    assert len(stored.image.partition("orders", 0).runs) == 1
    assert delete_records(root, {A: 7})[0].error is not None


def test_objects_go_one_hour_after_their_drop_unless_the_delay_is_set(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms=str(2 * HOUR_MS))
    root = stored.opened()
    before = data_keys(stored)
    apply_retention(root)
    stored.place.clock.now_ms += HOUR_MS - 1
    apply_retention(root, topics=[])
    assert data_keys(stored) == before
    stored.place.clock.now_ms += 1
    apply_retention(root, topics=[])
    assert data_keys(stored) == sorted(each.key for each in stored.image.objects)
    assert stored.image.dropped == ()
    delete_records(root, {A: -1})
    root.alter_broker_configs(add={"log.segment.delete.delay.ms": "5000"})
    assert clean_up_root(root).dropped_count == 0
    stored.place.clock.now_ms += 5000
    delete_records(root, {B: -1})
    assert len(stored.image.dropped) == 1
    assert clean_up_root(root).dropped_count == 0
    stored.place.clock.now_ms += 5000
    assert clean_up_root(root).dropped_count == 3


def test_offsets_of_groups_expire(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, 1)
    root = stored.opened()
    Group(root, "g").commit({A: 1})
    assert Group(root, "g").exists()
    stored.place.clock.now_ms += 8 * DAY_MS
    reports = apply_retention(root)
    assert sum(each.offsets_expired or 0 for each in reports) == 1
    root.refresh()
    assert not Group(root, "g").exists()


@pytest.mark.parametrize(
    "fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_IN_FLIGHT, Fault.LANDS_LATE, Fault.FAILS_AFTER]
)
@pytest.mark.slow
def test_run_stopped_at_any_request_is_finished_by_next_one(tmp_path: Path, fault: Fault) -> None:
    call = 0
    while True:
        scratch = tmp_path / str(call)
        stored = stored_with_runs(scratch, 3, retention_ms=str(HOUR_MS))
        stored.upload(scratch, Plan(A, [[T0]]))
        apply_retention(stored.opened())  # sets the staging horizon for the first time
        stored.place.clock.now_ms += 8 * DAY_MS
        newest = T0 + 8 * DAY_MS + 2 * HOUR_MS
        stored.write(scratch, Plan(A, [[newest]]))
        client = stored.place.client()
        root = stored.opened(client)
        root.store._sleep = stored.place.clock.sleep
        first = len(client.calls)
        client.faults = {first + call: fault}
        is_done = False
        try:
            apply_retention(root)
            is_done = len(client.calls) <= first + call
        except (Killed, KafkalogError):
            pass
        stored.place.bucket.land()
        image = stored.image
        assert image.partition("orders", 0).state.log_end_offset == 4
        assert {each.key for each in image.objects} <= set(data_keys(stored))
        if is_done:
            break
        apply_retention(stored.opened())
        assert starts(stored.image) == [3, 3]
        check_only_named_objects_are_left(stored)
        call += 1
    assert call >= 5


def check_only_named_objects_are_left(stored: StoredRoot) -> None:
    for _ in range(3):
        stored.place.clock.now_ms += DAY_MS
        clean_up_root(stored.opened())
        stored.place.bucket.land()
    assert data_keys(stored) == sorted(each.key for each in stored.image.objects)
    assert stored.image.dropped == ()


def test_two_clean_ups_at_once_delete_the_same_and_nothing_else(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, retention_ms=str(2 * HOUR_MS))
    apply_retention(stored.opened())
    stored.upload(tmp_path, Plan(A, [[T0]]))
    clean_up_root(stored.opened())
    stored.place.clock.now_ms += 2 * DAY_MS
    other = stored.opened()
    number = 0
    while True:
        done = []

        def second(call: Any, done: list[Any] = done, number: int = number) -> None:
            if call.number == number:
                done.append(call)
                clean_up_root(other)

        clean_up_root(stored.opened(stored.place.client(before=second)))
        check_only_named_objects_are_left(stored)
        if not done:
            break
        number += 1
    assert number >= 4


def test_zombie_below_the_horizon_may_not_commit_and_late_put_is_deleted(tmp_path: Path) -> None:
    stored = stored_with_runs(tmp_path, 1)
    zombie = stored.upload(tmp_path, Plan(A, [[T0]]))
    body = stored.place.bucket.body(zombie[0].key)
    for _ in range(3):
        clean_up_root(stored.opened())
        stored.place.clock.now_ms += 2 * DAY_MS
    assert zombie[0].key not in stored.place.bucket
    stored.place.bucket.write(zombie[0].key, body)  # the put lands now
    with pytest.raises(InvalidRecordError, match="has expired"):
        stored.metadata.commit(lambda image: list(map(data_object_record, zombie)), operation="write")
    clean_up_root(stored.opened())
    assert zombie[0].key not in stored.place.bucket


def test_command_retains_an_object_root_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark_kafkalog.maintenance.jobs import runner
    from pyspark_kafkalog.tools.main import main

    stored = stored_with_runs(tmp_path, retention_ms=str(2 * HOUR_MS))

    def open_stored(path: object, **_: object) -> Root:
        assert path == "s3://bucket/log"
        return stored.opened()

    monkeypatch.setattr(runner, "open_root", open_stored)
    arguments = [
        "retention",
        "--local",
        "--path",
        "s3://bucket/log",
        "--now",
        str(stored.place.clock()),
        "--output",
        "json",
    ]
    assert main([*arguments, "--dry-run"]) == 0
    assert '"segmentsDropped": 2' in capsys.readouterr().out
    assert starts(stored.image) == [0, 0]
    assert main(arguments) == 0
    assert starts(stored.image) == [2, 2]
