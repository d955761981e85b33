"""Waiting for the root's lock: it is found free between the commits of another server, and given up in time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata import root_lock
from pyspark_kafkalog.metadata.root_lock import acquire_flock

_ROUNDS = 200
#: What a thread that sleeps comes late.
_LATE_S = 0.00006


class Holder:
    """A lock that another process holds for `hold_s` and then leaves free for `gap_s`, again and again, and the time.

    `looks` counts the attempts to take it.
    """

    def __init__(self, hold_s: float, gap_s: float, rng: random.Random) -> None:
        self.now_s = 0.0
        self.looks = 0
        self._hold_s, self._gap_s, self._rng = hold_s, gap_s, rng
        self._free_from_s = rng.random() * hold_s
        self._free_until_s = self._free_from_s + gap_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + _LATE_S

    def flock(self, fd: int, operation: int) -> None:
        self.looks += 1
        while self.now_s >= self._free_until_s:
            self._free_from_s = self._free_until_s + self._hold_s * self._rng.uniform(0.8, 1.2)
            self._free_until_s = self._free_from_s + self._gap_s * self._rng.uniform(0.8, 1.2)
        if self.now_s < self._free_from_s:
            raise BlockingIOError


def waited(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> float:
    """The seconds that it takes to get the lock."""
    monkeypatch.setattr(root_lock.time, "monotonic", holder.monotonic)
    monkeypatch.setattr(root_lock.time, "sleep", holder.sleep)
    monkeypatch.setattr(root_lock.fcntl, "flock", holder.flock)
    acquire_flock(0, Path("lock"))
    monkeypatch.undo()
    return holder.now_s


@pytest.mark.parametrize(
    ("hold_s", "gap_s", "worst_s"),
    [(0.0008, 0.0005, 0.002), (0.0008, 0.0002, 0.02), (0.003, 0.0003, 0.02), (0.015, 0.001, 0.05)],
    ids=["flush os", "flush os, busy", "fast disk", "slow disk"],
)
def test_lock_is_got_soon_between_the_commits_of_another_server(
    monkeypatch: pytest.MonkeyPatch, hold_s: float, gap_s: float, worst_s: float
) -> None:
    rng = random.Random(1)
    times = [waited(Holder(hold_s, gap_s, rng), monkeypatch) for _ in range(_ROUNDS)]
    assert max(times) < worst_s


def test_lock_that_is_held_for_long_is_looked_at_less_and_less_and_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder = Holder(1_000_000, 1, random.Random(1))
    with pytest.raises(LogDirError, match="held by another writer for 60 s"):
        waited(holder, monkeypatch)
    assert 60 <= holder.now_s < 61
    assert holder.looks < 4_000
