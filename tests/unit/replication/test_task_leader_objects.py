"""A follower in an object store for which tasks fetch ahead: they put batches, and the driver commits references."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from builders.followers import LeaderRoot
from builders.following_roots import batches_of, check_equal, image_of, make_follower
from builders.object_roots import named_objects
from builders.root_places import memory_root, store_of
from fakes.range_tasks import CountedTasks, answer_little, task_leader_of

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.maintenance.verify.findings import Severity
from pyspark_kafkalog.maintenance.verify.verify import verify, verify_root
from pyspark_kafkalog.replication import task_leader
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.range_task import RangeRequest, StagedRange, fetch_range
from pyspark_kafkalog.root.commit.changes import FollowerAppend
from pyspark_kafkalog.root.commit.committer import FollowerWriter
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.security.open import open_or_create_root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main
from pyspark_kafkalog.units import DAY_MS

T = TypeVar("T")
CONFIGS = {"internal.segment.bytes": "15000", "index.interval.bytes": "300", "retention.ms": "-1"}


class PickledTasks(CountedTasks):
    """Tasks whose work and results are pickled, as between driver and executors; `sizes` of results in bytes."""

    def __init__(self, *, lost_every: int = 0) -> None:
        super().__init__(lost_every=lost_every)
        self.sizes: list[int] = []
        self.copied_bytes = 0

    def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
        data = pickle.dumps(work)

        def call() -> T:
            found = pickle.dumps(pickle.loads(data)())
            self.sizes.append(len(found))
            result: Any = pickle.loads(found)
            self.copied_bytes += result.size_bytes
            return result  # type: ignore[no-any-return]

        return super().submit(call, first=first)


@pytest.fixture(autouse=True)
def small_first_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_little(monkeypatch)


@pytest.fixture
def place() -> str:
    return memory_root()


def written(path: Path, *, batches: int = 400, epochs: int = 4) -> LogDir:
    """A leader with producers, transactions that are open, committed and aborted, and several leader epochs."""
    made = LeaderRoot(path, random.Random(batches), partitions=2, configs=CONFIGS)
    for _ in range(epochs):
        made.write(batches // epochs)
        made.elect()
    return LogDir.open(path)


def copy(leader: LogDir, place: str, tasks: CountedTasks, *, range_bytes: int = 3000) -> list[Event]:
    events: list[Event] = []
    root = open_or_create_root(place).native()
    with task_leader_of(Path(str(leader.path)), root, tasks, range_bytes=range_bytes) as end_point:
        make_follower(end_point, place, events, is_once=True, root=root).run()
    return events


def check_copy(leader: LogDir, place: str) -> None:
    """The copy is equal and sound, for readers of committed records too."""
    check_equal(leader.path, place)
    ours = LogDir.open(place)
    for topic in leader.topics():
        wanted = LogDir.open(leader.path).read(topic, isolation="read_committed")
        assert ours.read(topic, isolation="read_committed").equals(wanted)
    root = ours.root.native()
    found = [*verify_root(root), *verify(root, are_records_checked=True).findings]
    assert [str(each) for each in found if each.severity is not Severity.INFO] == []


def data_keys(place: str) -> set[str]:
    return set(store_of(place).bucket.keys("data"))


def named(place: str) -> set[str]:
    return named_objects(image_of(LogDir.open(place)))


def staged_appends(monkeypatch: pytest.MonkeyPatch) -> list[StagedBatches]:
    """What the follower commits of objects that tasks have put."""
    found: list[StagedBatches] = []
    commit = FollowerWriter.commit

    def note(self: FollowerWriter, changes: Any, *arguments: Any) -> Any:
        datas = [each.data for each in changes if isinstance(each, FollowerAppend)]
        found.extend(each for each in datas if isinstance(each, StagedBatches))
        return commit(self, changes, *arguments)

    monkeypatch.setattr(FollowerWriter, "commit", note)
    return found


def test_transactions_producers_and_epochs_in_ranges_are_copied(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = written(tmp_path / "leader")
    appends = staged_appends(monkeypatch)
    tasks = PickledTasks()
    events = copy(leader, place, tasks)
    assert {each.kind for each in events} == {EventKind.TOPIC_ADDED}
    check_copy(leader, place)
    assert len(appends) > 10
    assert max(len(each.written.runs) for each in appends) > 1
    assert any((each.producer_rows["kind"] > 1).any() for each in appends)
    image = image_of(LogDir.open(place))
    assert {each.written.key for each in appends} <= named(place)
    assert image.next_producer_id == 1006


def test_no_records_pass_through_the_driver(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = LogDir.create(tmp_path / "leader")
    leader.create_topic("orders", 1)
    rng = random.Random(1)
    for _ in range(20):
        leader.append("orders", pa.table({"value": [rng.randbytes(5000) for _ in range(20)]}))
    tasks = PickledTasks()
    put: list[int] = []
    commit = FollowerWriter.commit

    def note(self: FollowerWriter, changes: Any, *arguments: Any) -> Any:
        put.extend(len(each.raw) for each in changes if isinstance(each, FollowerAppend))
        return commit(self, changes, *arguments)

    monkeypatch.setattr(FollowerWriter, "commit", note)
    copy(leader, place, tasks, range_bytes=250_000)
    check_copy(leader, place)
    assert tasks.copied_bytes > 1_400_000
    assert sum(tasks.sizes) < 2_000 * len(tasks.sizes)
    # What is left for the driver: the first answer, and the end that is less than a range.
    assert sum(put) + tasks.copied_bytes == sum(map(len, batches_of(LogDir.open(place), TopicPartition("orders", 0))))


def test_objects_of_lost_tasks_are_collected(tmp_path: Path, place: str) -> None:
    leader = written(tmp_path / "leader")
    tasks = PickledTasks(lost_every=3)
    copy(leader, place, tasks)
    check_copy(leader, place)
    assert data_keys(place) > named(place)
    collect(place)
    assert data_keys(place) == named(place)
    check_copy(leader, place)


def collect(place: str) -> None:
    """Clean up until what was not committed by now has expired."""
    root = LogDir.open(place).root.native()
    assert isinstance(root, ObjectRoot)
    now_ms = root.clock()
    for day in range(0, 40, 10):
        clean_up_root(root, now_ms=now_ms + day * DAY_MS)


def test_job_that_is_killed_before_its_commit_leaves_what_the_clean_up_collects(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    leader = written(tmp_path / "leader")
    commit = FollowerWriter.commit

    def killed(self: FollowerWriter, changes: Any, *arguments: Any) -> Any:
        if any(isinstance(each, FollowerAppend) and isinstance(each.data, StagedBatches) for each in changes):
            raise Killed
        return commit(self, changes, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(FollowerWriter, "commit", killed)
        with pytest.raises(Killed):
            copy(leader, place, PickledTasks())
    left = data_keys(place) - named(place)
    assert left
    copy(leader, place, PickledTasks())
    check_copy(leader, place)
    assert not left & named(place)
    collect(place)
    assert data_keys(place) == named(place)
    check_copy(leader, place)


def test_objects_that_expire_before_their_commit_are_fetched_again(tmp_path: Path, place: str) -> None:
    class Expiring(PickledTasks):
        def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
            if self.calls == 8:
                collect(place)
            return super().submit(work, first=first)

    leader = written(tmp_path / "leader")
    copy(leader, place, Expiring())
    check_copy(leader, place)
    assert named(place) <= data_keys(place)


def test_partition_is_fetched_through_the_driver_if_all_tasks_fail(tmp_path: Path, place: str) -> None:
    leader = written(tmp_path / "leader", batches=100)
    tasks = PickledTasks(lost_every=1)
    copy(leader, place, tasks)
    check_copy(leader, place)
    assert tasks.calls


def test_compacted_leader_has_gaps_between_and_inside_of_ranges(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LogDir.create(tmp_path / "leader")
    leader.create_topic("table", 1, {**CONFIGS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    rng = random.Random(3)
    for number in range(150):
        # Stretches of keys that are overwritten, and of keys that stay.
        keys = [f"{number} {at}" if number % 40 < 10 else f"{at}" for at in range(10)]
        leader.append("table", pa.table({"key": keys, "value": [rng.randbytes(60) for _ in keys]}))
    assert main(["log-cleaner", "--path", str(leader.path), "--local"]) == 0
    appends = staged_appends(monkeypatch)
    copy(leader, place, PickledTasks(), range_bytes=2000)
    check_copy(LogDir.open(leader.path), place)
    of = LogDir.open(leader.path)
    offsets = of.read("table")["offset"].to_pylist()
    gaps = [end for end, begin in pairwise(offsets) if begin - end > 50]
    assert gaps
    assert len(appends) > 3


def test_task_that_says_something_else_than_it_has_put_is_not_used(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(found: StagedBatches) -> StagedBatches:
        return replace(found, first_offset=found.first_offset + 1)

    def lying(request: RangeRequest) -> StagedRange:
        found = fetch_range(request)
        return found if found.batches is None else replace(found, batches=lie(found.batches))

    monkeypatch.setattr(task_leader, "fetch_range", lying)
    leader = written(tmp_path / "leader", batches=100)
    appends, tasks = staged_appends(monkeypatch), CountedTasks()
    copy(leader, place, tasks)
    check_copy(leader, place)
    assert tasks.calls
    assert not appends
