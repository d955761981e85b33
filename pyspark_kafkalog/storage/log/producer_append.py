"""Checks batches of idempotent and transactional producers, and derives the changes of a partition's producer state.

A producer's batches carry its id, its epoch and sequence numbers, which increase by one per record. The log remembers
each producer's last five batches: one of them sent again is a duplicate, a gap is an error, an older epoch is fenced.
Transactional batches open a transaction; an end-transaction marker, a control batch, ends it.

Source of the rules: org.apache.kafka.storage.internals.log.ProducerAppendInfo and ProducerStateEntry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, parse_control_record
from pyspark_kafkalog.record.header import (
    CONTROL_MASK,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
    next_sequence,
)
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.storage.artefacts.producer_snapshot import NO_OFFSET, ProducerStateEntry

BATCHES_TO_RETAIN: Final = 5


class AppendOrigin(Enum):
    """The origin of appended records. Only clients' sequence numbers are checked; replicas copy accepted records."""

    REPLICATION = auto()
    COORDINATOR = auto()
    CLIENT = auto()


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """One remembered batch of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return next_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of one producer; `batches` holds at most five, oldest first, of the current epoch only."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = -1
    last_timestamp_ms: int = NO_TIMESTAMP
    current_txn_first_offset: int = NO_OFFSET
    batches: tuple[BatchMetadata, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def merged(self, newer: ProducerState) -> ProducerState:
        """This state with the changes of `newer`: batches of an older epoch are dropped."""
        kept = self.batches if self.producer_epoch == newer.producer_epoch else ()
        return replace(newer, batches=(kept + newer.batches)[-BATCHES_TO_RETAIN:])

    def find_duplicate(self, batch: ProducerBatch) -> BatchMetadata | None:
        """The remembered batch with the same epoch and sequence range, if there is one."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        for known in self.batches:
            if known.first_sequence == batch.base_sequence and known.last_sequence == batch.last_sequence:
                return known
        return None

    def entry(self) -> ProducerStateEntry:
        """The snapshot entry, which has only the last batch."""
        last = self.batches[-1] if self.batches else BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
        return ProducerStateEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=last.last_sequence,
            last_offset=last.last_offset,
            offset_delta=last.offset_delta,
            last_timestamp_ms=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.current_txn_first_offset,
        )

    @classmethod
    def of_entry(cls, entry: ProducerStateEntry) -> ProducerState:
        batches: tuple[BatchMetadata, ...] = ()
        if entry.last_offset >= 0:
            batches = (
                BatchMetadata(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.last_timestamp_ms),
            )
        return cls(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            coordinator_epoch=entry.coordinator_epoch,
            last_timestamp_ms=entry.last_timestamp_ms,
            current_txn_first_offset=entry.current_txn_first_offset
            if entry.current_txn_first_offset >= 0
            else NO_OFFSET,
            batches=batches,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBatch:
    """The fields of a producer's batch that matter to producer state. `marker` is set for end-transaction markers."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    is_transactional: bool
    is_control: bool
    marker: EndTransactionMarker | None = None

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset - self.base_offset)


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction of this partition that a marker at `last_offset` has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


def producer_batches(
    data: NDArray[np.uint8], batches: NDArray[np.void], *, data_position: int, file: str
) -> Iterator[ProducerBatch]:
    """The batches of a table that have a producer id; of `data`, only markers are read.

    Raises CorruptRecordError for a marker that cannot be read.
    """
    for row in batches[batches["producer_id"] >= 0]:
        attributes = int(row["attributes"])
        is_control = bool(attributes & CONTROL_MASK)
        marker = None
        if is_control and int(row["records_count"]):
            marker = _read_marker(data, int(row["position"]), data_position=data_position, file=file)
        yield ProducerBatch(
            producer_id=int(row["producer_id"]),
            producer_epoch=int(row["producer_epoch"]),
            base_sequence=int(row["base_sequence"]),
            base_offset=int(row["base_offset"]),
            last_offset=int(row["last_offset"]),
            max_timestamp_ms=int(row["max_timestamp_ms"]),
            is_transactional=bool(attributes & TRANSACTIONAL_MASK),
            is_control=is_control,
            marker=marker,
        )


class ProducerAppend:
    """Batches of one producer that are about to be appended; rejects invalid ones, and changes no state itself."""

    def __init__(self, current: ProducerState, origin: AppendOrigin) -> None:
        self._current = current
        self._origin = origin
        self.updated = replace(current, batches=())
        self.started_transactions: list[int] = []

    def append(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Add `batch`; returns the transaction that it ends.

        Raises ProducerFencedError, OutOfOrderSequenceError, InvalidRecordError.
        """
        if batch.marker is not None:
            return self._append_marker(batch, batch.marker)
        if not batch.is_control:
            self._append_data(batch)
        return None

    def _append_data(self, batch: ProducerBatch) -> None:
        self._check_epoch(batch)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        kept = self.updated.batches if self.updated.producer_epoch == batch.producer_epoch else ()
        delta = batch.last_offset - batch.base_offset
        metadata = BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp_ms)
        open_since = self.updated.current_txn_first_offset
        if open_since != NO_OFFSET and not batch.is_transactional:
            raise InvalidRecordError(
                f"producer {batch.producer_id} has a transaction open since offset {open_since}, "
                f"but its batch at offset {batch.base_offset} is not transactional"
            )
        if open_since == NO_OFFSET and batch.is_transactional:
            open_since = batch.base_offset
            self.started_transactions.append(open_since)
        self.updated = replace(
            self.updated,
            producer_epoch=batch.producer_epoch,
            last_timestamp_ms=batch.max_timestamp_ms,
            current_txn_first_offset=open_since,
            batches=(*kept, metadata)[-BATCHES_TO_RETAIN:],
        )

    def _append_marker(self, batch: ProducerBatch, marker: EndTransactionMarker) -> CompletedTransaction | None:
        self._check_epoch(batch)
        if self.updated.coordinator_epoch > marker.coordinator_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise ProducerFencedError(
                f"the end-transaction marker of producer {batch.producer_id} is from coordinator epoch "
                f"{marker.coordinator_epoch}, the last one was from {self.updated.coordinator_epoch}"
            )
        first_offset = self.updated.current_txn_first_offset
        self.updated = replace(
            self.updated,
            producer_epoch=batch.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            last_timestamp_ms=batch.max_timestamp_ms,
            current_txn_first_offset=NO_OFFSET,
            batches=self.updated.batches if self.updated.producer_epoch == batch.producer_epoch else (),
        )
        if first_offset == NO_OFFSET:
            return None
        is_aborted = marker.control_type is ControlRecordType.ABORT
        return CompletedTransaction(batch.producer_id, first_offset, batch.base_offset, is_aborted)

    def _check_epoch(self, batch: ProducerBatch) -> None:
        if batch.producer_epoch < self.updated.producer_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise ProducerFencedError(
                f"producer {batch.producer_id} with epoch {batch.producer_epoch} is fenced: "
                f"epoch {self.updated.producer_epoch} has written"
            )

    def _check_sequence(self, batch: ProducerBatch) -> None:
        first = batch.base_sequence
        if batch.producer_epoch != self.updated.producer_epoch:
            if first != 0 and self.updated.producer_epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} begins its epoch {batch.producer_epoch} "
                    f"with sequence {first}, expected 0"
                )
            return
        if self.updated.batches:
            last = self.updated.last_sequence
        elif batch.producer_epoch == self._current.producer_epoch:
            last = self._current.last_sequence
        else:
            last = NO_SEQUENCE
        # A producer that the log does not know, or has forgotten, may start with any sequence.
        is_known = bool(self.updated.batches) or self._current.producer_epoch != NO_PRODUCER_EPOCH
        if is_known and first != _sequence_after(last):
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} sent sequence {first}, expected {_sequence_after(last)}"
            )


def _sequence_after(sequence: int) -> int:
    return 0 if sequence == NO_SEQUENCE else next_sequence(sequence, 1)


def _read_marker(
    data: NDArray[np.uint8], position: int, *, data_position: int, file: str
) -> EndTransactionMarker | None:
    record = decode_batch(data, position - data_position, file=file, file_position=position).records[0]
    parsed = parse_control_record(record.key, record.value, file=file, file_position=position)
    return parsed if isinstance(parsed, EndTransactionMarker) else None
