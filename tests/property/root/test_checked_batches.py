"""Batches that are committed together have the same results, and leave the same logs, as if each was committed alone.

Streams of batches are drawn: with and without producers, repeated ones, gaps, older and newer epochs, of transactions,
several producers in a commit; the log rolls in the midst. One root gets them one by one, one as the units of a commit,
and others as batches that were checked before: one in a directory, one in a store.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders.leader_writers import T0, Served, append, batch
from builders.object_roots import StoredRoot
from tiers import SEED, examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.root.commit.checked_batches import CheckedBatches
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.commit.leader_plan import CheckedResult, PlacedBatches
from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
from pyspark_kafkalog.storage.log.leader_append import prepare_batches
from pyspark_kafkalog.storage.names import TopicPartition

TOPIC = "orders"
NOW_MS = T0 + 60_000
COMMITS = 12
COMMITS_OF_USUAL = 2  # the first ones, as an open transaction makes all that follow unusual
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "300"}


class Clients:
    """What producers send next; most of them go on where they are."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next: dict[tuple[int, int], tuple[int, int]] = {}  # by partition and producer: epoch, sequence
        self._last: dict[tuple[int, int], bytes] = {}
        self._count = 0

    def append(self, partition: int, *, is_usual: bool) -> LeaderAppend:
        rng = self._rng
        producer_id = rng.choice((1, 1, 1, 1, 2))
        epoch, sequence = self._next.get((partition, producer_id), (0, 0))
        values = [b"%d.%d" % (self._count, at) for at in range(rng.randint(1, 3))]
        self._count += 1
        kind = 0.5 if is_usual else rng.random()
        if kind < 0.1:
            return append(batch(values), TOPIC, partition)
        last = self._last.get((partition, producer_id))
        if kind < 0.15 and last is not None:
            return append(last, TOPIC, partition)
        if kind < 0.2:
            return append(batch(values, producer=(producer_id, epoch, sequence + 5)), TOPIC, partition)
        if kind < 0.23:
            epoch, sequence = epoch + 1, 0
        elif kind < 0.26 and epoch:
            return append(batch(values, producer=(producer_id, epoch - 1, sequence)), TOPIC, partition)
        data = batch(values, producer=(producer_id, epoch, sequence), is_transactional=kind > 0.98)
        self._next[partition, producer_id] = epoch, sequence + len(values)
        self._last[partition, producer_id] = data
        return append(data, TOPIC, partition)


def checked(appends: list[LeaderAppend], config: LogConfig, topic_id: str) -> CheckedBatches:
    """The batches of one partition, each in memory of its own."""
    prepared = [prepare_batches(each.data, config, now_ms=NOW_MS) for each in appends]
    batches = [each.batches for each in prepared if each is not None]
    return CheckedBatches(
        appends[0].topic_partition,
        topic_id,
        config,
        [NOW_MS] * len(batches),
        [each.data for each in batches],
        np.array([address_of(each.data) for each in batches]),
        np.concatenate([each.batches for each in batches]),
    )


def results_of_each(result: CheckedResult) -> list[object]:
    """The first and last offset and the log start of each batch, or the class of its error."""
    if isinstance(result, PlacedBatches):
        rows = zip(result.table["base_offset"].tolist(), result.table["last_offset"].tolist(), strict=True)
        return [(first, last, result.log_start_offset, False) for first, last in rows]
    return [comparable(each) for each in result]


def comparable(result: UnitResult) -> object:
    if not isinstance(result, tuple):
        return type(result)
    (of,) = result
    return of.first_offset, of.last_offset, of.log_start_offset, of.is_duplicate


class Stored:
    """The root in a store, served."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.stored = StoredRoot(settings)
        self.stored.place.clock.now_ms = NOW_MS
        root = self.stored.opened()
        self.root = root
        self.writer = LeaderWriter(ObjectEngine(root, root.objects, inline_bytes=300))

    def values(self, partition: int) -> list[bytes]:
        state = self.stored.image.partition(TOPIC, partition).state
        reader = self.stored.reader(TopicPartition(TOPIC, partition))
        batches = reader.read(state.log_start_offset, state.log_end_offset, schema=KAFKA_SCHEMA)
        return [value for each in batches for value in each.column("value").to_pylist()]


def served_at(path: Path, settings: dict[str, str]) -> Served:
    LogDir.open_or_create(path).create_topic(TOPIC, 2, settings)
    return Served(path, now_ms=NOW_MS)


@pytest.mark.parametrize("settings", [SMALL, {**SMALL, "message.timestamp.type": "LogAppendTime"}])
@pytest.mark.parametrize("run", range(examples(12)))
def test_batches_committed_together_have_the_results_of_those_committed_alone(
    run: int, settings: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED} {run}")
    clients, seen = Clients(rng), Counter[str]()
    alone, units, together = (served_at(tmp_path / name, settings) for name in ("alone", "units", "checked"))
    stored = Stored(settings)
    try:
        for commit in range(COMMITS):
            is_usual = commit < COMMITS_OF_USUAL
            groups = [[clients.append(each, is_usual=is_usual) for _ in range(rng.randint(1, 6))] for each in range(2)]
            expected = [
                [comparable(result) for each in group for result in alone.commit(CommitUnit.of(each))]
                for group in groups
            ]
            by_turns = sorted((at, which) for which, group in enumerate(groups) for at in range(len(group)))
            results_of_units = units.commit(*(CommitUnit.of(groups[which][at]) for at, which in by_turns))
            for (at, which), result in zip(by_turns, results_of_units, strict=True):
                assert comparable(result) == expected[which][at], f"seed {SEED}, run {run}"
            for writer, root in ((together.writer, together.root), (stored.writer, stored.root)):
                image = root.store.refresh()
                topic = image.topic(TOPIC)
                config = root.configs.of(image, topic)
                results = writer.commit_checked([checked(each, config, topic.topic_id) for each in groups])
                assert [results_of_each(each) for each in results] == expected, f"seed {SEED}, run {run}"
                seen.update("together" if isinstance(each, PlacedBatches) else "each" for each in results)
    finally:
        for each in (alone, units, together):
            each.writer.close()
    for partition in range(2):
        values = alone.values(TOPIC, partition)
        assert stored.values(partition) == values
        for each in (units, together):
            assert each.values(TOPIC, partition) == values
            assert each.state(TOPIC, partition) == alone.state(TOPIC, partition)
    is_create_time = "message.timestamp.type" not in settings
    assert seen["each"]
    assert bool(seen["together"]) is is_create_time
