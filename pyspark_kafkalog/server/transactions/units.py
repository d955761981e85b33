"""From a decision to what is committed: the records of `__transaction_state` and the markers, in one unit.

A unit decides when the writer asks it for its appends, on the newest image:

    replay      the state of the id up to the log end in that image (state_log)
    decide      the state machine (decisions)
    append      its records to the id's partition of `__transaction_state`, the markers to all partitions of the
                transaction, those of `__consumer_offsets` included, and what else belongs to the unit

So any number of servers may decide about one id at the same time: each commit is built on all commits before it, and
the loser of a race decides again.

One commit takes many units, of which the image shows nothing yet. Two units of one id in a commit:

    units that join (Produce, offsets, partitions added)    each writes all partitions that units before it have
                                                            added, as one before it may be refused by the writer
    after a unit that ends or begins (EndTxn, InitProducerId)   CONCURRENT_TRANSACTIONS, and the client asks again

A partition that was added for a batch that was refused later gets a marker and nothing else, as it does in Kafka.

A marker can be too old for a partition. The unit is then made again with the last epochs of the producer there
(`MarkerFloor` in root/transactions/end_transaction.py).

`TransactionAdmission` lets the batches of transactional producers in: each is appended in a unit that checks its
transaction.

    Produce up to version 11    the partition must have been added (AddPartitionsToTxn)
    Produce 12 and later        it is added by the same unit, which begins the transaction with the first partition

Whether the batch's producer and sequence fit the log is checked by the writer, as for every batch. A producer that is
fenced by its transactional id gets INVALID_PRODUCER_EPOCH here, not PRODUCER_FENCED, so that it can abort and continue.

Source of the rules: kafka.server.ReplicaManager.handleProduceAppend, and AddPartitionsToTxnManager, KIP-890.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.offset_records import group_partition
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.record.header import parse_header
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.transactions.end_transaction import MarkerFloors, marker_appends, state_append
from pyspark_kafkalog.root.transactions.metadata import TV2, TransactionMetadata
from pyspark_kafkalog.root.transactions.state_log import StateLog
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.transactions.decisions import (
    Decide,
    Decision,
    ProducerIdAndEpoch,
    add_partitions,
    finished,
    verify_partitions,
)
from pyspark_kafkalog.storage.log.leader_append import REQUEST
from pyspark_kafkalog.storage.names import TopicPartition

#: Makes the decision from the id's metadata and the time in ms.
DecideAt: TypeAlias = Callable[[TransactionMetadata | None, int], Decision]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a unit of the commit that is being made has decided about an id."""

    unit: object
    after: TransactionMetadata
    is_joining: bool


class PlannedUnits:
    """The decisions of the units of one commit, by id. The image on which it is built identifies the commit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._image_offset = -1
        self._by_id: dict[str, list[_Planned]] = {}

    def before(self, image: MetadataImage, transactional_id: str, unit: object) -> _Planned | None:
        """The last decision about the id that a unit before `unit` has made."""
        with self._lock:
            if image.next_offset != self._image_offset:
                self._image_offset = image.next_offset
                self._by_id.clear()
            planned = self._by_id.get(transactional_id)
            if planned is None:
                return None
            # A unit that is asked again is part of a new attempt: what it and later ones decided counts no more.
            for at, each in enumerate(planned):
                if each.unit is unit:
                    del planned[at:]
                    break
            return planned[-1] if planned else None

    def add(self, planned: _Planned) -> None:
        with self._lock:
            self._by_id.setdefault(planned.after.transactional_id, []).append(planned)

    def forget(self, transactional_id: str, unit: object) -> None:
        """The result of the unit is known: the image shows it, or it was refused."""
        with self._lock:
            planned = self._by_id.get(transactional_id)
            if planned is not None:
                self._by_id[transactional_id] = [each for each in planned if each.unit is not unit]


class StateLogs:
    """All partitions of `__transaction_state`, each read on first use, and the units of the commit being made."""

    def __init__(self, root: NativeRoot, clock: Callable[[], int]) -> None:
        self.root = root
        self.clock = clock
        self.planned = PlannedUnits()
        self._lock = threading.Lock()
        self._logs: dict[int, StateLog] = {}

    def log(self, partition: int) -> StateLog:
        with self._lock:
            found = self._logs.get(partition)
            if found is None:
                found = self._logs[partition] = StateLog(self.root, partition)
            return found

    def of(self, image: MetadataImage, transactional_id: str) -> StateLog | None:
        """The log of the id; None if `__transaction_state` does not exist."""
        topic = image.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return None
        return self.log(group_partition(transactional_id, len(topic.partitions)))

    def find(self, image: MetadataImage, transactional_id: str) -> TransactionMetadata | None:
        """The id as of `image`. Raises as StateLog.find."""
        log = self.of(image, transactional_id)
        return None if log is None else log.find(image, transactional_id)


class OutdatedDecisionError(KafkalogError):
    """What a unit was made for does not hold any more in the image of its commit: it has to be decided again."""


@dataclass(slots=True, kw_only=True, eq=False)
class TransactionUnit:
    """A unit of one transactional id: what `decide` makes of its state, then `further` appends.

    `is_joining`: it adds to a transaction; else it begins or ends one. `when_concurrent`: the error after a unit that
    does, in the same commit. `decision` is the last one that was made. `holds_in`: whether what else the unit was made
    for still holds in an image.
    """

    logs: StateLogs
    transactional_id: str
    decide: DecideAt
    is_joining: bool = False
    when_concurrent: ErrorCode = ErrorCode.CONCURRENT_TRANSACTIONS
    further: Sequence[LeaderAppend] = ()
    floors: MarkerFloors = field(default_factory=dict)
    holds_in: Callable[[MetadataImage], bool] = lambda image: True
    decision: Decision = field(default_factory=Decision)
    _topic_id: str = ""

    def commit_unit(self) -> CommitUnit:
        return CommitUnit(appends=self.appends, size_bytes=sum(len(each.data) for each in self.further))

    def appends(self, image: MetadataImage) -> Sequence[LeaderAppend]:
        """Decide on `image`.

        Raises RequestError if there is nothing to write but an error to tell, and OutdatedDecisionError.
        """
        if not self.holds_in(image):
            raise OutdatedDecisionError("the group has changed since its member was looked at")
        log = self.logs.of(image, self.transactional_id)
        metadata = None if log is None else log.find(image, self.transactional_id)
        before = self.logs.planned.before(image, self.transactional_id, self)
        if before is not None:
            if not before.is_joining:
                raise RequestError(self.when_concurrent)
            metadata = before.after
        now_ms = self.logs.clock()
        decide: Decide = lambda found: self.decide(found, now_ms)  # noqa: E731
        self.decision = decision = finished(metadata, decide, now_ms=now_ms)
        steps = decision.steps
        if not steps:
            if decision.error is not ErrorCode.NONE:
                raise RequestError(decision.error)
            if before is not None and decision.after is not None:
                steps = (decision.after,)  # the unit that wrote it may be refused
        if not steps:
            return self.further
        assert log is not None
        assert decision.after is not None
        self._topic_id = image.topic(TRANSACTION_STATE_TOPIC).topic_id
        self.logs.planned.add(_Planned(self, decision.after, self.is_joining and not decision.markers))
        return (
            state_append(log.topic_partition, steps, topic_id=self._topic_id, now_ms=now_ms),
            *marker_appends(image, log.topic_partition, decision.markers, self.floors, now_ms=now_ms),
            *self.further,
        )

    def settled(self, appended: Sequence[AppendedRange] | None) -> None:
        """The unit was committed with these ranges, or refused (None)."""
        self.logs.planned.forget(self.transactional_id, self)
        if appended and self.decision.steps and self._topic_id:
            log = self.logs.of(self.logs.root.store.image, self.transactional_id)
            if log is not None:
                log.appended(self._topic_id, appended[0].first_offset, self.decision.steps)


_ADDS_PARTITIONS_FROM: Final = 12
_ABORTABLE_FROM: Final = 11
_FENCED: Final[Mapping[ErrorCode, ErrorCode]] = MappingProxyType(
    {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
)
_FENCED_BEFORE_ABORTABLE: Final[Mapping[ErrorCode, ErrorCode]] = MappingProxyType(
    {**_FENCED, ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE}
)


class TransactionAdmission:
    """Makes units of transactional batches."""

    def __init__(self, logs: StateLogs) -> None:
        self._logs = logs

    def produce_unit(self, request_version: int, transactional_id: str, append: LeaderAppend) -> CommitUnit:
        """The unit of one partition's batch. It is refused with RequestError, or by the writer.

        Raises CorruptRecordError for a damaged header.
        """
        header = parse_header(append.data, 0, file=REQUEST, file_position=0)
        is_v2 = request_version >= _ADDS_PARTITIONS_FROM
        unit = joining_unit(
            self._logs,
            transactional_id,
            ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
            replace(append, is_transaction_v2=is_v2),
            adds_partition=is_v2,
            knows_abortable=request_version >= _ABORTABLE_FROM,
        )
        if not is_v2:
            # Such producers do not expect CONCURRENT_TRANSACTIONS; this error makes them send the batch again.
            unit.when_concurrent = ErrorCode.NOT_ENOUGH_REPLICAS
        return unit.commit_unit()


def joining_unit(
    logs: StateLogs,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    append: LeaderAppend,
    *,
    adds_partition: bool,
    knows_abortable: bool,
) -> TransactionUnit:
    """A unit of a batch in the producer's transaction, of which the partition is, or becomes, a part."""
    told = _FENCED if knows_abortable else _FENCED_BEFORE_ABORTABLE

    def decide(found: TransactionMetadata | None, now_ms: int) -> Decision:
        decision = _join(found, producer, append.topic_partition, adds_partition, now_ms)
        if decision.error is ErrorCode.NONE:
            return decision
        return Decision(error=told.get(decision.error, decision.error))

    return TransactionUnit(
        logs=logs, transactional_id=transactional_id, decide=decide, is_joining=True, further=(append,)
    )


def _join(
    found: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    topic_partition: TopicPartition,
    adds_partition: bool,
    now_ms: int,
) -> Decision:
    if adds_partition:
        return add_partitions(found, producer, (topic_partition,), client_version=TV2, now_ms=now_ms)
    error = verify_partitions(found, producer, (topic_partition,))[topic_partition]
    return Decision(error=error, after=found)
