"""A follower in an object store, beside merges: after any changes its log has the leader's batches byte for byte.

The leader is a root on a file system. Truncations fall into runs, segments and batches; gaps and log starts are those
of a compacted leader, as some batches are left out. Producers and open transactions are those of a root on a file
system that makes the same changes. Half of the appends are of batches that a task has put into the store.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.followers import FollowerRoot, LeaderRoot, StoredBatch
from builders.object_roots import StoredRoot
from tiers import SEED, examples

from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.root.commit.changes import FollowerAppend
from pyspark_kafkalog.root.commit.committer import FollowerWriter
from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
from pyspark_kafkalog.root.commit.runs import stage_batches
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_producers import producers_of
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.log.follower import check_batches
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition

OF = TopicPartition("orders", 0)
STEPS = 40


class Twins:
    """The same changes in an object store and on a file system; `batches` are what both must have."""

    def __init__(self, tmp_path: Path, rng: random.Random) -> None:
        self._rng = rng
        self.stored = StoredRoot({"internal.segment.bytes": "1500", "index.interval.bytes": "300"})
        self.plain = FollowerRoot.create(tmp_path / "plain")
        self.batches: list[StoredBatch] = []
        self.start = self.end = 0
        self.open()

    def open(self) -> None:
        root = self.stored.opened()
        self.follower = FollowerRoot(tmp_name(root), root=root, topic=OF.topic)
        inline_bytes = self._rng.choice((0, 400, 100_000))
        self.follower.writer = FollowerWriter(
            ObjectEngine(root, root.objects, following_id=self.follower.following_id, inline_bytes=inline_bytes)
        )

    def append(self, batches: list[StoredBatch], log_start_offset: int, leader_epoch: int) -> None:
        for each in (self.follower, self.plain):
            change = each.append(batches, log_start_offset=log_start_offset, leader_epoch=leader_epoch)
            continues = batches and batches[0].base_offset >= self.end
            if each is self.follower and continues and self._rng.random() < 0.5:
                change = self._staged(change)
            each.make(change)
        self.batches += batches
        self.end = batches[-1].next_offset if batches else self.end
        self.start = max(self.start, min(log_start_offset, self.end))

    def _staged(self, change: FollowerAppend) -> FollowerAppend:
        """The same append, whose batches a task has put into the store."""
        staged = stage_batches(
            self.stored.objects,
            change.topic_id,
            OF,
            self.end,
            check_batches(change.raw),
            planned_at=self.stored.image.next_offset,
        )
        return replace(change, data=staged)

    def truncate(self, offset: int) -> None:
        (state,) = self.follower.make(self.follower.truncation(offset))
        self.plain.make(self.plain.truncation(offset))
        self.batches = [each for each in self.batches if each.next_offset <= offset]
        kept = [each for each in self.batches if each.next_offset > self.start]
        # Between the last batch and the offset there may be a gap, of which a log in a store keeps nothing.
        wanted = kept[-1].next_offset if kept else min(offset, self.start)
        assert state.log_end_offset <= max(offset, wanted)
        assert state.log_end_offset >= wanted or not kept
        if not kept:
            self.batches, self.start = [], state.log_start_offset
        self.end = state.log_end_offset
        if self.plain.state().log_end_offset != self.end:
            self.plain.make(self.plain.truncation(self.end))

    def start_at(self, offset: int) -> None:
        for each in (self.follower, self.plain):
            each.make(each.start_at(offset))
        self.batches, self.start, self.end = [], offset, offset

    def merge(self) -> None:
        stored = self.stored
        merge_partition(stored.metadata, stored.objects, stored.config, OF, clock=stored.place.clock)

    def check(self) -> None:
        image, plain = self.stored.image, self.plain.state()
        state = image.partition(OF.topic, OF.partition).state
        assert (state.log_start_offset, state.log_end_offset) == (self.start, self.end)
        assert (plain.log_start_offset, plain.log_end_offset) == (self.start, self.end)
        assert state.leader_epoch == plain.leader_epoch
        if not any(0 <= each.first_unstable_offset < self.start for each in (state, plain)):
            # Of a transaction all of whose records are below the log start, one of the two may know nothing any more.
            assert state.first_unstable_offset == plain.first_unstable_offset
            opened = producers_of(image, self.stored.objects, OF).open_transactions
            assert min((each for each in opened if each >= self.start), default=-1) == plain.first_unstable_offset
        wanted = [each for each in self.batches if each.next_offset > self.start]
        assert self._read(image) == b"".join(each.data for each in wanted)
        restored = ImageDelta(MetadataImage(), commit_offset=image.next_offset, timestamp_ms=1, is_snapshot=True)
        restored.replay(image_records(image))
        assert restored.build(image.next_offset).topics == image.topics

    def _read(self, image: MetadataImage) -> bytes:
        log = ObjectLog.of(image, OF)
        reader = LogReader(log.extents(self.stored.objects, lambda: log), OF)
        pieces = []
        for run in reader.runs(self.start, self.end):
            rows = run.batches[(run.batches["last_offset"] >= self.start) & (run.batches["base_offset"] < self.end)]
            for row in rows:
                at = int(row["position"]) - run.position
                pieces.append(np.array(run.data[at : at + int(row["size_bytes"])]).tobytes())
        return b"".join(pieces)


def tmp_name(root: ObjectRoot) -> Path:
    return Path(str(root.path).replace("/", "_"))


@pytest.mark.parametrize("seed", range(examples(2)))
def test_log_in_a_store_has_the_batches_of_the_leader(seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} {seed}")
    leader = LeaderRoot(tmp_path / "leader", rng)
    for _ in range(6):
        leader.write(40)
        leader.elect()
    # What compaction has removed is missing: gaps inside and between what is appended.
    source = [each for each in leader.batches() if rng.random() > 0.1 or _ends_transaction(each)]
    twins = Twins(tmp_path, rng)
    for _ in range(STEPS):
        kind = rng.random()
        left = [each for each in source if each.base_offset >= twins.end]
        if kind < 0.55 and left:
            count = rng.choice((1, 2, 5, 20))
            log_start = rng.choice((-1, -1, twins.start, rng.randrange(twins.start, twins.end + 1)))
            twins.append(left[:count], log_start, rng.choice((-1, left[0].leader_epoch)))
        elif kind < 0.7 and twins.end:
            twins.truncate(rng.randrange(max(twins.end - 60, 0), twins.end + 1))
        elif kind < 0.75:
            twins.start_at(source[rng.randrange(len(source))].base_offset)
        elif kind < 0.92:
            twins.merge()
        else:
            twins.open()
        twins.check()


def _ends_transaction(batch: StoredBatch) -> bool:
    return batch.data[22] & 0x20 != 0
