"""A follower whose leader and whose commits fail at random: in the end it has the leader's records, once, in order."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from builders.following_roots import check_equal, following, has_all, make_follower
from patience import wait_until

from pyspark_kafkalog.errors import CommitStateUnknownError, LeaderUnavailableError, LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, BatchHeader
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.leader import (
    EpochEnd,
    FetchOutcome,
    FetchPosition,
    LeaderAnswer,
    LeaderDescription,
    SelectsTopic,
)
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.commit.changes import FollowerChange, FollowerResult, PlanFollowerRecords
from pyspark_kafkalog.root.commit.committer import FollowerWriter
from pyspark_kafkalog.root.commit.cut_files import KeptRecords
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition


class FlakyLeader:
    """A leader that does not answer, moves, or sends damaged or cut answers, each at random."""

    def __init__(self, leader: RootLeader, seed: int, *, rate: float = 0.3) -> None:
        self._leader = leader
        self._rng = random.Random(seed)
        self._rate = rate

    @property
    def name(self) -> str:
        return self._leader.name

    def _may_fail(self) -> None:
        if self._rng.random() < self._rate:
            raise LeaderUnavailableError("the leader does not answer")

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        self._may_fail()
        return self._leader.describe(selects)

    def sources(self, partitions: Collection[TopicPartition]) -> Mapping[str, Sequence[TopicPartition]]:
        self._may_fail()
        found = self._leader.sources(partitions)
        return {name: [each for each in names if self._rng.random() < 0.9] for name, names in found.items()}

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        self._may_fail()
        found = self._leader.fetch(
            source, positions, wait_ms=20, max_bytes=max_bytes, partition_bytes=min(partition_bytes, 4000)
        )
        return [self._spoiled(each) for each in found if self._rng.random() < 0.9]

    def _spoiled(self, answer: LeaderAnswer) -> LeaderAnswer:
        of, fate = answer.topic_partition, self._rng.random()
        if fate < 0.1:
            return LeaderAnswer(topic_partition=of, outcome=FetchOutcome.LEADER_MOVED)
        if fate < 0.15:
            return LeaderAnswer(topic_partition=of, outcome=FetchOutcome.TOPIC_CHANGED)
        if fate < 0.2:
            return LeaderAnswer(topic_partition=of, outcome=FetchOutcome.FAILED, error="some error")
        if fate < 0.25:
            return LeaderAnswer(topic_partition=of, outcome=FetchOutcome.OUT_OF_RANGE)
        if fate < 0.35 and len(answer.data):
            return replace(answer, data=self._damaged(bytes(answer.data)))
        return answer

    def _damaged(self, data: bytes) -> bytes:
        """A part of the batches, or one flipped bit that the CRC of the first one covers."""
        if self._rng.random() < 0.5:
            return data[: self._rng.randrange(len(data))]
        at = self._rng.randrange(ATTRIBUTES_AT, BatchHeader.unpack(data).size_bytes)
        return data[:at] + bytes([data[at] ^ 1 << self._rng.randrange(8)]) + data[at + 1 :]

    def range_of(self, position: FetchPosition) -> tuple[int, int]:
        self._may_fail()
        return self._leader.range_of(position)

    def epoch_end(self, position: FetchPosition, epoch: int) -> EpochEnd | None:
        self._may_fail()
        return self._leader.epoch_end(position, epoch)

    def close(self) -> None:
        self._leader.close()


class FlakyWriter:
    """A writer whose commits fail at random, before or after they are made."""

    def __init__(self, writer: FollowerWriter, seed: int) -> None:
        self._writer = writer
        self._rng = random.Random(seed)

    def commit(
        self, changes: Sequence[FollowerChange], records: PlanFollowerRecords = lambda image: ()
    ) -> list[FollowerResult]:
        if self._rng.random() < 0.1:
            raise LogDirError("the disk is full")
        results = self._writer.commit(changes, records)
        if self._rng.random() < 0.1:
            raise CommitStateUnknownError("the answer was lost")
        return results

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafkalog.replication.partition_state._FIRST_DELAY_MS", 1)
    monkeypatch.setattr("pyspark_kafkalog.replication.partition_state._LONGEST_DELAY_MS", 20)
    monkeypatch.setattr("pyspark_kafkalog.replication.follower._REFRESH_AGAIN_S", 0.02)
    monkeypatch.setattr("pyspark_kafkalog.replication.follower._TURN_S", 0.02)


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"value": [f"value {number}" for number in range(first, first + count)]})


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 21))])
def test_follower_of_a_flaky_leader_ends_with_its_records(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = NativeRoot.follower

    def flaky(root: NativeRoot, following_id: str, *, flush: FlushMode, on_kept: KeptRecords) -> FollowerWriter:
        return FlakyWriter(made(root, following_id, flush=flush, on_kept=on_kept), seed)

    monkeypatch.setattr(NativeRoot, "follower", flaky)
    leader_dir = LogDir.create(tmp_path / "leader")
    leader_dir.create_topic("orders", 3)
    leader = FlakyLeader(RootLeader(open_root(tmp_path / "leader")), seed)
    with following(leader, tmp_path / "copy") as running:
        for number in range(12):
            leader_dir.append("orders", rows(50 * number, 50), partition=number % 3)
            if number == 6:
                leader_dir.create_topic("late", 1)
                leader_dir.append("late", rows(0, 10))
        wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
    check_equal(tmp_path / "leader", tmp_path / "copy")
    assert not {EventKind.CUT, EventKind.GAP, EventKind.PARTITION_STOPPED} & running.kinds()


class DeadLeader(FlakyLeader):
    """A leader whose records cannot be fetched."""

    def fetch(self, source: str, positions: Sequence[FetchPosition], **limits: int) -> list[LeaderAnswer]:
        raise LeaderUnavailableError("nobody answers")


@pytest.mark.full
@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_once_gives_up_when_nothing_moves(rate: float, tmp_path: Path) -> None:
    leader_dir = LogDir.create(tmp_path / "leader")
    leader_dir.append("orders", rows(0, 10))
    leader = DeadLeader(RootLeader(open_root(tmp_path / "leader")), 1, rate=rate)
    events: list[Event] = []
    follower = make_follower(leader, tmp_path / "copy", events, is_once=True, gives_up_after_s=0.5)
    with pytest.raises(LeaderUnavailableError, match="answer"):
        follower.run()
    assert EventKind.LEADER_UNAVAILABLE in {each.kind for each in events}
