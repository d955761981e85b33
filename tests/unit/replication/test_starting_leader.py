"""A leader that has just started may answer before it knows its topics: that is not all there is."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from builders.following_roots import check_equal, copy_once, following, has_all, make_follower
from patience import wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.leader import LeaderDescription, SelectsTopic
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.security.open import open_root


class StartingLeader(RootLeader):
    """Names no topics in so many answers."""

    def __init__(self, place: Path, *, starting_answers: int) -> None:
        super().__init__(open_root(place))
        self.starting_answers = starting_answers

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        found = super().describe(selects)
        if not self.starting_answers:
            return found
        self.starting_answers -= 1
        return replace(found, topics={}, has_topics=False)


@pytest.fixture
def leader_dir(tmp_path: Path) -> LogDir:
    made = LogDir.create(tmp_path / "leader")
    made.create_topic("orders", 2)
    made.append("orders", pa.table({"value": ["a", "b", "c"]}))
    return made


def test_once_waits_for_the_topics_of_a_leader_that_has_just_started(tmp_path: Path, leader_dir: LogDir) -> None:
    leader, events = StartingLeader(tmp_path / "leader", starting_answers=3), list[Event]()
    make_follower(leader, tmp_path / "copy", events, is_once=True).run()
    check_equal(tmp_path / "leader", tmp_path / "copy")
    assert not leader.starting_answers
    leader.close()


def test_once_ends_with_a_leader_that_has_no_topics_after_a_while(tmp_path: Path) -> None:
    LogDir.create(tmp_path / "leader")
    leader, events = StartingLeader(tmp_path / "leader", starting_answers=1000), list[Event]()
    make_follower(leader, tmp_path / "copy", events, is_once=True, empty_for_s=0.3).run()
    assert leader.starting_answers < 999
    assert not LogDir.open(tmp_path / "copy").topics()
    leader.close()


def test_topics_are_not_taken_for_deleted_while_their_leader_starts_again(tmp_path: Path, leader_dir: LogDir) -> None:
    copy_once(tmp_path / "leader", tmp_path / "copy")
    leader = StartingLeader(tmp_path / "leader", starting_answers=2)
    with following(leader, tmp_path / "copy") as running:
        for _ in range(2):
            leader_dir.append("orders", pa.table({"value": [str(random.random())]}))
            wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
            leader.starting_answers = 3
            wait_until(lambda: not leader.starting_answers)
    assert not {EventKind.TOPIC_DELETED, EventKind.PARTITION_STOPPED} & running.kinds()
    leader.close()
