"""Two server processes, writes of Spark's kind and killed writers on one partition, against a plain model of Kafka."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from builders.controlled import open_or_create_log_dir
from builders.leader_writers import T0, Served, append, batch, mark, marker
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiers import examples

from pyspark_kafkalog.errors import (
    InvalidTransactionStateError,
    KafkalogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit

_PRODUCERS = st.sampled_from([1, 2])
_EPOCHS = st.integers(0, 2)
_COUNTS = st.integers(1, 2)


@dataclass
class Producer:
    """What the log knows of a producer; `batches` are first and last sequence and first offset, of its epoch."""

    epoch: int = -1
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    open_since: int | None = None

    @property
    def next_sequence(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else 0


@dataclass
class Model:
    """The partition; `rows` are offset and value, and the first offset of the transaction or None."""

    end: int = 0
    rows: list[tuple[int, bytes, int | None]] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: set[tuple[int, int]] = field(default_factory=set)

    def add(
        self, values: list[bytes], producer_id: int, epoch: int, sequence: int, *, is_transactional: bool
    ) -> tuple[int, bool] | type[KafkalogError]:
        """The first offset that a batch gets, and whether it is a duplicate; or the error."""
        producer = self.producers.get(producer_id, Producer())
        last = sequence + len(values) - 1
        if epoch == producer.epoch:
            for first, known_last, offset in producer.batches[-5:]:
                if (first, known_last) == (sequence, last):
                    return offset, True
        if epoch < producer.epoch:
            return ProducerFencedError
        expected = producer.next_sequence if epoch == producer.epoch else 0
        if producer.epoch >= 0 and sequence != expected:
            return OutOfOrderSequenceError
        if producer.open_since is not None and not is_transactional:
            return InvalidTransactionStateError
        first_offset = self.end
        kept = producer.batches if epoch == producer.epoch else []
        open_since = producer.open_since
        if is_transactional and open_since is None:
            open_since = first_offset
        self.producers[producer_id] = Producer(epoch, [*kept, (sequence, last, first_offset)], open_since)
        self.plain(values, (producer_id, open_since) if is_transactional else None)
        return first_offset, False

    def plain(self, values: list[bytes], transaction: tuple[int, int | None] | None = None) -> None:
        self.rows += [
            (self.end + at, value, None if transaction is None else transaction[1]) for at, value in enumerate(values)
        ]
        self.end += len(values)

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool) -> int | type[KafkalogError]:
        producer = self.producers.get(producer_id, Producer())
        if epoch < producer.epoch:
            return ProducerFencedError
        if producer.open_since is not None and not is_commit:
            self.aborted.add((producer_id, producer.open_since))
        kept = producer.batches if epoch == producer.epoch else []
        self.producers[producer_id] = Producer(epoch, kept, None)
        self.end += 1
        return self.end - 1

    @property
    def last_stable_offset(self) -> int:
        return min(
            (each.open_since for each in self.producers.values() if each.open_since is not None), default=self.end
        )

    @property
    def committed(self) -> list[bytes]:
        gone = {first for _, first in self.aborted}
        return [value for offset, value, first in self.rows if offset < self.last_stable_offset and first not in gone]


class TwoServers(RuleBasedStateMachine):
    """Any of two servers takes any append."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="kafkalog-leader-"))
        self.log_dir = open_or_create_log_dir(self.home / "root", clock=lambda: T0)
        self.log_dir.create_topic("a", 1, {"index.interval.bytes": "100"})
        self.servers = [Served(self.home / "root") for _ in range(2)]
        self.model = Model()
        self.count = 0

    def teardown(self) -> None:
        for server in self.servers:
            server.writer.close()
        shutil.rmtree(self.home)

    def values(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%d" % (self.count - count + at) for at in range(count)]

    @rule(
        server=st.integers(0, 1),
        producer_id=_PRODUCERS,
        epoch=_EPOCHS,
        shift=st.sampled_from([0, 0, 0, 0, 1, -1, -2]),
        counts=st.lists(_COUNTS, min_size=1, max_size=3),
        is_transactional=st.booleans(),
    )
    def produce(
        self, server: int, producer_id: int, epoch: int, shift: int, counts: list[int], is_transactional: bool
    ) -> None:
        """Some batches, each a unit of one commit, from near the producer's next sequence on."""
        known = self.model.producers.get(producer_id, Producer())
        sequence = max(0, (known.next_sequence if epoch == known.epoch else 0) + shift)
        units, expected = [], []
        for count in counts:
            values = self.values(count)
            data = batch(values, producer=(producer_id, epoch, sequence), is_transactional=is_transactional)
            units.append(CommitUnit.of(append(data)))
            expected.append(self.model.add(values, producer_id, epoch, sequence, is_transactional=is_transactional))
            sequence += count
        for result, outcome in zip(self.servers[server].commit(*units), expected, strict=True):
            if isinstance(outcome, type):
                assert type(result) is outcome, (result, outcome)
            else:
                assert not isinstance(result, KafkalogError), result
                assert (result[0].first_offset, result[0].is_duplicate) == outcome

    @rule(server=st.integers(0, 1), producer_id=_PRODUCERS, epoch=_EPOCHS, at=st.integers(0, 9))
    def retry(self, server: int, producer_id: int, epoch: int, at: int) -> None:
        """One of the last batches of the producer once more."""
        known = self.model.producers.get(producer_id, Producer())
        if not known.batches:
            return
        first, last, _ = known.batches[-1 - at % len(known.batches[-6:])]
        values = [b"retry"] * (last - first + 1)
        is_transactional = known.open_since is not None
        outcome = self.model.add(values, producer_id, known.epoch, first, is_transactional=is_transactional)
        data = batch(values, producer=(producer_id, known.epoch, first), is_transactional=is_transactional)
        result = self.servers[server].append(append(data))
        if isinstance(outcome, type):
            assert type(result) is outcome
        else:
            assert isinstance(result, AppendedRange), result
            assert (result.first_offset, result.is_duplicate) == outcome

    @rule(server=st.integers(0, 1), producer_id=_PRODUCERS, epoch=_EPOCHS, is_commit=st.booleans())
    def end_transaction(self, server: int, producer_id: int, epoch: int, is_commit: bool) -> None:
        outcome = self.model.mark(producer_id, epoch, is_commit=is_commit)
        result = self.servers[server].append(mark(marker(producer_id, epoch, is_commit=is_commit)))
        if isinstance(outcome, type):
            assert type(result) is outcome
        else:
            assert isinstance(result, AppendedRange), result
            assert result.first_offset == outcome

    @rule(count=_COUNTS)
    def write(self, count: int) -> None:
        """A write without a producer, as of a Spark job."""
        values = self.values(count)
        self.log_dir.append("a", pa.table({"value": values}), partition=0)
        self.model.plain(values)

    @rule(server=st.integers(0, 1))
    def restart(self, server: int) -> None:
        self.servers[server].writer.close()
        self.servers[server] = Served(self.home / "root")

    @rule(tail=st.binary(min_size=1, max_size=80))
    def kill_a_writer(self, tail: bytes) -> None:
        """Somebody wrote a part of its batches and was killed."""
        with (self.home / "root" / "a-0" / f"{0:020}.log").open("ab") as file:
            file.write(tail)

    @precondition(lambda self: self.model.end > 0)
    @rule()
    def kill_a_writer_that_rolled(self) -> None:
        (self.home / "root" / "a-0" / f"{self.model.end:020}.log").write_bytes(b"begun")

    @invariant()
    def readers_see_what_was_committed(self) -> None:
        self.log_dir.refresh()
        partition = self.log_dir.partition("a", 0)
        assert partition.high_watermark == self.model.end
        assert self.log_dir.last_stable_offset("a", 0) == self.model.last_stable_offset
        rows = self.log_dir.read("a", partition=0)
        assert list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True)) == [
            (offset, value) for offset, value, _ in self.model.rows
        ]
        committed = self.log_dir.read("a", partition=0, isolation="read_committed")
        assert committed["value"].to_pylist() == self.model.committed


TestTwoServers = TwoServers.TestCase
TestTwoServers.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
