"""A root that follows refuses writes wherever users make them; promoted, it takes them, with epochs of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.followers import TOPIC, FollowerRoot, LeaderRoot, split_batches
from builders.leader_writers import T0, Served, append, batch

from pyspark_kafkalog.errors import FollowingEndedError, FollowingRootError, KafkalogError
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.root.native import begin_following, promote
from pyspark_kafkalog.root.reads import epochs_of
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

ROWS = pa.table({"value": [b"x"]})
OF = TopicPartition(TOPIC, 0)

REFUSED: dict[str, Callable[[LogDir], object]] = {
    "append": lambda log_dir: log_dir.append(TOPIC, ROWS),
    "append with a version": lambda log_dir: log_dir.append(TOPIC, ROWS, transactional_id="t", transaction_version=1),
    "create a topic": lambda log_dir: log_dir.create_topic("b"),
    "write to a new topic": lambda log_dir: log_dir.append("b", ROWS),
    "delete a topic": lambda log_dir: log_dir.delete_topic(TOPIC),
    "alter a topic": lambda log_dir: log_dir.alter_topic(TOPIC, add={"retention.ms": "1"}),
    "add partitions": lambda log_dir: log_dir.add_partitions(TOPIC, 5),
    "alter brokers": lambda log_dir: log_dir.alter_broker_configs(add={"log.retention.ms": "1"}),
    "commit offsets": lambda log_dir: Group(log_dir.root, "g").commit({(TOPIC, 0): 1}),
    "delete records": lambda log_dir: delete_records(log_dir.root, {OF: 1}),
    "end a transaction": lambda log_dir: Served(Path(str(log_dir.path))).append(append(batch(), TOPIC)),
}


@pytest.fixture
def follower(tmp_path: Path) -> FollowerRoot:
    leader = LeaderRoot(tmp_path / "leader", random.Random(1))
    leader.write(30)
    leader.elect()
    leader.write(10)
    follower = FollowerRoot.create(tmp_path / "follower")
    follower.follow(leader, random.Random(2))
    return follower


@pytest.mark.parametrize("write", REFUSED.values(), ids=REFUSED.keys())
def test_a_root_that_follows_refuses_writes_and_stays_as_it_is(
    follower: FollowerRoot, write: Callable[[LogDir], object]
) -> None:
    path = Path(str(follower.log_dir.path))
    before = LogDir.open(path)
    files = sorted(each.name for each in path.rglob("*"))
    with pytest.raises(FollowingRootError, match="follows a:9092, and only its follower may write to it"):
        write(LogDir.open(path))
    before.refresh()
    assert before.version == follower.root.store.image.next_offset
    assert sorted(each.name for each in path.rglob("*")) == files
    assert (before.follows, "follows a:9092" in repr(before)) == ("a:9092", True)


def test_a_root_that_follows_gets_super_users_of_its_own(follower: FollowerRoot) -> None:
    log_dir = LogDir.open(Path(str(follower.log_dir.path)))
    log_dir.alter_broker_configs(add={"super.users": "User:admin"})
    assert log_dir.broker_configs()["super.users"] == "User:admin"
    with pytest.raises(FollowingRootError, match="broker-level settings cannot be changed"):
        log_dir.alter_broker_configs(add={"log.retention.ms": "1"}, delete=["super.users"])
    log_dir.alter_broker_configs(delete=["super.users"])
    assert "super.users" not in log_dir.broker_configs()


def test_a_promoted_root_takes_writes_in_a_leader_epoch_of_its_own(follower: FollowerRoot) -> None:
    path = Path(str(follower.log_dir.path))
    opened_before = LogDir.open(path)
    follower.make(follower.append(b"", leader_epoch=6))
    end_offset = follower.state().log_end_offset
    promoted = promote(follower.root)
    assert (promoted.following.leader, promoted.partitions_count) == ("a:9092", 1)
    assert follower.state().leader_epoch == 7
    with pytest.raises(FollowingEndedError):
        follower.commit()
    snapshot = LogDir.open(path).partition(TOPIC, 0)
    assert tuple(epochs_of(follower.root, snapshot)[-1]) == (7, end_offset)
    opened_before.append(TOPIC, ROWS)
    served = Served(path)
    result = served.append(append(batch(), TOPIC))
    assert not isinstance(result, KafkalogError)
    directory = path / f"{TOPIC}-0"
    stored = split_batches(b"".join(each.read_bytes() for each in sorted(directory.glob("*.log"))))
    assert [(each.base_offset, each.leader_epoch) for each in stored if each.base_offset >= end_offset] == [
        (end_offset, 7),
        (end_offset + 1, 7),
    ]
    assert f"7 {end_offset}" in (directory / "leader-epoch-checkpoint").read_text()
    assert opened_before.follows is None


def test_a_promoted_root_hands_out_producer_ids_that_the_leader_has_not(follower: FollowerRoot) -> None:
    seen = follower.root.store.refresh().next_producer_id
    assert seen == 1006  # one above the highest of the leader's producers
    promote(follower.root)
    assert follower.root.store.refresh().next_producer_id >= seen + 1000 * 1000


def test_a_root_that_does_not_follow_cannot_be_promoted(
    follower: FollowerRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(follower.log_dir.path)
    assert main(["promote", "--path", path]) == 0
    assert capsys.readouterr().out == (
        f"{path} no longer follows a:9092, and accepts writes: 1 partition with a new leader epoch\n"
    )
    assert main(["promote", "--path", path]) == 1
    assert "does not follow a leader" in capsys.readouterr().err


def test_a_former_leader_follows_the_promoted_root_and_is_cut_back_to_it(tmp_path: Path) -> None:
    rng = random.Random(4)
    leader = LeaderRoot(tmp_path / "leader", rng)
    leader.write(40)
    follower = FollowerRoot.create(tmp_path / "follower")
    follower.follow(leader, rng)
    agreed = follower.state().log_end_offset
    leader.write(10)  # what the follower never got
    promote(follower.root)
    served = Served(tmp_path / "follower")
    for _ in range(5):
        assert not isinstance(served.append(append(batch(at_ms=T0 + 9000), TOPIC)), KafkalogError)
    former = FollowerRoot(tmp_path / "leader")
    former.make(former.truncation(agreed))
    stored = split_batches(
        b"".join(each.read_bytes() for each in sorted((tmp_path / "follower" / f"{TOPIC}-0").glob("*.log")))
    )
    former.make(former.append([each for each in stored if each.base_offset >= agreed]))
    ours, theirs = former.state(), served.state(TOPIC)
    assert (ours.log_end_offset, ours.leader_epoch) == (theirs.log_end_offset, theirs.leader_epoch)
    logs = [
        b"".join(each.read_bytes() for each in sorted((tmp_path / name / f"{TOPIC}-0").glob("*.log")))
        for name in ("leader", "follower")
    ]
    assert logs[0] == logs[1]
    with pytest.raises(FollowingRootError):
        leader.append(append(batch(), TOPIC))  # a writer that still has the root open


def test_open_transactions_stay_open_and_can_be_ended_after_a_promotion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "follower"
    follower = FollowerRoot.create(path)
    data = batch((b"a",), producer=(9, 0, 0), is_transactional=True)
    follower.make(follower.append(data))
    assert follower.state().first_unstable_offset == 0
    promote(follower.root)
    assert (
        main(
            ["transactions", "--path", str(path), "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0"]
        )
        == 0
    )
    capsys.readouterr()
    assert follower.state().first_unstable_offset == -1
    assert follower.state().log_end_offset == 2


def test_following_ends_for_a_writer_that_was_opened_before(tmp_path: Path) -> None:
    follower = FollowerRoot.create(tmp_path / "follower")
    writer = follower.root.follower(follower.following_id, flush="os")
    again = begin_following(follower.root, leader="a:9092", cluster_id="the leader's", topics=".*")
    with pytest.raises(FollowingEndedError):
        writer.commit([])
    assert follower.root.follower(again, flush="os").commit([]) == []
