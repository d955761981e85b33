"""A follower's log is that of its leader byte for byte: batches, indexes, snapshots, leader epochs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders.followers import TOPIC, FollowerRoot, LeaderRoot, files_of
from tiers import SEED, examples


def has_newest_epoch(leader: LeaderRoot, partition: int) -> bool:
    return leader.batches(partition)[-1].leader_epoch == leader.state(TOPIC, partition).leader_epoch


@pytest.mark.parametrize("seed", range(examples(6)))
def test_files_of_a_follower_equal_those_of_its_leader(seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} {seed}")
    leader = LeaderRoot(tmp_path / "leader", rng, partitions=2)
    follower = FollowerRoot.create(tmp_path / "follower", partitions=2)
    for _ in range(4):
        leader.write(rng.choice((5, 40)))
        if rng.random() < 0.6:
            leader.elect()
        if rng.random() < 0.6:
            follower.follow(leader, rng)
        if rng.random() < 0.4:
            follower.writer.close()
            follower = FollowerRoot(tmp_path / "follower")
    # A leader's checkpoint tells an epoch from its first batch on, a follower's as soon as the follower knows it.
    while not all(has_newest_epoch(leader, each) for each in range(2)):
        leader.write(1)
    follower.follow(leader, rng)
    for number in range(2):
        wanted, found = (files_of(tmp_path / name / f"{TOPIC}-{number}") for name in ("leader", "follower"))
        assert sorted(found) == sorted(wanted)
        assert [name for name in wanted if found[name] != wanted[name]] == []
        assert follower.state(number) == leader.state(TOPIC, number)
