"""The decisions about a transactional id against a plain model of it, over random requests; and what must always hold.

The model knows the producer id and epoch that may write, whether a transaction is open, its partitions, and the last
end. It is written from KIP-98, KIP-360 and KIP-890, not from the code.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from tiers import SEED, examples

from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.transactions.metadata import TV0, TV2, TransactionMetadata, record_key
from pyspark_kafkalog.root.transactions.states import TransactionStatus, parse_transaction_record
from pyspark_kafkalog.server.transactions.decisions import (
    Decision,
    NeedsProducerIdError,
    ProducerIdAndEpoch,
    add_partitions,
    end_transaction,
    finished,
    init_producer_id,
    sweep,
    verify_partitions,
)
from pyspark_kafkalog.storage.names import TopicPartition

PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
LAST_EPOCH = 32766
TIMEOUT_MS = 1000


@dataclass
class Model:
    """One transactional id."""

    producer: tuple[int, int] | None = None
    #: The epoch that the producer had before it got this one by itself, which it may name once more.
    before: tuple[int, int] | None = None
    open: set[TopicPartition] | None = None
    opened_ms: int = 0
    #: The producer id before this one, until the producer writes.
    replaced: int | None = None
    #: None: there was no end since the last InitProducerId.
    last_end: str | None = None
    #: The producer that ended the last transaction in version 2: it may repeat that request.
    ended_by: tuple[int, int] | None = None
    marked: list[tuple[str, tuple[int, int], frozenset[TopicPartition]]] = field(default_factory=list)

    def _bumped(self, new_id: int) -> tuple[int, int]:
        assert self.producer is not None
        producer_id, epoch = self.producer
        if epoch >= LAST_EPOCH:
            self.replaced = producer_id
            return new_id, 0
        self.replaced = None
        return producer_id, epoch + 1

    def _end(self, how: str, marker: tuple[int, int]) -> None:
        if self.open:
            self.marked.append((how, marker, frozenset(self.open)))
        self.open = None
        self.last_end = how

    def abort_and_fence(self) -> None:
        assert self.producer is not None
        producer_id, epoch = self.producer
        fenced = (producer_id, min(epoch + 1, LAST_EPOCH + 1))
        self._end("abort", fenced)
        self.before = self.ended_by = self.producer
        self.producer = fenced

    def init(self, expected: tuple[int, int] | None, new_id: int) -> str:
        if self.producer is None:
            self.producer = (new_id, 0)
            return "ok"
        if expected is not None and expected not in (self.producer, self.before):
            return "fenced"
        if expected is not None and self.open is not None and expected != self.producer:
            return "fenced"  # who writes has got the epoch after this one
        is_repeated = expected is not None and expected != self.producer
        if self.open is not None:
            self.abort_and_fence()
            is_repeated = expected is not None
        if is_repeated and self.producer[1] > LAST_EPOCH:
            self.producer = self._bumped(new_id)  # no epoch is left that it could be given
        if not is_repeated:
            self.before = self.producer if expected is not None else None
            self.producer = self._bumped(new_id)
        self.last_end = self.ended_by = None
        return "ok"

    def add(self, producer: tuple[int, int], added: set[TopicPartition], now_ms: int) -> str:
        if self.producer is None or producer[0] != self.producer[0]:
            return "mapping"
        if producer != self.producer:
            return "fenced"
        if self.open is None:
            self.open, self.opened_ms = set(), now_ms
            self.ended_by = None
        if self.before is not None and self.before[0] != producer[0]:
            self.before = None  # a producer that writes has got its new id
        self.open |= added
        self.replaced = None
        return "ok"

    def end(self, producer: tuple[int, int], how: str, is_v2: bool, new_id: int) -> str:
        if self.producer is None:
            return "mapping"
        if is_v2 and producer == self.ended_by and self.open is None:
            return "ok" if how == self.last_end else "state"
        if is_v2 and self.replaced == producer[0] and producer[1] >= LAST_EPOCH and self.producer[1] == 0:
            return "refused"  # the last epoch of the id before, which has not ended a transaction last
        if producer[0] != self.producer[0]:
            return "mapping"
        if producer != self.producer:
            return "fenced"
        if self.open is None:
            if not is_v2:
                return "ok" if how == self.last_end else "state"
            if how == "commit":
                return "state"
        if is_v2:
            self._end(how, (producer[0], min(producer[1] + 1, LAST_EPOCH + 1)))
            self.before = self.ended_by = producer
            self.producer = self._bumped(new_id)
        else:
            self._end(how, producer)
        return "ok"


CODES = {
    "ok": (ErrorCode.NONE,),
    "fenced": (ErrorCode.PRODUCER_FENCED,),
    "mapping": (ErrorCode.INVALID_PRODUCER_ID_MAPPING,),
    "refused": (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    "state": (ErrorCode.INVALID_TXN_STATE,),
}


class Compared:
    """The code's metadata and the model, through the same requests."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.model = Model()
        self.metadata: TransactionMetadata | None = None
        self.marked: list[tuple[str, tuple[int, int], frozenset[TopicPartition]]] = []
        self.known: list[tuple[int, int]] = [(7, 3)]
        self.now_ms = 0
        self.next_id = 10

    def step(self) -> None:
        self.now_ms += self.rng.choice((0, 1, 10, TIMEOUT_MS // 2))
        request = self.rng.choice((self.init, self.add, self.add, self.end, self.end, self.verify, self.time_out))
        request()
        if self.metadata is not None and self.rng.random() < 0.05 and self.metadata.producer_epoch < LAST_EPOCH - 3:
            self.jump()
        self.compare()

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def producer(self) -> tuple[int, int]:
        """Mostly the current one."""
        if self.model.producer is not None and self.rng.random() < 0.7:
            return self.model.producer
        return self.rng.choice([*self.known[-4:], (1, 0)])

    def apply(self, decision: Decision) -> ErrorCode:
        for markers in decision.markers:
            how = "commit" if markers.is_commit else "abort"
            self.marked.append((how, (markers.producer_id, markers.producer_epoch), markers.partitions))
        if decision.steps:
            assert decision.after == decision.steps[-1]
            self.metadata = decision.after
            for each in decision.steps:
                self.check_record(each)
        return decision.error

    def check_record(self, step: TransactionMetadata) -> None:
        """A server that reads the record knows the same, but for the epoch before."""
        parsed = parse_transaction_record(record_key("t"), step.value(), 0)
        assert parsed is not None
        assert parsed[1] is not None
        read = TransactionMetadata.of_record(parsed[1], None)
        assert read is not None
        for name in (
            "producer_id",
            "producer_epoch",
            "timeout_ms",
            "status",
            "partitions",
            "start_ms",
            "client_version",
        ):
            assert getattr(read, name) == getattr(step, name)

    def init(self) -> None:
        expected = None if self.rng.random() < 0.5 else self.producer()
        new_id = self.new_id()
        wanted = self.model.init(expected, new_id)
        decision = finished(
            self.metadata,
            lambda found: init_producer_id(
                found,
                transactional_id="t",
                timeout_ms=TIMEOUT_MS,
                expected=None if expected is None else ProducerIdAndEpoch(*expected),
                new_producer_id=new_id,
                now_ms=self.now_ms,
            ),
            now_ms=self.now_ms,
        )
        assert self.apply(decision) in CODES[wanted], (expected, wanted)

    def add(self) -> None:
        producer = self.producer()
        added = set(self.rng.sample(PARTITIONS, self.rng.randint(1, 2)))
        wanted = self.model.add(producer, added, self.now_ms)
        version = self.rng.choice((TV0, TV2))
        decision = add_partitions(
            self.metadata, ProducerIdAndEpoch(*producer), added, client_version=version, now_ms=self.now_ms
        )
        assert self.apply(decision) in CODES[wanted]

    def end(self) -> None:
        producer, how, is_v2 = self.producer(), self.rng.choice(("commit", "abort")), self.rng.random() < 0.6
        new_id = self.new_id()
        wanted = self.model.end(producer, how, is_v2, new_id)

        def decide(taken: int | None) -> Decision:
            return end_transaction(
                self.metadata,
                ProducerIdAndEpoch(*producer),
                is_commit=how == "commit",
                client_version=TV2 if is_v2 else TV0,
                new_producer_id=taken,
                now_ms=self.now_ms,
            )

        try:
            decision = decide(None)
        except NeedsProducerIdError:
            decision = decide(new_id)
        assert self.apply(decision) in CODES[wanted], (producer, how, is_v2, wanted)

    def verify(self) -> None:
        producer = self.producer()
        errors = verify_partitions(self.metadata, ProducerIdAndEpoch(*producer), PARTITIONS)
        for each, error in errors.items():
            if producer == self.model.producer:
                is_in = self.model.open is not None and each in self.model.open
                assert error is (ErrorCode.NONE if is_in else ErrorCode.TRANSACTION_ABORTABLE)
            else:
                assert error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)

    def time_out(self) -> None:
        if self.model.open is not None and self.model.opened_ms + TIMEOUT_MS < self.now_ms:
            self.model.abort_and_fence()
        self.apply(sweep(self.metadata, now_ms=self.now_ms))

    def jump(self) -> None:
        """As after thousands of transactions: few epochs are left."""
        assert self.metadata is not None
        self.metadata = replace(self.metadata, producer_epoch=LAST_EPOCH - 2, last_producer_epoch=-1)
        self.model.producer = (self.metadata.producer_id, LAST_EPOCH - 2)
        self.model.before = self.model.ended_by = None

    def compare(self) -> None:
        found, model = self.metadata, self.model
        if found is None or model.producer is None:
            assert found is model.producer is None
            return
        self.known.append(model.producer)
        assert (found.producer_id, found.producer_epoch) == model.producer
        assert (found.status is TransactionStatus.ONGOING) == (model.open is not None)
        assert found.partitions == (model.open or set())
        assert not found.is_prepared
        assert self.marked == model.marked


@pytest.mark.parametrize("number", range(examples(100)))
def test_decisions_equal_a_plain_model_over_random_requests(number: int) -> None:
    compared = Compared(random.Random(f"{SEED} {number}"))
    for _ in range(120):
        compared.step()
