"""A leader that is restored from a backup while it is followed: it goes on in the same epoch, with other records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders.followers import TOPIC, LeaderRoot
from builders.following_roots import batches_of, copy_once, following, has_all, has_offsets
from builders.leader_writers import append, batch
from builders.root_places import RootPlace
from patience import wait_until

from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.replication.leader import FetchPosition, LeaderAnswer
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.reads import root_partitions
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.names import TopicPartition

NAME = TopicPartition(TOPIC, 0)


class RestoredLeader(RootLeader):
    """Answers no fetch while it is `down`, and from then on with another root."""

    def __init__(self, place: Path) -> None:
        super().__init__(open_root(place))
        self.refused = 0
        self.is_down = False

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        if self.is_down:
            self.refused += 1
            raise LeaderUnavailableError("the leader is restored")
        found = super().fetch(source, positions, wait_ms=20, max_bytes=max_bytes, partition_bytes=partition_bytes)
        if self.is_down:
            raise LeaderUnavailableError("the leader was restored meanwhile")
        return found

    def restore(self, place: Path) -> None:
        """The fetch that is under way fails, too."""
        self.is_down = True
        wait_until(lambda: self.refused > 0)
        self._root = open_root(place)
        self._snapshots = root_partitions(self._root)
        self._epochs.clear()
        for each in self._batches.values():
            each.close()
        self.is_down = False


def test_other_records_in_the_same_epoch_and_offsets_are_noticed_while_running(tmp_path: Path) -> None:
    first = LeaderRoot(tmp_path / "leader", random.Random(1))
    first.write(10)
    restored = first.restored(tmp_path / "restored", random.Random(2))
    at = LogDir.open(tmp_path / "leader").partition(TOPIC, 0).log_end_offset
    first.append(append(batch([b"lost", b"lost"])))
    restored.append(append(batch([b"other", b"other"])))
    copy = tmp_path / "copy"
    leader = RestoredLeader(tmp_path / "leader")
    with following(leader, copy, may_cut=True) as running:
        wait_until(lambda: has_offsets(copy, {NAME: at + 2}))
        leader.restore(tmp_path / "restored")
        wait_until(lambda: EventKind.CUT in running.kinds())
        restored.write(3)
        wait_until(lambda: has_all(LogDir.open(tmp_path / "restored"), copy))
    (diverged,) = running.of_kind(EventKind.DIVERGED)
    assert (diverged.first_offset, diverged.end_offset) == (at, at + 2)
    ours, theirs = (batches_of(LogDir.open(place), NAME) for place in (copy, tmp_path / "restored"))
    assert ours == theirs
    leader.close()


@pytest.mark.parametrize(("batches_lost", "is_elected"), [(1, False), (2, False), (3, True)])
@pytest.mark.parametrize("may_cut", [False, True])
def test_log_ahead_of_a_leader_that_lost_its_last_batches_is_reported_and_cut_if_allowed(
    tmp_path: Path, root_place: RootPlace, may_cut: bool, batches_lost: int, is_elected: bool
) -> None:
    """`is_elected`: each lost batch is of an epoch of its own."""
    first = LeaderRoot(tmp_path / "leader", random.Random(1))
    first.write(10)
    first.restored(tmp_path / "restored", random.Random(2))
    at = LogDir.open(tmp_path / "leader").partition(TOPIC, 0).log_end_offset
    for _ in range(batches_lost):
        if is_elected:
            first.elect()
        first.append(append(batch([b"lost", b"lost"])))
    copy_once(tmp_path / "leader", root_place)
    events = copy_once(tmp_path / "restored", root_place, may_cut=may_cut)
    (diverged,) = [each for each in events if each.kind is EventKind.DIVERGED]
    assert (diverged.first_offset, diverged.end_offset) == (at, at + 2 * batches_lost)
    assert (EventKind.PARTITION_STOPPED in {each.kind for each in events}) is not may_cut
    assert LogDir.open(root_place).partition(TOPIC, 0).log_end_offset == (at if may_cut else at + 2 * batches_lost)


def test_leader_that_was_away_and_has_lost_nothing_is_followed_on(tmp_path: Path) -> None:
    first = LeaderRoot(tmp_path / "leader", random.Random(1))
    first.write(10)
    copy = tmp_path / "copy"
    leader = RestoredLeader(tmp_path / "leader")
    with following(leader, copy) as running:
        for _ in range(3):
            wait_until(lambda: has_all(LogDir.open(tmp_path / "leader"), copy))
            leader.refused = 0
            leader.restore(tmp_path / "leader")
            first.write(5)
        wait_until(lambda: has_all(LogDir.open(tmp_path / "leader"), copy))
    assert running.kinds() <= {EventKind.TOPIC_ADDED, EventKind.LEADER_UNAVAILABLE}
    leader.close()
