"""Servers and their clients on an object root, beside Spark's writers and all maintenance, under every fault.

A client sends each batch until it knows what became of it, to whichever server answers. A transaction is ended by a
unit that looks first whether it is still open, as a coordinator does. What must hold, beside what
simulations/object_root.py checks:

- an idempotent batch is in the log once, where the server said, and after the batches that its producer sent before
- the records of a transaction are read with read_committed if it was committed, and then in all its partitions
- the producers of each partition are those of a replay of its whole log
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pytest
from builders.leader_writers import append, batch, mark, marker
from simulations.object_commits import CRASHES, ERRORS
from simulations.object_root import Actor, Job, Simulation, one_process
from tiers import TIER, examples

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.commit.object_engine import ObjectEngine
from pyspark_kafkalog.root.object_producers import producers_of
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.log.producers import Producers, producer_batches
from pyspark_kafkalog.storage.names import TopicPartition

SERVED: Final = tuple(TopicPartition("served", number) for number in range(2))
#: In the future, so that no producer expires, and no record.
AT_MS: Final = 4_000_000_000_000
CONFIGS: Final = {
    "internal.segment.bytes": "1500",
    "index.interval.bytes": "200",
    "message.timestamp.after.max.ms": str(1 << 62),
    "retention.ms": "-1",
}


class Server(Actor):
    """A server process: the writer of its root, for one client at a time."""

    is_committing = False
    _writer: LeaderWriter | None = None
    _process: LogDir | None = None

    @property
    def writer(self) -> LeaderWriter:
        log_dir = self.log_dir
        if self._writer is None or self._process is not log_dir:
            inline_bytes = self.simulation.rng.choice((0, 400, 100_000))
            self._writer = LeaderWriter(ObjectEngine(self.root, self.root.objects, inline_bytes=inline_bytes))
            self._process = log_dir
        return self._writer


@dataclass
class Transaction:
    """A transaction of a client: what it has written, and whether it ends by a commit; None: it is not to end yet."""

    values: dict[TopicPartition, list[bytes]]
    is_commit: bool | None = None
    is_ended: bool = False


class Client(Actor):
    """A producer; with `is_transactional`, its batches are in transactions over both partitions."""

    def __init__(self, simulation: ServedSimulation, number: int, *, is_transactional: bool) -> None:
        self.servers = simulation.servers
        super().__init__(simulation, f"client{number}", host=simulation.servers[0])
        self.producer_id = number
        self.is_transactional = is_transactional
        self.sequences = dict.fromkeys(SERVED, 0)
        self.sent: dict[TopicPartition, list[bytes]] = {each: [] for each in SERVED}
        self.transactions: list[Transaction] = []
        self.pending: tuple[TopicPartition, list[bytes]] | None = None

    def must_wait(self) -> bool:
        server = self.host
        assert isinstance(server, Server)
        return server.is_committing or super().must_wait()

    def act(self) -> None:
        super().act()
        self.host = self.simulation.rng.choice(self.servers)

    def _act(self) -> None:
        server = self.host
        assert isinstance(server, Server)
        server.is_committing = True
        try:
            self._send(server)
        finally:
            server.is_committing = False

    def _send(self, server: Server) -> None:
        open_transaction = self.transactions[-1] if self.transactions and not self.transactions[-1].is_ended else None
        if open_transaction is not None and self.pending is None:
            if open_transaction.is_commit is None and self.simulation.rng.random() < 0.4:
                open_transaction.is_commit = self.simulation.rng.random() < 0.5
            if open_transaction.is_commit is not None:
                self._end(server, open_transaction)
                return
        if self.pending is None:
            self.pending = self._next_batch(open_transaction)
        of, values = self.pending
        data = batch(
            values,
            producer=(self.producer_id, 0, self.sequences[of]),
            is_transactional=self.is_transactional,
            at_ms=AT_MS,
        )
        (result,) = server.writer.commit([CommitUnit.of(append(data, of.topic, of.partition))])
        assert isinstance(result, tuple), result
        self._sent(server, of, values, result[0])

    def _next_batch(self, transaction: Transaction | None) -> tuple[TopicPartition, list[bytes]]:
        if self.is_transactional and transaction is None:
            self.transactions.append(Transaction({each: [] for each in SERVED}))
        of = self.simulation.rng.choice(SERVED)
        name = uuid.uuid4().hex[:8]
        return of, [f"{self.name} {name} {at}".encode() for at in range(self.simulation.rng.randint(1, 4))]

    def _sent(self, server: Server, of: TopicPartition, values: list[bytes], at: AppendedRange) -> None:
        assert at.last_offset - at.first_offset + 1 == len(values)
        topic_id = server.root.store.image.topic(of.topic).topic_id
        for offset, value in enumerate(values, at.first_offset):
            self.simulation.ledger.see(topic_id, of.partition, offset, value)
        self.simulation.counts["repeated batches" if at.is_duplicate else "batches"] += 1
        if self.simulation.rng.random() < 0.05:
            return  # the answer is lost on the way
        self.sequences[of] += len(values)
        self.sent[of] += values
        if self.is_transactional:
            self.transactions[-1].values[of] += values
        self.pending = None

    def _end(self, server: Server, transaction: Transaction) -> None:
        """End the transaction where it is open in the newest image; a coordinator finds that in its own topic."""
        data = marker(self.producer_id, 0, is_commit=bool(transaction.is_commit), at_ms=AT_MS)

        def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
            store = server.root.objects
            return [
                mark(data, each.topic, each.partition)
                for each in SERVED
                if self.producer_id in producers_of(image, store, each).open_transactions.values()
            ]

        (result,) = server.writer.commit([CommitUnit(appends=appends)])
        assert isinstance(result, tuple), result
        transaction.is_ended = True
        self.simulation.counts["committed" if transaction.is_commit else "aborted"] += 1


def merge_served(job: Job) -> Sequence[PartitionReport]:
    job.root.refresh()
    return merge_segments(job.root, partitions=[job.simulation.rng.choice(SERVED)])


class ServedSimulation(Simulation):
    """A simulation with two servers and six clients besides, and a topic that they alone write."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, *, is_calm: bool = False) -> None:
        super().__init__(seed, monkeypatch, is_calm=is_calm)
        self.open().create_topic(SERVED[0].topic, len(SERVED), CONFIGS)
        self.servers = [Server(self, f"server{number}") for number in range(2)]
        self.clients = [Client(self, number, is_transactional=number % 2 == 0) for number in range(1, 7)]
        self.merge_job = Job(self, "merge_served", merge_served)

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.6:
            self.act(self.rng.choice(self.clients))
        elif choice < 0.7:
            self.act(self.merge_job)
        else:
            super().step()

    def check(self) -> None:
        super().check()
        log_dir = self.open()
        for of in SERVED:
            self._check_partition(log_dir, of)

    def _check_partition(self, log_dir: LogDir, of: TopicPartition) -> None:
        partition = log_dir.partition(of.topic, of.partition)
        table = log_dir.read(of.topic, partition=of.partition)
        values = table["value"].to_pylist()
        for offset, value in zip(table["offset"].to_pylist(), values, strict=True):
            self.ledger.see(partition.topic_id or "", of.partition, offset, value)
        assert len(set(values)) == len(values)
        committed = log_dir.read(of.topic, partition=of.partition, isolation="read_committed")["value"].to_pylist()
        self._check_order(committed, values)
        for client in self.clients:
            pending = client.pending[1] if client.pending is not None and client.pending[0] == of else []
            own = [each for each in values if each.startswith(f"{client.name} ".encode())]
            assert own in (client.sent[of], client.sent[of] + pending)
            for transaction in client.transactions:
                self._check_transaction(transaction, of, values, set(committed))
        check_producers(log_dir.root.native(), of)

    def _check_order(self, committed: list[bytes], values: list[bytes]) -> None:
        places = {value: at for at, value in enumerate(values)}
        at = [places[value] for value in committed]
        assert at == sorted(at)

    def _check_transaction(
        self, transaction: Transaction, of: TopicPartition, values: list[bytes], committed: set[bytes]
    ) -> None:
        own = set(transaction.values[of])
        assert own <= set(values)
        if not transaction.is_commit:
            assert not own & committed, "records of a transaction that was not committed"

    def end(self) -> None:
        self.bucket.land()
        self._is_calm = True
        for client in self.clients:
            for _ in range(200):
                if client.pending is None and not (client.transactions and not client.transactions[-1].is_ended):
                    break
                client.act()
        super().end()
        log_dir = self.open()
        for of in SERVED:
            committed = log_dir.read(of.topic, partition=of.partition, isolation="read_committed")["value"].to_pylist()
            expected = set()
            for client in self.clients:
                if client.is_transactional:
                    for transaction in client.transactions:
                        assert transaction.is_ended
                        expected |= set(transaction.values[of]) if transaction.is_commit else set()
                else:
                    expected |= set(client.sent[of])
            assert set(committed) == expected
            assert log_dir.partition(of.topic, of.partition).last_stable_offset == self._end_of(log_dir, of)

    def _end_of(self, log_dir: LogDir, of: TopicPartition) -> int:
        return log_dir.partition(of.topic, of.partition).high_watermark


def check_producers(root: object, of: TopicPartition) -> None:
    """The producers by segments and commits are those of a replay of the whole log."""
    assert isinstance(root, ObjectRoot)
    found = producers_of(root.store.image, root.objects, of)
    replayed = Producers()
    for run in root.reader(of.topic, of.partition).runs(0, found.end_offset):
        replayed.replay(
            producer_batches(run.data, run.batches, data_position=run.position, file=""), lambda ended, stable: None
        )
    entries = {each: state.entry() for each, state in replayed.producers.items()}
    assert {each: state.entry() for each, state in found.producers.items()} == entries
    assert found.open_transactions == replayed.open_transactions


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures(one_process.__name__)]

__all__ = ["one_process"]

RUNS = examples(15)
STEPS = int(os.environ.get("KAFKALOG_SIMULATION_STEPS", "6000" if TIER == "full" else "600"))
EVENTS = (
    *(each.name for each in (*ERRORS, *CRASHES)),
    *("batches", "repeated batches", "committed", "aborted", "merge-segments", "writes", "killed", "slept"),
)
seen: Counter[str] = Counter()


@pytest.mark.parametrize("run", range(RUNS))
def test_each_batch_is_there_once_and_each_transaction_whole(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKALOG_SIMULATION_STEPS: how many steps in all runs; a failure prints its seed."""
    simulation = ServedSimulation(run + 1, monkeypatch)
    try:
        while simulation.steps < STEPS // RUNS:
            for _ in range(60):
                simulation.step()
            simulation.check()
        simulation.end()
    finally:
        print(f"seed {run + 1}: {simulation.steps} steps, {dict(simulation.counts)}")
        simulation.close()
    seen.update(simulation.counts)
    if run == RUNS - 1 and TIER == "full":
        assert not [each for each in EVENTS if not seen[each]]
