"""A follower whose store fails, answers late or kills it at each of its calls ends with the log of its leader.

The leader has other batches from offset 6 on, so the follower appends, cuts, and appends again. After each error it
begins again from the committed state, as the follower's loop does. A kill is a new process, which takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from builders.followers import FollowerRoot
from builders.following_roots import batches_of
from builders.leader_writers import T0
from builders.object_roots import StoredRoot, named_objects
from fakes.faulty_store import Fault, FaultyStore
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import FollowerChange
from pyspark_kafkalog.root.commit.committer import FollowerWriter
from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
from pyspark_kafkalog.storage.names import TopicPartition

ATTEMPTS_MAX = 30


def at(offset: int, count: int, *, epoch: int) -> bytes:
    records = [
        Record(offset=each, timestamp_ms=T0 + each, key=b"k", value=b"%d of %d" % (each, epoch))
        for each in range(offset, offset + count)
    ]
    return encode_batch(records, leader_epoch=epoch)


FIRST = (at(0, 3, epoch=0), at(3, 3, epoch=0) + at(6, 4, epoch=0))
LOST = at(6, 4, epoch=0)
SECOND = (at(6, 2, epoch=2), at(8, 5, epoch=2))
OTHER = at(0, 2, epoch=1)
WANTED = FIRST[0] + at(3, 3, epoch=0) + SECOND[0] + SECOND[1]
#: What is appended at each log end.
APPENDS = {0: FIRST[0], 3: FIRST[1], 6: SECOND[0], 8: SECOND[1]}
END = 13
MOST_TELLING = (Fault.FAILS_AFTER, Fault.CRASH_AFTER)
OTHERS = [each for each in Fault if each not in MOST_TELLING]


class Run:
    """One follower over its life: the first client has the faults, those after a kill have none."""

    def __init__(self, stored: StoredRoot, inline_bytes: int, faults: Mapping[int, Fault]) -> None:
        self._stored = stored
        self._inline_bytes = inline_bytes
        self.client = FaultyStore(stored.place.bucket, faults=faults)
        self.kept: list[tuple[int, int]] = []

    def follow(self) -> None:
        """Follow to the end."""
        client, follower = self.client, None
        for _ in range(ATTEMPTS_MAX):
            try:
                if follower is None:
                    follower = self._open(client)
                while changes := _next_changes(follower):
                    results = follower.commit(*changes)
                    assert not any(isinstance(each, KafkalogError) for each in results), results
                return
            except Killed:
                client, follower = self._stored.place.client(), None
            except KafkalogError:
                pass  # it is tried again, from the state that is committed now
        raise AssertionError("the follower does not come to an end")

    def _open(self, client: FaultyStore) -> FollowerRoot:
        root = self._stored.opened(client)
        follower = FollowerRoot(Path("unused"), root=root, topic="orders")
        follower.writer = FollowerWriter(
            ObjectEngine(root, root.objects, following_id=follower.following_id, inline_bytes=self._inline_bytes),
            on_kept=lambda of, first, end, name: self.kept.append((first, end)),
        )
        return follower


def _next_changes(follower: FollowerRoot) -> list[FollowerChange]:
    """What is to do at the committed log ends."""
    end = follower.state().log_end_offset
    if end == END:
        return []
    other = [follower.append(OTHER, 1)] if follower.state(1).log_end_offset == 0 else []
    return [follower.append(APPENDS[end]) if end in APPENDS else follower.truncation(7), *other]


def check(stored: StoredRoot, run: Run) -> None:
    log_dir = LogDir(stored.opened())
    assert b"".join(batches_of(log_dir, TopicPartition("orders", 0))) == WANTED
    assert b"".join(batches_of(log_dir, TopicPartition("orders", 1))) == OTHER
    assert log_dir.read("orders", partition=0)["offset"].to_pylist() == list(range(END))
    kept = [stored.place.bucket.body(key) for key in stored.place.bucket.keys("diverged")]
    assert set(kept) == {LOST}
    assert set(run.kept) <= {(6, 10)}
    assert named_objects(stored.image) <= set(stored.place.bucket.keys())


@pytest.mark.parametrize("inline_bytes", [0, pytest.param(100_000, marks=pytest.mark.full)], ids=["objects", "inline"])
@pytest.mark.parametrize("fault", [*MOST_TELLING, *(pytest.param(each, marks=pytest.mark.full) for each in OTHERS)])
def test_follower_with_a_fault_at_each_call_of_its_store_ends_with_its_leaders_log(
    fault: Fault, inline_bytes: int
) -> None:
    stored = StoredRoot()
    stored.place.clock.now_ms = T0
    calm = Run(stored, inline_bytes, {})
    calm.follow()
    check(stored, calm)
    assert calm.kept == [(6, 10)]
    for number in range(len(calm.client.calls)):
        stored = StoredRoot()
        stored.place.clock.now_ms = T0
        run = Run(stored, inline_bytes, {number: fault})
        run.follow()
        check(stored, run)
        stored.place.bucket.land()
        check(stored, run)
