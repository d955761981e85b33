"""A follower that is killed at any point has reported what is gone, and kept it, before it is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from builders.following_roots import batches_of, check_equal, copy_once, ends, make_follower
from builders.root_places import RootPlace, store_of

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.replication.events import LOSSES, Event, EventKind
from pyspark_kafkalog.replication.leader import FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.replication.report import FollowReport
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.commit.changes import (
    FollowerChange,
    FollowerResult,
    PlanFollowerRecords,
    StartAt,
    Truncation,
    no_records,
)
from pyspark_kafkalog.root.commit.committer import FollowerWriter
from pyspark_kafkalog.root.commit.cut_files import KeptRecords
from pyspark_kafkalog.root.native import NativeRoot, promote
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"value": [f"value {number}" for number in range(first, first + count)]})


def make_leader(place: RootPlace) -> LogDir:
    made = LogDir.create(place)
    made.create_topic("orders", 1, {"retention.ms": "-1"})
    made.append("orders", rows(0, 10))
    return made


def promoted_copy(leader: RootPlace, copy: RootPlace) -> LogDir:
    """A copy that was promoted, and has other records than its former leader since."""
    copy_once(leader, copy)
    LogDir.open(leader).append("orders", rows(100, 5))
    promote(LogDir.open(copy).root.native())
    promoted = LogDir.open(copy)
    promoted.append("orders", rows(500, 20))
    return promoted


def kept_files(place: RootPlace) -> list[bytes]:
    if isinstance(place, Path):
        return [each.read_bytes() for each in place.glob("diverged-*.log")]
    return [each.body for key, each in store_of(place).bucket.objects.items() if key.startswith("diverged/")]


class Killed(Exception):
    """Ends the follower where a kill would."""


class KilledWriter:
    """Ends with the first commit that drops records, which is made or not."""

    def __init__(self, writer: FollowerWriter, *, is_made: bool) -> None:
        self._writer = writer
        self._is_made = is_made

    def commit(
        self, changes: Sequence[FollowerChange], records: PlanFollowerRecords = no_records
    ) -> list[FollowerResult]:
        if not any(isinstance(each, (Truncation, StartAt)) for each in changes):
            return self._writer.commit(changes, records)
        if self._is_made:
            self._writer.commit(changes, records)
        raise Killed

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("is_made", [False, True], ids=["before its commit", "after its commit"])
@pytest.mark.parametrize("loss", ["cut", "gap"])
def test_follower_that_is_killed_at_a_loss_has_reported_it(
    loss: str, is_made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = NativeRoot.follower

    def killed(root: NativeRoot, following_id: str, *, flush: FlushMode, on_kept: KeptRecords) -> FollowerWriter:
        return KilledWriter(made(root, following_id, flush=flush, on_kept=on_kept), is_made=is_made)

    here, there, path = tmp_path / "here", tmp_path / "there", tmp_path / "report.json"
    make_leader(here)
    if loss == "cut":
        promoted_copy(here, there)
    else:
        copy_once(here, there)
        here, there = there, here
        leader = LogDir.open(there)
        leader.append("orders", rows(10, 20))
        delete_records(leader.root, {ORDERS: 25})
    with monkeypatch.context() as patch:
        patch.setattr(NativeRoot, "follower", killed)
        with pytest.raises(Killed):
            _run(there, here, path)
    if loss == "gap":
        assert (EventKind.GAP, 10, 25) in _losses(path)
    elif is_made:
        assert _losses(path) == [(EventKind.DIVERGED, 10, 15), (EventKind.CUT, 10, 15)]
    else:
        assert _losses(path) == [(EventKind.DIVERGED, 10, 15)]
    _run(there, here, path)  # and the next run goes on in the same report
    check_equal(there, here)
    wanted = {EventKind.GAP} if loss == "gap" else {EventKind.DIVERGED, EventKind.CUT}
    assert wanted == {kind for kind, _, _ in _losses(path)}
    tree = json.loads(path.read_text())
    assert sum(tree["counts"].values()) == len(tree["events"])


def _run(leader: Path, place: Path, path: Path) -> None:
    """Follow once with a report at `path`, which is not written at the end, as by a killed follower."""
    root = open_root(place).native()
    events: list[Event] = []
    follower = make_follower(RootLeader(open_root(leader)), place, events, may_cut=True, is_once=True)
    report = FollowReport(leader=str(leader), root=str(root.path), clock_ms=lambda: 7000)
    report.continue_from(path)
    report.watch(follower.shared, lambda: follower.cluster_id)
    report.on_loss = lambda: report.write(path)
    follower._on_event = report.note
    follower.run()


def _losses(path: Path) -> list[tuple[EventKind, int, int]]:
    events = [Event.of_fields(each) for each in json.loads(path.read_text())["events"]]
    return [(each.kind, each.first_offset, each.end_offset) for each in events if each.kind in LOSSES]


def test_report_is_not_written_over_another_file(tmp_path: Path) -> None:
    report = FollowReport(leader="leader", root="copy", clock_ms=lambda: 7000)
    path = tmp_path / "file"
    for text in ("precious", "[]", "{}", '{"root": "copy", "counts": {}, "events": [{"event": "gap"}]}'):
        path.write_text(text)
        with pytest.raises(InvalidOptionError, match="is no report of kafkalog follow"):
            report.continue_from(path)
    path.write_text('{"root": "another", "counts": {}, "events": []}')
    with pytest.raises(InvalidOptionError, match="is the report of another, not of copy"):
        report.continue_from(path)


class DelayedLeader(RootLeader):
    """Answers the first fetch of records without any, as a slow leader may."""

    has_answered = False

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        if self.has_answered or not positions:
            return super().fetch(
                source, positions, wait_ms=wait_ms, max_bytes=max_bytes, partition_bytes=partition_bytes
            )
        self.has_answered = True
        delete_records(LogDir.open(self._root.path).root, {ORDERS: 4})
        return [
            LeaderAnswer(
                topic_partition=each.topic_partition,
                outcome=FetchOutcome.RECORDS,
                high_watermark=10,
                log_start_offset=0,
            )
            for each in positions
        ]


def test_first_records_that_are_deleted_while_they_are_followed_are_a_gap(tmp_path: Path) -> None:
    make_leader(tmp_path / "leader")
    events: list[Event] = []
    leader = DelayedLeader(open_root(tmp_path / "leader"))
    make_follower(leader, tmp_path / "copy", events, is_once=True).run()
    gaps = [(each.first_offset, each.end_offset) for each in events if each.kind is EventKind.GAP]
    assert gaps == [(0, 4)]
    check_equal(tmp_path / "leader", tmp_path / "copy")


def test_what_the_leader_has_deleted_before_it_was_followed_is_no_gap(root_place: RootPlace, tmp_path: Path) -> None:
    delete_records(make_leader(root_place).root, {ORDERS: 4})
    events = copy_once(root_place, tmp_path / "copy")
    assert not [each for each in events if each.kind is EventKind.GAP]
    check_equal(root_place, tmp_path / "copy")


def test_records_of_a_former_leader_that_the_new_one_cannot_compare_are_kept(
    root_place: RootPlace, tmp_path: Path
) -> None:
    """The new leader has deleted the offsets at which the logs differ, and forgotten the epochs of that time."""
    copy = tmp_path / "copy"
    former = make_leader(root_place)
    promoted = promoted_copy(root_place, copy)
    delete_records(promoted.root, {ORDERS: 28})
    own = b"".join(batches_of(LogDir.open(root_place), ORDERS))
    events = copy_once(copy, root_place, may_cut=True)
    losses = [(each.kind, each.first_offset, each.end_offset) for each in events if each.kind in LOSSES]
    assert losses == [(EventKind.GAP, 15, 28), (EventKind.CUT, 0, 15)]
    assert kept_files(root_place) == [own]
    check_equal(copy, root_place)
    assert ends(former)[ORDERS] == 30


def test_records_of_the_leader_that_it_has_deleted_meanwhile_are_not_kept(
    root_place: RootPlace, tmp_path: Path
) -> None:
    leader = make_leader(root_place)
    copy_once(root_place, tmp_path / "copy")
    leader.append("orders", rows(10, 20))
    delete_records(leader.root, {ORDERS: 25})
    copy_once(root_place, tmp_path / "copy", may_cut=True)
    assert not kept_files(tmp_path / "copy")
    check_equal(root_place, tmp_path / "copy")


@pytest.mark.parametrize("is_made", [False, True], ids=["before its commit", "after its commit"])
def test_what_the_leader_had_deleted_before_is_no_gap_after_a_kill_either(
    root_place: RootPlace, tmp_path: Path, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is created here, and the follower killed before it has any record."""

    made = NativeRoot.follower

    def killed(root: NativeRoot, following_id: str, *, flush: FlushMode, on_kept: KeptRecords) -> FollowerWriter:
        return KilledWriter(made(root, following_id, flush=flush, on_kept=on_kept), is_made=is_made)

    leader, report = make_leader(tmp_path / "leader"), tmp_path / "report.json"
    delete_records(leader.root, {ORDERS: 7})
    LogDir.create(root_place)
    with monkeypatch.context() as patch:
        patch.setattr(NativeRoot, "follower", killed)
        with pytest.raises(Killed):
            _run(tmp_path / "leader", root_place, report)
    assert LogDir.open(root_place).topics() == ("orders",)
    events = copy_once(tmp_path / "leader", root_place)
    assert not report.exists()
    assert EventKind.GAP not in {each.kind for each in events}
    check_equal(tmp_path / "leader", root_place)


def test_what_an_empty_partition_has_missed_is_a_gap(root_place: RootPlace, tmp_path: Path) -> None:
    leader = LogDir.create(tmp_path / "leader")
    leader.create_topic("orders", 1)
    copy_once(tmp_path / "leader", root_place)
    leader.append("orders", rows(0, 10))
    delete_records(leader.root, {ORDERS: 7})
    events = copy_once(tmp_path / "leader", root_place)
    assert [(each.first_offset, each.end_offset) for each in events if each.kind is EventKind.GAP] == [(0, 7)]
