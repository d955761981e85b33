"""The writers of a server on a root in a directory and on one in a store, given the same units: the same results.

Units are drawn: plain, idempotent and transactional batches, repeated ones, gaps, older and newer epochs, markers, and
records of coordinators. On the store, merges and other servers take turns with the writer, and some batches are in
objects, others inside commits. After each commit the offsets, errors, last stable offsets and records agree, and the
producers of the store's partitions are those that a replay of all its batches finds.

Most commits to a directory are made in the usual way. Another directory gets the same units in the general way: the
results, the files of its logs and what its commits say are the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from builders.leader_writers import T0, Served, append, batch, mark, marker
from builders.object_roots import StoredRoot
from tiers import SEED, examples

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, PartitionStateRecord
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.commit.leader_plan import PlacedBatches, UsualAppend
from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
from pyspark_kafkalog.root.object_producers import PartitionProducers, producers_of
from pyspark_kafkalog.storage.log.producers import ProducerState, ProducerStateManager, producer_batches
from pyspark_kafkalog.storage.names import TopicPartition

TOPIC = "orders"
NOW_MS = T0 + 60_000
COMMITS = 40
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "300"}


class Producers:
    """What clients and coordinators send next; they know what became of all that they have sent in earlier commits."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # by partition and producer: epoch, next sequence
        self._sent: dict[tuple[int, int, int, int], bytes] = {}  # by these four
        self._count = 0

    def learn(self, partition: int, states: Iterable[ProducerState]) -> None:
        for each in states:
            self._known[partition, each.producer_id] = each.producer_epoch, each.last_sequence + 1

    def unit(self) -> CommitUnit:
        return CommitUnit.of(*(self._append() for _ in range(self._rng.choice((1, 1, 1, 2, 3)))))

    def usual(self, producer_id: int) -> CommitUnit:
        """A batch of an idempotent producer, or of none (-1), without a transaction."""
        partition = self._rng.randrange(2)
        epoch, sequence = self._known.get((partition, producer_id), (0, 0)) if producer_id > 0 else (-1, -1)
        self._count += 1
        values = [b"%d.%d" % (self._count, at) for at in range(self._rng.randint(1, 3))]
        kind = self._rng.random()
        if producer_id > 0 and kind < 0.1:
            sequence = max(sequence - len(values), 0)  # perhaps a batch again
        elif producer_id > 0:
            self._known[partition, producer_id] = epoch, sequence + len(values)
        return CommitUnit.of(append(batch(values, producer=(producer_id, epoch, sequence)), TOPIC, partition))

    def _append(self) -> LeaderAppend:
        rng = self._rng
        partition, producer_id = rng.randrange(2), rng.randrange(1, 5)
        epoch, sequence = self._known.get((partition, producer_id), (0, 0))
        self._count += 1
        values = [b"%d.%d" % (self._count, at) for at in range(rng.randint(1, 3))]
        kind = rng.random()
        if kind < 0.15:
            return append(batch(values), TOPIC, partition)
        if kind < 0.35:
            data = marker(
                producer_id,
                max(epoch - (rng.random() < 0.1), 0),
                is_commit=rng.random() < 0.5,
                coordinator_epoch=rng.choice((1,) * 9 + (0,)),
                at_ms=NOW_MS,
            )
            return mark(data, TOPIC, partition)
        last = self._sent.get((partition, producer_id, epoch, sequence))
        if kind < 0.45 and last is not None:
            return append(last, TOPIC, partition)
        if kind < 0.5:
            sequence += 7
        elif kind < 0.55:
            epoch, sequence = epoch + 1, 0
        elif kind < 0.6 and epoch:
            epoch -= 1
        is_transactional = (producer_id % 2 == 0) ^ (rng.random() < 0.03)
        data = batch(values, producer=(producer_id, epoch, sequence), is_transactional=is_transactional)
        self._sent[partition, producer_id, epoch, sequence + len(values)] = data
        if kind >= 0.6:
            self._known[partition, producer_id] = epoch, sequence + len(values)
        return append(data, TOPIC, partition)


class Store:
    """The root in a store: its servers, and its merges."""

    def __init__(self) -> None:
        self.stored = StoredRoot(SMALL)
        self.stored.place.clock.now_ms = NOW_MS
        self.servers = [self.server() for _ in range(2)]

    def server(self) -> LeaderWriter:
        root = self.stored.opened()
        return LeaderWriter(ObjectEngine(root, root.objects, inline_bytes=300))

    def merge(self, partition: int) -> None:
        stored = self.stored
        merge_partition(
            stored.metadata, stored.objects, stored.config, TopicPartition(TOPIC, partition), clock=stored.place.clock
        )

    def values(self, partition: int, *, committed: bool) -> list[bytes]:
        state = self.stored.image.partition(TOPIC, partition).state
        end = state.last_stable_offset if committed else state.log_end_offset
        reader = self.stored.reader(TopicPartition(TOPIC, partition))
        batches = reader.read(state.log_start_offset, end, schema=KAFKA_SCHEMA, committed=committed)
        return [value for each in batches for value in each.column("value").to_pylist()]

    def producers(self, partition: int) -> PartitionProducers:
        of = TopicPartition(TOPIC, partition)
        return producers_of(self.stored.image, self.stored.objects, of)

    def check_producers(self, partition: int, scratch: Path) -> None:
        """They are those of a replay of the whole log, as far as a snapshot remembers: the last batch of each."""
        of = TopicPartition(TOPIC, partition)
        found = self.producers(partition)
        replayed = ProducerStateManager(scratch, expiration_ms=1 << 60)
        for run in self.stored.reader(of).runs(0, found.end_offset):
            batches = producer_batches(run.data, run.batches, data_position=run.position, file="")
            replayed.replay(batches, lambda ended, stable: None)
        entries = {each: state.entry() for each, state in replayed.producers.items()}
        assert {each: state.entry() for each, state in found.producers.items()} == entries
        assert found.open_transactions == replayed.open_transactions


class Directories:
    """Roots in two directories: one whose commits are made in the usual way if that is possible, one without it."""

    def __init__(self, path: Path) -> None:
        self.paths = [path / "usual", path / "general"]
        for each in self.paths:
            LogDir.open_or_create(each).create_topic(TOPIC, 2, SMALL)
        self.usual, self.general = (Served(each, now_ms=NOW_MS) for each in self.paths)
        self.general.writer._engine.append_usual = lambda appends, is_at_once: None  # type: ignore[method-assign]
        self.made = Counter[bool]()
        made_usual = self.usual.writer._engine.append_usual

        def counted(appends: Sequence[UsualAppend], is_at_once: bool) -> list[PlacedBatches] | None:
            result = made_usual(appends, is_at_once=is_at_once)
            self.made[result is not None] += 1
            return result

        self.usual.writer._engine.append_usual = counted  # type: ignore[method-assign]

    def commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        usual, general = (each.commit(*units) for each in (self.usual, self.general))
        assert list(map(comparable, usual)) == list(map(comparable, general))
        return usual

    def check_same(self) -> None:
        """The files of both, which are closed, and their commits, but for ids of topics and of commits."""
        for each in (self.usual, self.general):
            each.writer.close()
        usual, general = (
            {
                str(file.relative_to(path)): file.read_bytes()
                for file in path.glob(f"{TOPIC}-*/*")
                if file.name != "partition.metadata"
            }
            for path in self.paths
        )
        assert usual == general
        assert said_by_commits(self.usual) == said_by_commits(self.general)


def said_by_commits(served: Served) -> list[object]:
    """Where each commit that appends begins, its size, and its records without the ids that they begin with."""
    return [
        (commit.base_offset, commit.size_bytes, [type(each).values_of(each)[1:] for each in commit.records])
        for commit in served.root.store.log.replay()
        if all(isinstance(each, (CommitRecord, PartitionStateRecord)) for each in commit.records)
    ]


@pytest.mark.parametrize("run", range(examples(25)))
def test_usual_way_of_a_commit_decides_and_writes_as_the_general_one(run: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} {run}")
    directories, producers = Directories(tmp_path), Producers(rng)
    others = rng.choice((0.0, 0.1, 0.5))  # with open transactions, behind which no commit is usual
    for _ in range(COMMITS):
        producer_id = rng.choice((-1, 9))
        if rng.random() < others:
            units = [producers.unit() for _ in range(rng.randint(1, 4))]
        else:  # what most commits have
            units = [producers.usual(producer_id) for _ in range(rng.randint(1, 4))]
        directories.commit(units)
        for partition in range(2):
            producers.learn(partition, directories.usual.producers(TOPIC, partition))
    directories.check_same()
    assert others or directories.made[True] > COMMITS // 3


def comparable(result: UnitResult) -> object:
    return result if isinstance(result, tuple) else type(result)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    LogDir.open_or_create(tmp_path / "root").create_topic(TOPIC, 2, SMALL)
    served = Served(tmp_path / "root", now_ms=NOW_MS)
    yield served
    served.writer.close()


@pytest.mark.parametrize("run", range(examples(25)))
def test_same_units_have_the_same_results_in_a_directory_and_in_a_store(
    run: int, served: Served, tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED} {run}")
    producers, store, seen = Producers(rng), Store(), Counter[str]()
    for _ in range(COMMITS):
        units = [producers.unit() for _ in range(rng.randint(1, 4))]
        in_store = rng.choice(store.servers).commit(units)
        in_directory = served.commit(*units)
        assert list(map(comparable, in_store)) == list(map(comparable, in_directory)), f"seed {SEED}, run {run}"
        for each in in_store:
            if isinstance(each, tuple):
                seen.update("duplicate" if appended.is_duplicate else "appended" for appended in each)
            else:
                seen[type(each).__name__] += 1
        action = rng.random()
        if action < 0.2:
            store.merge(rng.randrange(2))
        elif action < 0.3:
            store.servers[rng.randrange(2)] = store.server()
        for partition in range(2):
            producers.learn(partition, store.producers(partition).producers.values())
            ours = store.stored.image.partition(TOPIC, partition).state
            theirs = served.state(TOPIC, partition)
            assert (ours.log_end_offset, ours.first_unstable_offset) == (
                theirs.log_end_offset,
                theirs.first_unstable_offset,
            )
    for partition in range(2):
        store.check_producers(partition, tmp_path)
        for isolation in ("read_uncommitted", "read_committed"):
            ours_read = store.values(partition, committed=isolation == "read_committed")
            assert ours_read == served.values(TOPIC, partition, isolation=isolation), f"seed {SEED}, run {run}"
    print(dict(seen))
