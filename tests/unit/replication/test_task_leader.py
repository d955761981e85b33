"""A follower for which tasks fetch ahead, here in threads: ranges, their order, failures, and what they leave."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from builders.following_roots import check_equal, make_follower
from builders.root_places import RootPlace, memory_root
from fakes.range_tasks import CountedTasks, answer_little, task_leader_of
from patience import wait_until

from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.tasks import LocalTasks
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.replication import range_task
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.leader import FetchPosition
from pyspark_kafkalog.replication.range_task import LeaderAddress, RangeRequest, StagingJob, StagingStore, fetch_range
from pyspark_kafkalog.replication.task_leader import TaskLeader
from pyspark_kafkalog.security.open import open_or_create_root
from pyspark_kafkalog.storage.log.follower import FollowerBatches
from pyspark_kafkalog.storage.names import TopicPartition

T = TypeVar("T")
ORDERS = TopicPartition("orders", 0)


def rows(first: int, count: int, rng: random.Random) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [f"key {number % 50}" for number in numbers],
            "value": [f"value {number}".ljust(rng.choice((20, 200, 2000)), ".") for number in numbers],
        }
    )


@pytest.fixture
def leader(tmp_path: Path) -> LogDir:
    made = LogDir.create(tmp_path / "leader")
    made.create_topic("orders", 3, {"segment.bytes": "1048576", "retention.ms": "-1"})
    write(made, 15)
    return made


def write(made: LogDir, appends: int) -> None:
    rng = random.Random(appends)
    for number in range(appends):
        made.append(
            "orders", rows(100 * number, rng.randint(1, 200), rng), compression_type=rng.choice(("none", "lz4"))
        )


def copy(leader: LogDir, root: RootPlace, tasks: LocalTasks) -> list[Event]:
    events: list[Event] = []
    native = open_or_create_root(root).native()
    with task_leader_of(Path(str(leader.path)), native, tasks) as end_point:
        make_follower(end_point, root, events, is_once=True, root=native).run()
    return events


def staged_files(root: Path) -> list[Path]:
    return list(root.glob("*/*.staged"))


@pytest.fixture
def small_first_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_little(monkeypatch)


@pytest.mark.usefixtures("small_first_answers")
def test_ranges_of_tasks_make_equal_partitions(leader: LogDir, root_place: RootPlace) -> None:
    tasks = CountedTasks()
    events = copy(leader, root_place, tasks)
    check_equal(leader.path, root_place)
    assert tasks.calls > 10
    assert {each.kind for each in events} == {EventKind.TOPIC_ADDED}
    if isinstance(root_place, Path):
        assert not staged_files(root_place)


@pytest.mark.usefixtures("small_first_answers")
def test_second_run_goes_on(leader: LogDir, tmp_path: Path) -> None:
    for _ in range(2):
        tasks = CountedTasks()
        copy(leader, tmp_path / "copy", tasks)
        assert tasks.calls
        check_equal(leader.path, tmp_path / "copy")
        write(leader, 15)


@pytest.mark.usefixtures("small_first_answers")
def test_lost_tasks_are_repeated(leader: LogDir, root_place: RootPlace) -> None:
    tasks = CountedTasks(lost_every=3)
    copy(leader, root_place, tasks)
    check_equal(leader.path, root_place)
    if isinstance(root_place, Path):
        assert not staged_files(root_place)


def test_partition_is_fetched_without_tasks_if_all_fail(leader: LogDir, tmp_path: Path) -> None:
    tasks = CountedTasks(lost_every=1)
    copy(leader, tmp_path / "copy", tasks)
    check_equal(leader.path, tmp_path / "copy")
    assert not staged_files(tmp_path / "copy")


@pytest.mark.usefixtures("small_first_answers")
def test_what_a_killed_job_has_staged_is_removed_by_the_next(leader: LogDir, tmp_path: Path) -> None:
    copy(leader, tmp_path / "copy", CountedTasks())
    left = [tmp_path / "copy" / "orders-1" / "follow-0123-4567.staged", tmp_path / "copy" / ".follow-0123"]
    for path in left:
        path.write_bytes(b"of a job that was killed")
    others = tmp_path / "copy" / "orders-1" / "0123-4.staged"
    others.write_bytes(b"of a writer")
    copy(leader, tmp_path / "copy", CountedTasks())
    assert staged_files(tmp_path / "copy") == [others]
    assert not list((tmp_path / "copy").glob(".follow-*"))


@pytest.mark.usefixtures("small_first_answers")
def test_ranges_that_no_longer_continue_the_log_are_not_used(
    leader: LogDir, root_place: RootPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that lost records after a range was fetched: the check of epochs refuses it."""
    monkeypatch.setattr(TaskLeader, "_continues", lambda *_: False)
    tasks = CountedTasks()
    copy(leader, root_place, tasks)
    check_equal(leader.path, root_place)
    assert tasks.calls


@pytest.mark.usefixtures("small_first_answers")
def test_records_that_retention_deletes_meanwhile_move_the_log_start(leader: LogDir, root_place: RootPlace) -> None:
    class Deleting(CountedTasks):
        def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
            if self.calls == 2:
                end = leader.partition("orders", 0).high_watermark
                delete_records(leader.root, {ORDERS: end // 2})
            return super().submit(work, first=first)

    copy(leader, root_place, Deleting())
    copied = LogDir.open(root_place).partition("orders", 0)
    theirs = LogDir.open(leader.path).partition("orders", 0)
    assert (copied.log_start_offset, copied.high_watermark) == (theirs.log_start_offset, theirs.high_watermark)


def range_request(leader: LogDir, first: int, end: int, place: StagingJob | StagingStore) -> RangeRequest:
    topic_id = leader.topic("orders").topic_id
    assert topic_id is not None
    return RangeRequest(
        leader=LeaderAddress(str(leader.path)),
        position=FetchPosition(topic_partition=ORDERS, topic_id=topic_id, offset=first),
        end_offset=end,
        log_end_offset=0,
        max_bytes=1 << 30,
        place=place,
    )


@pytest.mark.parametrize("ends", ["before the task", "while it fetches"])
def test_task_that_outlives_its_job_leaves_no_file(
    leader: LogDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """As a Python worker of Spark does whose job was cancelled."""
    directory = tmp_path / "copy" / "orders-0"
    directory.mkdir(parents=True)
    job = StagingJob(tmp_path / "copy", "0123")
    job.begin()
    if ends == "before the task":
        job.end()
        with pytest.raises(LeaderUnavailableError, match=r"the job .* has ended"):
            fetch_range(range_request(leader, 0, 50, job))
    else:
        check = range_task.check_batches

        def end_job(data: Buffer) -> FollowerBatches:
            assert staged_files(tmp_path / "copy")
            job.end()
            return check(data)

        monkeypatch.setattr(range_task, "check_batches", end_job)
        fetch_range(range_request(leader, 0, 50, job))
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]


@pytest.mark.parametrize("bounds", [(0, 50), (13, 14), (99, 250), (150, 10_000)])
@pytest.mark.parametrize("is_object", [False, True])
def test_ranges_take_the_batches_that_begin_in_them(
    leader: LogDir, tmp_path: Path, bounds: tuple[int, int], is_object: bool
) -> None:
    of = leader.partition("orders", 0)
    first, end = bounds[0], min(bounds[1], of.high_watermark)
    batches = [
        (int(each["base_offset"]), int(each["last_offset"]) + 1, int(each["size_bytes"]))
        for run in leader.reader("orders", 0).runs(0, of.high_watermark)
        for each in run.batches
    ]
    found = fetch_range(range_request(leader, first, end, place_of(tmp_path, is_object=is_object)))
    taken = [each for each in batches if first <= each[0] < end]
    assert found.size_bytes == sum(size for _, _, size in taken)
    if is_object:
        before = [next_offset for base, next_offset, _ in batches if base < first]
        assert found.left_out_end_offset == (before[-1] if before else -1)
        assert (found.batches is None) == (not taken)
        if found.batches is not None:
            assert (found.batches.first_offset, found.batches.next_offset) == (
                before[-1] if before else 0,
                taken[-1][1],
            )
            assert (len(found.batches), found.batches.size_bytes) == (len(taken), found.size_bytes)
    else:
        straddling = [next_offset for base, next_offset, _ in batches if base < first < next_offset]
        assert found.left_out_end_offset == (straddling[0] if straddling else -1)
        assert found.path is not None
        assert found.path.stat().st_size == found.size_bytes
    assert found.next_offset == end


def place_of(tmp_path: Path, *, is_object: bool) -> StagingJob | StagingStore:
    """Where a task that is called by itself stages."""
    if is_object:
        return StagingStore(StoreAddress.parse(memory_root(), {}), 7)
    (tmp_path / "copy" / "orders-0").mkdir(parents=True)
    job = StagingJob(tmp_path / "copy", "0123")
    job.begin()
    return job


def test_small_lag_begins_no_tasks(leader: LogDir, tmp_path: Path) -> None:
    tasks = CountedTasks()
    root = open_or_create_root(tmp_path / "copy").native()
    with task_leader_of(Path(str(leader.path)), root, tasks, range_bytes=1 << 30) as end_point:
        make_follower(end_point, tmp_path / "copy", [], is_once=True, root=root).run()
    assert not tasks.calls
    check_equal(leader.path, tmp_path / "copy")


class WaitingTasks(CountedTasks):
    """Tasks that wait for their executors: none begins before `granted`."""

    def __init__(self) -> None:
        super().__init__()
        self.granted = threading.Event()

    def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
        def call() -> T:
            assert self.granted.wait(60)
            return work()

        return super().submit(call, first=first)


@pytest.mark.usefixtures("small_first_answers")
def test_follower_waits_longer_for_tasks_than_for_its_leader(leader: LogDir, tmp_path: Path) -> None:
    tasks = WaitingTasks()
    root = open_or_create_root(tmp_path / "copy").native()
    with task_leader_of(Path(str(leader.path)), root, tasks) as end_point:
        asked = 0

        def is_working() -> bool:
            nonlocal asked
            asked += 1
            if asked == 2:
                tasks.granted.set()
            return end_point.is_working()

        follower = make_follower(
            end_point, tmp_path / "copy", [], is_once=True, gives_up_after_s=1.0, is_working=is_working, root=root
        )
        try:
            follower.run()
        finally:
            tasks.granted.set()
        assert asked >= 2
        # A range that begins inside of the last batch may still be fetched when the follower has it already.
        wait_until(lambda: not end_point.is_working(), "the end of the tasks")
    check_equal(leader.path, tmp_path / "copy")
