"""A follower of one partition against a model of its leader: elections, retention, compaction, deletions, restarts.

The leader is a list of batches with an end that moves back where an election is unclean. The follower is a list of
batches too, which does what replication/partition_state.py decides. Checked at each step: the follower has nothing that
the leader never had committed; at the end, with no more events: both have the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader
from pyspark_kafkalog.replication.leader import EpochEnd, FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.replication.partition_state import (
    Advance,
    Compare,
    Cut,
    PartitionState,
    Probe,
    StartOver,
    agreed_end_offset,
    epochs_with_records,
    resolve,
    take,
)
from pyspark_kafkalog.root.commit.changes import FollowerAppend
from pyspark_kafkalog.root.reads import end_of_epoch
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.names import TopicPartition

TOPIC_PARTITION = TopicPartition("orders", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
STEPS = 300


def epochs_in(batches: list[BatchHeader]) -> list[EpochEntry]:
    found: list[EpochEntry] = []
    for each in batches:
        if not found or each.leader_epoch > found[-1].epoch:
            found.append(EpochEntry(each.leader_epoch, each.base_offset))
    return found


def encoded(batches: list[BatchHeader]) -> bytes:
    return b"".join(each.pack() for each in batches)


@dataclass
class LeaderModel:
    """A partition at its leader. Batches at or above the high watermark are not committed. `crc` identifies a batch."""

    rng: random.Random
    batches: list[BatchHeader] = field(default_factory=list)
    epochs: list[EpochEntry] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    epoch: int = 0
    written: int = 0
    #: All batches that were ever committed, by their identity, and those that the cleaner has removed.
    committed: dict[int, BatchHeader] = field(default_factory=dict)
    cleaned: set[int] = field(default_factory=set)

    def append(self) -> None:
        self.written += 1
        records_count = self.rng.randint(1, 4)
        batch = BatchHeader(
            base_offset=self.log_end_offset,
            size_bytes=RECORD_BATCH_OVERHEAD_BYTES,
            leader_epoch=self.epoch,
            crc=self.written,
            last_offset_delta=records_count - 1,
            records_count=records_count,
        )
        if not self.epochs or self.epochs[-1].epoch < self.epoch:
            self.epochs.append(EpochEntry(self.epoch, batch.base_offset))
        self.batches.append(batch)
        self.log_end_offset = batch.next_offset

    def commit(self) -> None:
        """The high watermark rises to a batch boundary."""
        ends = [each.next_offset for each in self.batches if each.next_offset >= self.high_watermark]
        if ends:
            self.high_watermark = self.rng.choice(ends)
        for each in self.batches:
            if each.next_offset <= self.high_watermark:
                self.committed[each.crc] = each

    def elect(self, end_offset: int) -> None:
        """A replica leads that has the log up to `end_offset`. Its epoch may get no record."""
        if end_offset < self.log_end_offset:
            ends = [each.base_offset for each in self.batches if each.next_offset > end_offset]
            self.log_end_offset = max(self.log_start_offset, min(ends, default=end_offset))
            self.batches = [each for each in self.batches if each.next_offset <= self.log_end_offset]
            self.epochs = [each for each in self.epochs if each.start_offset < self.log_end_offset]
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self.epoch += self.rng.randint(1, 3)

    def elect_clean(self) -> None:
        self.elect(self.rng.randint(self.high_watermark, self.log_end_offset))

    def elect_unclean(self) -> None:
        self.elect(self.rng.randint(max(self.log_start_offset, self.high_watermark - 12), self.log_end_offset))

    def delete_records(self) -> None:
        """The log start rises, also into a batch; what is below it goes."""
        self.log_start_offset = self.rng.randint(self.log_start_offset, self.high_watermark)
        self.batches = [each for each in self.batches if each.next_offset > self.log_start_offset]
        kept = [each for each in self.epochs if each.start_offset > self.log_start_offset]
        older = [each for each in self.epochs if each.start_offset <= self.log_start_offset]
        self.epochs = [*(EpochEntry(each.epoch, self.log_start_offset) for each in older[-1:]), *kept]

    def clean(self) -> None:
        """Committed batches go, at random; the last one stays."""
        for each in self.batches[:-1]:
            if each.next_offset <= self.high_watermark and self.rng.random() < 0.3:
                self.cleaned.add(each.crc)
        self.batches = [each for each in self.batches if each.crc not in self.cleaned]

    def fetch(self, position: FetchPosition) -> LeaderAnswer:
        def answer(outcome: FetchOutcome, data: bytes = b"", diverging: EpochEnd | None = None) -> LeaderAnswer:
            return LeaderAnswer(
                topic_partition=TOPIC_PARTITION,
                outcome=outcome,
                data=data,
                high_watermark=self.high_watermark,
                log_start_offset=self.log_start_offset,
                diverging=diverging,
            )

        if position.last_epoch >= 0:
            end = self.epoch_end(position.last_epoch)
            if end is None:
                return answer(FetchOutcome.OUT_OF_RANGE)
            if end.epoch < position.last_epoch or end.end_offset < position.offset:
                return answer(FetchOutcome.DIVERGING, diverging=end)
        if not self.log_start_offset <= position.offset <= self.log_end_offset:
            return answer(FetchOutcome.OUT_OF_RANGE)
        found = [
            each
            for each in self.batches
            if each.next_offset > position.offset and each.next_offset <= self.high_watermark
        ]
        return answer(FetchOutcome.RECORDS, encoded(found[: self.rng.randint(1, 5)]))

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        epochs = list(self.epochs)
        if not epochs or epochs[-1].epoch < self.epoch:
            epochs.append(EpochEntry(self.epoch, self.log_end_offset))
        found = end_of_epoch(epochs, epoch, self.log_end_offset)
        return None if found.epoch < 0 else EpochEnd(found.epoch, found.start_offset)


@dataclass
class FollowerModel:
    """The follower's log, and what was reported of it."""

    may_cut: bool
    state: PartitionState = field(
        default_factory=lambda: PartitionState(
            topic_partition=TOPIC_PARTITION, topic_id=TOPIC_ID, log_start_offset=0, end_offset=0
        )
    )
    batches: list[BatchHeader] = field(default_factory=list)
    cut: list[BatchHeader] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    is_stopped: bool = False
    probe: Probe | None = None
    probes: int = 0

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        return epochs_with_records(epochs_in(self.batches), self.state.end_offset)

    def step(self, leader: LeaderModel) -> bool:
        """One fetch and what follows from it; whether the follower has all that is committed."""
        step = take(self.state, leader.fetch(self.state.position()))
        if isinstance(step, Advance):
            is_verified = self.state.unverified is not None or self.state.probe is not None
            self.state = step.state
            if step.change is not None:
                self.append(step.change)
            return not is_verified and step.change is None and self.state.end_offset >= leader.high_watermark
        assert isinstance(step, Compare), step
        search = None
        if self.probe is not None and step.is_same is not None:
            search = self.probe.search.after(self.probe.batch, is_same=step.is_same)
        had_probe, self.probe = self.probe is not None, None
        resolution = resolve(
            self.state,
            self.epochs,
            leader_start_offset=leader.log_start_offset,
            leader_high_watermark=leader.high_watermark,
            agreed_offset=agreed_end_offset(self.epochs, self.state.end_offset, leader.epoch_end),
            has_other_batch=step.has_other_batch,
            search=search,
            read=lambda offset: next((each for each in self.batches if each.next_offset > offset), None),
        )
        if isinstance(resolution, Probe):
            self.probe, self.probes = resolution, self.probes + 1
            self.state = replace(self.state, probe=resolution.batch)
            return False
        if had_probe:
            self.restart()
        if isinstance(resolution, Cut):
            self.truncate(resolution.end_offset)
        elif isinstance(resolution, StartOver):
            if resolution.start_offset > self.state.end_offset:
                self.gaps.append((self.state.end_offset, resolution.start_offset))
            self.batches = []
            self.restart(resolution.start_offset, resolution.start_offset)
        return self.is_stopped

    def append(self, change: FollowerAppend) -> None:
        data, position = bytes(change.data), 0
        while position < len(data):
            batch = BatchHeader.unpack(data, position)
            assert not self.batches or batch.base_offset > self.batches[-1].last_offset
            assert self.batches or batch.next_offset > change.expected_end_offset
            self.batches.append(batch)
            position += batch.size_bytes
        self.batches = [each for each in self.batches if each.next_offset > self.state.log_start_offset]

    def truncate(self, end_offset: int) -> None:
        if not self.may_cut:
            self.is_stopped = True
            return
        self.cut += [each for each in self.batches if each.next_offset > end_offset]
        self.batches = [each for each in self.batches if each.next_offset <= end_offset]
        self.restart(self.state.log_start_offset, max([each.next_offset for each in self.batches], default=-1))

    def restart(self, log_start_offset: int | None = None, end_offset: int | None = None) -> None:
        """The state as the follower's root has it, its last batch not compared yet."""
        start = self.state.log_start_offset if log_start_offset is None else log_start_offset
        end = max(self.state.end_offset if end_offset is None else end_offset, start)
        last = self.batches[-1] if self.batches and end > start else None
        self.state = PartitionState(
            topic_partition=TOPIC_PARTITION,
            topic_id=TOPIC_ID,
            log_start_offset=start,
            end_offset=end,
            last_epoch=-1 if last is None else last.leader_epoch,
            unverified=last,
        )


def run(seed: int, *, may_cut: bool, with_unclean: bool) -> tuple[LeaderModel, FollowerModel]:
    rng = random.Random(seed)
    leader, follower = LeaderModel(rng), FollowerModel(may_cut)
    events = [
        *[leader.append] * 6,
        *[leader.commit] * 4,
        leader.elect_clean,
        leader.delete_records,
        leader.clean,
        follower.restart,
        *([leader.elect_unclean] if with_unclean else []),
    ]
    for _ in range(STEPS):
        rng.choice(events)()
        for _ in range(rng.randint(0, 3)):
            if not follower.is_stopped:
                follower.step(leader)
        check(leader, follower)
    leader.append()
    leader.high_watermark = leader.log_end_offset
    leader.commit()
    steps = 0
    while not follower.is_stopped and not follower.step(leader):
        check(leader, follower)
        steps += 1
        assert steps < 2 * STEPS, "the follower does not catch up"
    return leader, follower


def check(leader: LeaderModel, follower: FollowerModel) -> None:
    """All that the follower has was committed at the leader, once, in order."""
    for each in follower.batches:
        assert leader.committed[each.crc] == each
    offsets = [offset for each in follower.batches for offset in (each.base_offset, each.last_offset)]
    assert offsets == sorted(offsets)
    assert len({each.crc for each in follower.batches}) == len(follower.batches)


def check_equal(leader: LeaderModel, follower: FollowerModel) -> None:
    """Both have the same from the later log start on, but for what the leader has cleaned since."""
    start = max(leader.log_start_offset, follower.state.log_start_offset)
    theirs = [each for each in leader.batches if each.next_offset > start]
    ours = [each for each in follower.batches if each.next_offset > start]
    assert [each for each in ours if each.crc not in leader.cleaned] == theirs
    assert follower.state.end_offset == leader.high_watermark


@pytest.mark.parametrize("seed", range(60))
def test_follower_that_may_cut_ends_with_the_leaders_records(seed: int) -> None:
    leader, follower = run(seed, may_cut=True, with_unclean=True)
    assert not follower.is_stopped
    check_equal(leader, follower)
    # What the leader has lost was cut, and nothing else: batches that the leader still has were fetched again.
    ours = {each.crc for each in follower.batches}
    kept = [each for each in follower.cut if each.crc in {each.crc for each in leader.batches}]
    assert all(each.crc in ours for each in kept)


@pytest.mark.parametrize("seed", range(60))
def test_follower_of_clean_elections_neither_stops_nor_cuts(seed: int) -> None:
    leader, follower = run(seed, may_cut=False, with_unclean=False)
    assert not follower.is_stopped
    assert not follower.cut
    check_equal(leader, follower)


@pytest.mark.parametrize("seed", range(60))
def test_follower_that_may_not_cut_keeps_all_records_and_stops(seed: int) -> None:
    leader, follower = run(seed, may_cut=False, with_unclean=True)
    assert not follower.cut
    if not follower.is_stopped:
        check_equal(leader, follower)


@pytest.mark.parametrize("seed", range(60))
def test_records_of_another_lineage_in_the_same_epoch_are_cut_and_no_others(seed: int) -> None:
    """The leader was restored from an older copy, and goes on in the epoch that it had."""
    rng = random.Random(seed)
    leader, follower = LeaderModel(rng), FollowerModel(may_cut=True)
    for _ in range(rng.randint(1, 80)):
        leader.append()
    leader.high_watermark = leader.log_end_offset
    leader.commit()
    if rng.random() < 0.3:
        leader.delete_records()
    while not follower.step(leader):
        pass
    epoch, before = leader.epoch, list(follower.batches)
    leader.elect(rng.randint(leader.log_start_offset, leader.log_end_offset))
    leader.epoch = epoch
    common = {each.crc for each in leader.batches}
    for _ in range(rng.randint(1, 80)):
        leader.append()
    leader.high_watermark = leader.log_end_offset
    leader.commit()
    follower.restart()
    for _ in range(10):
        if follower.step(leader) and follower.state.unverified is None:
            break
    while not follower.step(leader):
        check(leader, follower)
    check_equal(leader, follower)
    assert sorted(each.crc for each in follower.cut) == [each.crc for each in before if each.crc not in common]
    assert follower.probes <= 2 * len(before).bit_length() + 1


def test_gap_is_reported_where_the_leader_has_deleted_what_is_not_copied_yet() -> None:
    leader, follower = LeaderModel(random.Random(1)), FollowerModel(may_cut=False)
    for _ in range(4):
        leader.append()
    leader.high_watermark = leader.log_end_offset
    leader.commit()
    follower.step(leader)
    copied = follower.state.end_offset
    while leader.log_start_offset <= copied:
        leader.append()
        leader.high_watermark = leader.log_end_offset
        leader.commit()
        leader.log_start_offset = leader.log_end_offset - 1
        leader.batches = leader.batches[-1:]
    while not follower.step(leader):
        pass
    assert follower.gaps == [(copied, leader.log_start_offset)]
    check_equal(leader, follower)
