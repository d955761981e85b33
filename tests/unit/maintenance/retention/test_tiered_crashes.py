"""Retention of a tiered log, killed anywhere and beside other changes, loses nothing and leaves nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.controlled import open_log_dir
from builders.metadata_roots import forget_images
from builders.root_places import memory_root, open_as, store_of
from builders.tiered_roots import DAY_MS, HOUR_MS, ORDERS, TOPIC, Tiered, tiered_root
from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket, VirtualClock
from fakes.full_disks import CountingDisk
from fakes.stopping_filesystem import Killed, StoppingFileSystem

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.retention import delete
from pyspark_kafkalog.maintenance.retention.delete import apply_retention, finish
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.root.commit.log_starts import move_log_starts
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import DELETED_SUFFIX
from pyspark_kafkalog.tiered.own_segments import OwnLayout, segment_keys


@dataclass(frozen=True)
class World:
    """A root and its bucket, of which each test takes copies."""

    path: Path
    url: str
    bucket: MemoryBucket

    def copy(self, path: Path) -> World:
        shutil.copytree(self.path, path)
        bucket = MemoryBucket(clock=VirtualClock(self.bucket.clock.now_ms()))
        bucket.objects.update(self.bucket.objects)
        return World(path, self.url, bucket)

    def open(self, *, fs: FileSystem = LOCAL, faults: Any = None) -> Tiered:
        """As a process of its own."""
        forget_images()
        client = FaultyStore(self.bucket, faults=faults)
        open_as(self.url, client)
        return Tiered(open_log_dir(self.path, clock=self.bucket.clock.now_ms, fs=fs), self.bucket.clock, client)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A log of 16 commits, of which 14 are tiered, and work of all kinds for the next retention run.

    The oldest remote segments are due, and later ones locally; files and objects of the last run are to be deleted, as
    are the leftovers of a copy that was killed.
    """
    path = tmp_path_factory.mktemp("world")
    url = memory_root()
    bucket = store_of(url).bucket
    log_dir = tiered_root(path / "log", url, clock=bucket.clock.now_ms, file_delete_delay_ms="60000")
    made = Tiered(log_dir, bucket.clock, store_of(url))
    made.append(14)
    made.tier()
    made.append(2)
    left = segment_keys(made.id_partition, 300, new_segment_id(log_dir.version), OwnLayout.AIVEN)
    made.alter(local_retention_ms=str(15 * HOUR_MS), retention_ms=str(15 * HOUR_MS + HOUR_MS // 2))
    made.retain()
    bucket.clock.advance(2 * DAY_MS)
    made.alter(local_retention_ms=str(DAY_MS), retention_ms=str(7 * DAY_MS))
    for key in left:
        made.objects.put(key, b"x")
    made.alter(local_retention_bytes="6000", local_retention_ms="-2", retention_ms=str(2 * DAY_MS + 12 * HOUR_MS))
    return World(path / "log", url, bucket)


@pytest.fixture(scope="module")
def expected(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[int, int], list[int], list[int]]:
    """The starts, and the segments after a run that nothing stopped."""
    tiered = world.copy(tmp_path_factory.mktemp("expected") / "log").open()
    before = tiered.starts
    assert any(each.name.endswith(DELETED_SUFFIX) for each in tiered.directory.iterdir())
    tiered.retain()
    settle(tiered)
    assert before[0] < tiered.starts[0] < tiered.starts[1]
    assert tiered.remote_bases[0] < tiered.local_bases[0]
    return tiered.starts, tiered.remote_bases, tiered.local_bases


def settle(tiered: Tiered) -> None:
    """Further runs, when everything that was to be deleted may be."""
    tiered.alter(retention_ms=str(30 * DAY_MS))
    for _ in range(3):
        tiered.clock.advance(DAY_MS + 1)
        tiered.retain()


def check(tiered: Tiered, expected: tuple[tuple[int, int], list[int], list[int]]) -> None:
    """The log is the same, and nothing else is left."""
    assert (tiered.starts, tiered.remote_bases, tiered.local_bases) == expected
    assert tiered.keys == tiered.named_keys
    assert not [each.name for each in tiered.directory.iterdir() if each.name.endswith(DELETED_SUFFIX)]
    assert list(tiered.offsets()) == list(range(tiered.starts[0], 320))


def stop_and_finish(
    world: World, at: Path, expected: Any, *, fs: FileSystem = LOCAL, faults: Any = None
) -> tuple[Tiered, bool]:
    """A run that is stopped, what is readable then, and the runs after it; whether it was stopped."""
    copy = world.copy(at)
    tiered = copy.open(fs=fs, faults=faults)
    is_killed = False
    try:
        apply_retention(tiered.log_dir.root)
    except (Killed, KafkalogError, OSError):
        is_killed = True
    copy.bucket.land()
    after = copy.open()
    assert list(after.offsets()) == list(range(after.starts[0], 320))
    after.retain()
    settle(after)
    check(after, expected)
    shutil.rmtree(at)
    return tiered, is_killed


@pytest.mark.slow
def test_run_killed_at_any_change_of_the_file_system_is_finished_by_later_ones(
    world: World, expected: Any, tmp_path: Path
) -> None:
    stops_at = 0
    while True:
        fs = StoppingFileSystem(stops_at, torn=True)
        stop_and_finish(world, tmp_path / str(stops_at), expected, fs=fs)
        if not fs.has_stopped:
            break
        stops_at += 1
    assert stops_at > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_IN_FLIGHT, Fault.LANDS_LATE, Fault.UNAVAILABLE]
)
def test_run_stopped_at_any_request_is_finished_by_later_ones(
    world: World, expected: Any, tmp_path: Path, fault: Fault
) -> None:
    number = 0
    while True:
        tiered, _ = stop_and_finish(world, tmp_path / str(number), expected, faults={number: fault})
        assert isinstance(tiered.objects, FaultyStore)
        if len(tiered.objects.calls) <= number:
            break
        number += 1
    assert number >= 3


@pytest.mark.parametrize("lacks", ["blocks", "inodes"])
def test_full_disk_is_freed_by_local_retention(world: World, expected: Any, tmp_path: Path, lacks: str) -> None:
    copy = world.copy(tmp_path / "log")
    disk = CountingDisk(**{lacks: 0})
    full = copy.open(fs=disk)
    full.retain()
    assert (full.starts, full.remote_bases) == expected[:2]
    full.clock.advance(61_000)
    full.retain()
    assert getattr(disk, lacks) > 0
    settle(copy.open())
    check(copy.open(), expected)


@pytest.mark.parametrize("lacks", ["blocks", "inodes"])
def test_active_segment_is_not_rolled_for_copying_on_full_disk(world: World, tmp_path: Path, lacks: str) -> None:
    copy = world.copy(tmp_path / "log")
    tiered = copy.open()
    tiered.tier()
    tiered.alter(local_retention_bytes="0", retention_ms=str(30 * DAY_MS))
    before = tiered.image.state
    full = copy.open(fs=CountingDisk(**{lacks: 0}))
    full.retain()
    after = full.image.state
    assert (after.active_base_offset, after.local_log_start_offset) == (before.active_base_offset,) * 2
    assert list(full.offsets()) == list(range(after.log_start_offset, 320))
    roomy = copy.open()
    roomy.retain()
    assert roomy.image.state.active_base_offset == 320
    roomy.tier()
    roomy.retain()
    assert roomy.local_bases == [320]
    assert list(roomy.offsets()) == list(range(after.log_start_offset, 320))


def append(tiered: Tiered) -> None:
    tiered.append(1)


def delete_to_middle(tiered: Tiered) -> None:
    delete_records(tiered.log_dir.root, {ORDERS: 250})


def delete_all(tiered: Tiered) -> None:
    delete_records(tiered.log_dir.root, {ORDERS: -1})


def switch_off(tiered: Tiered) -> None:
    tiered.alter(remote_storage_enable="false", remote_log_delete_on_disable="true")


def finish_clean_up(tiered: Tiered) -> None:
    finish(tiered.log_dir.root)


@pytest.mark.parametrize("act", [append, delete_to_middle, delete_all, switch_off, finish_clean_up])
def test_change_between_plan_and_commit_is_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Tiered], None]
) -> None:
    copy = world.copy(tmp_path / "log")
    tiered = copy.open()
    other = open_log_dir(copy.path, clock=copy.bucket.clock.now_ms)
    acting(monkeypatch, lambda: act(Tiered(other, tiered.clock, tiered.objects)))
    tiered.retain()
    state = tiered.image.state
    assert list(tiered.offsets()) == list(range(state.log_start_offset, state.log_end_offset))
    if act is append:
        assert state.log_end_offset == 340
    elif act is not finish_clean_up:
        assert state.log_start_offset >= 250 or act is switch_off
    settle(tiered)
    assert tiered.keys == tiered.named_keys
    state = tiered.image.state
    assert list(tiered.offsets()) == list(range(state.log_start_offset, state.log_end_offset))


def acting(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let retention meet `act` between its plan and its commit, once."""
    waiting = [act]

    def move(*arguments: Any, **named: Any) -> Any:
        while waiting:
            waiting.pop()()
        return move_log_starts(*arguments, **named)

    monkeypatch.setattr(delete, "move_log_starts", move)


def test_topic_created_anew_between_plan_and_commit_keeps_its_records(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = world.copy(tmp_path / "log")
    tiered = copy.open()

    def replace_topic() -> None:
        other = open_log_dir(copy.path, clock=copy.bucket.clock.now_ms)
        other.delete_topic(TOPIC)
        other.create_topic(TOPIC, 1, {"remote.storage.enable": "true"})
        Tiered(other, tiered.clock, tiered.objects).append(1)

    acting(monkeypatch, replace_topic)
    [report] = apply_retention(tiered.log_dir.root)
    assert "re-created" in (report.error or "")
    settle(tiered)
    assert tiered.keys == []
    assert list(tiered.offsets()) == list(range(20))


def test_two_runs_at_once_delete_the_same_and_nothing_else(world: World, expected: Any, tmp_path: Path) -> None:
    number = 0
    while True:
        copy = world.copy(tmp_path / str(number))
        first, second = copy.open(), copy.open()
        done: list[Call] = []

        def act(call: Call, number: int = number, done: list[Call] = done, second: Tiered = second) -> None:
            if call.number == number:
                done.append(call)
                apply_retention(second.log_dir.root)

        open_as(copy.url, FaultyStore(copy.bucket, before=act))
        first.retain()
        settle(copy.open())
        check(copy.open(), expected)
        if not done:
            break
        number += 1
    assert number >= 3


def test_copy_that_expires_before_its_commit_fails_and_leaves_nothing(world: World, tmp_path: Path) -> None:
    copy = world.copy(tmp_path / "log")
    cleaner = copy.open()
    remote = cleaner.remote_bases
    puts = []

    def expire(call: Call) -> None:
        if call.kind == "put" and not puts:
            puts.append(call)
            open_as(copy.url, FaultyStore(copy.bucket))
            for _ in range(3):
                cleaner.clock.advance(DAY_MS + 1)
                finish(cleaner.log_dir.root)

    tiered = copy.open()
    open_as(copy.url, FaultyStore(copy.bucket, before=expire))
    [report] = tier_segments(tiered.log_dir.root)
    assert puts
    assert "has expired" in (report.error or "")
    after = copy.open()
    assert after.remote_bases == remote
    finish(after.log_dir.root)
    assert after.keys == after.named_keys
    after.tier()
    assert len(after.remote_bases) > len(remote)
    assert list(after.offsets()) == list(range(after.starts[0], 320))
