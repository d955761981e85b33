"""A follower whose disk has no room for some calls in a row, from each call on, ends with the log of its leader.

The copy followed a leader that was promoted too late: from some offset on the present leader has other records, another
topic of the name `again`, and a new one. So the follower keeps what it cuts, truncates, rolls segments, replaces a
topic, creates one, and moves log starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from builders.controlled import open_log_dir
from builders.followers import SMALL, TOPIC, LeaderRoot
from builders.following_roots import batches_of, check_equal, copy_once, following, has_all, selects_all
from builders.metadata_roots import forget_images
from fakes.stopping_filesystem import WatchedFileSystem, write_half
from patience import wait_until
from tiers import SEED, TIER, rest_full

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.follower import Follower, FollowSettings
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.filesystem import FlushMode, described
from pyspark_kafkalog.storage.names import TopicPartition

#: Every so many calls are tried.
STEP: Final = 3 if TIER == "full" else 20
CALLS_MAX: Final = 2000
RUNS_MAX: Final = 10
#: After more failures in a row the outcome of a commit may be unknown.
MOST_TRIES: Final = 3
ADVICE: Final = "free blocks or inodes"
#: What frees space, which a full disk permits.
FREEING: Final = ("unlink", "rmdir")


class FullDisk(WatchedFileSystem):
    """Has no room for `count` changes from number `at` on, None: until `has_room`. The first one may be half done."""

    def __init__(self, at: int, count: int | None, *, torn: bool = False) -> None:
        self._at = at
        self._count = count
        self._torn = torn
        self._lock = threading.Lock()
        self.has_room = False
        self.changes = 0
        self.failed = 0

    def on_change(self, name: str, arguments: tuple[Any, ...]) -> None:
        is_opened = name == "open" and (not arguments[1] & os.O_CREAT or arguments[0].exists())
        if name in FREEING or is_opened or self.has_room:
            return
        with self._lock:
            self.changes += 1
            number = self.changes - 1
            if number < self._at or (self._count is not None and number >= self._at + self._count):
                return
            self.failed += 1
        if self._torn and number == self._at:
            write_half(name, arguments)
        raise described(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), *arguments[:1])


class Places:
    """The leader to follow, and a copy of what the former leader had, made again for each run."""

    def __init__(self, home: Path) -> None:
        self.leader = home / "leader"
        self._template = home / "template"
        self._home = home
        self._copies = 0
        former = home / "former"
        made = LeaderRoot(former, random.Random(1), partitions=2)
        LogDir.open(former).create_topic("again", 1, SMALL)
        made.write(12)
        present = made.restored(self.leader, random.Random(2))
        made.write(14)
        copy_once(former, self._template)
        self.lost = self._write_to(present)

    def _write_to(self, present: LeaderRoot) -> list[bytes]:
        """Write to the present leader what the former one has not; what the copy is to lose."""
        leader = LogDir.open(self.leader)
        leader.delete_topic("again")
        leader.create_topic("again", 1, SMALL)
        leader.create_topic("late", 1, SMALL)
        present.elect()
        present.write(40)
        delete_records(leader.root, {TopicPartition(TOPIC, 0): 3})
        template = LogDir.open(self._template)
        lost = []
        for number in range(present.partitions):
            ours = batches_of(template, TopicPartition(TOPIC, number))
            theirs = {each.data for each in present.batches(number)}
            lost.append(b"".join(each for each in ours if each not in theirs))
        return lost

    @contextlib.contextmanager
    def copy(self) -> Iterator[Path]:
        self._copies += 1
        made = self._home / f"copy-{self._copies}"
        shutil.copytree(self._template, made)
        yield made
        shutil.rmtree(made)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(tmp_path_factory.mktemp("full-disk"))


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafkalog.replication.partition_state._FIRST_DELAY_MS", 1)
    monkeypatch.setattr("pyspark_kafkalog.replication.partition_state._LONGEST_DELAY_MS", 2)
    monkeypatch.setattr("pyspark_kafkalog.replication.follower._REFRESH_AGAIN_S", 0.005)
    monkeypatch.setattr("pyspark_kafkalog.replication.follower._TURN_S", 0.01)


def opened(copy: Path, disk: FullDisk) -> NativeRoot:
    forget_images()
    return open_log_dir(copy, fs=disk).root.native()


def follow(places: Places, copy: Path, disk: FullDisk, flush: FlushMode, events: list[Event]) -> None:
    leader = RootLeader(open_root(places.leader))
    settings = FollowSettings(
        topics=".*", selects=selects_all, may_cut=True, is_once=True, flush=flush, refresh_s=0.1, gives_up_after_s=20
    )
    try:
        Follower(leader, opened(copy, disk), settings, on_event=events.append, rng=random.Random(7)).run()
    finally:
        leader.close()


def check(places: Places, copy: Path, *, may_keep_twice: bool = False) -> None:
    forget_images()
    check_equal(places.leader, copy)
    kept = [path.read_bytes() for path in copy.glob("diverged-*.log")]
    assert set(kept) == set(places.lost)
    assert len(kept) == len(places.lost) or may_keep_twice
    found = verify(LogDir.open(copy).root)
    assert found.is_sound, "\n".join(map(str, found.findings))


def test_calm_follower_cuts_and_keeps_what_the_leader_has_not(places: Places) -> None:
    with places.copy() as copy:
        follow(places, copy, FullDisk(0, 0), "fsync", [])
        check(places, copy)


@pytest.mark.all_cases
@pytest.mark.parametrize("flush", ["os", "fsync"])
@pytest.mark.parametrize(("count", "torn"), rest_full([(1, False), (3, True), (1, True), (30, False)], kept=2))
def test_follower_with_a_full_disk_from_each_call_on_ends_with_its_leaders_log(
    places: Places, count: int, torn: bool, flush: FlushMode
) -> None:
    for at in range(SEED % STEP, CALLS_MAX, STEP):
        disk = FullDisk(at, count, torn=torn)
        with places.copy() as copy:
            runs = follow_to_the_end(places, copy, disk, flush)
            # The next run, and the one who tries again after a commit of unknown outcome, cannot know what was kept.
            check(places, copy, may_keep_twice=runs > 1 or count > MOST_TRIES)
        if not disk.failed:
            break
    assert at > 100


def follow_to_the_end(places: Places, copy: Path, disk: FullDisk, flush: FlushMode) -> int:
    """How many runs it took. Each error that a follower reports, or ends with, says what to do."""
    for run in range(1, RUNS_MAX):
        events: list[Event] = []
        try:
            follow(places, copy, disk, flush, events)
        except (KafkalogError, OSError) as error:
            said = [str(error)]
        else:
            return run
        said += [each.detail for each in events if each.kind is EventKind.COMMIT_ERROR]
        assert all(ADVICE in each for each in said), said
    raise AssertionError("the follower does not come to an end")


@pytest.mark.parametrize("at", rest_full([20, 60, 0, 40, 80, 100]))
def test_follower_reports_a_full_disk_once_and_goes_on_when_there_is_room(places: Places, at: int) -> None:
    disk = FullDisk(at, None)
    with places.copy() as copy:
        leader = RootLeader(open_root(places.leader))
        with following(leader, copy, may_cut=True, root=opened(copy, disk)) as running:
            wait_until(lambda: disk.failed > 60)
            running_errors = running.of_kind(EventKind.COMMIT_ERROR)
            disk.has_room = True
            wait_until(lambda: has_all(LogDir.open(places.leader), copy))
        leader.close()
        check(places, copy)
    assert 1 <= len(running_errors) <= 3, running_errors
    assert all(ADVICE in each.detail for each in running_errors)
