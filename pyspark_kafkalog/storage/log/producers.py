"""A partition's producer state: its idempotent and transactional producers, open transactions, and `.snapshot` files.

A producer's batches carry its id, its epoch, and sequence numbers that increase by one per record. The state holds each
producer's last five batches and its open transaction. A batch with an older epoch is fenced. A transactional batch
opens a transaction; an end-transaction marker, which is a control batch, ends it.

`Producers` is that state in memory; a `ProducerStateManager` also has the snapshot files of a partition's directory.

The state at an offset is that of the latest snapshot at or below it plus the batches after it (`producer_replay`). A
snapshot is written at each roll, named after the new segment's base offset, and at a clean close and in recovery, named
after the log end offset. A crash in between costs a longer replay and nothing else.

Source of the rules: org.apache.kafka.storage.internals.log.ProducerStateManager, ProducerStateEntry and
ProducerAppendInfo.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import CoordinatorFencedError, InvalidTransactionStateError, ProducerFencedError
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
from pyspark_kafkalog.storage.artefacts.producer_snapshot import NO_OFFSET, ProducerSnapshotFiles, ProducerStateEntry
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.values import dataclass, quick_dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCHES_TO_RETAIN: Final = 5


@quick_dataclass(frozen=True, slots=True)
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


@quick_dataclass(frozen=True, slots=True)
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
        return newer.with_batches((kept + newer.batches)[-BATCHES_TO_RETAIN:])

    def with_batches(self, batches: tuple[BatchMetadata, ...]) -> ProducerState:
        """This state with other remembered batches. Made for every batch, so not by `replace`, which takes longer."""
        epochs = self.producer_epoch, self.coordinator_epoch
        return ProducerState(self.producer_id, *epochs, self.last_timestamp_ms, self.current_txn_first_offset, batches)

    def entry(self) -> ProducerStateEntry:
        """The snapshot entry, which has only the last batch."""
        last = self.batches[-1] if self.batches else BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
        of_last = last.last_sequence, last.last_offset, last.offset_delta, self.last_timestamp_ms
        ends = self.coordinator_epoch, self.current_txn_first_offset
        return ProducerStateEntry(self.producer_id, self.producer_epoch, *of_last, *ends)

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


@quick_dataclass(frozen=True, slots=True, kw_only=True)
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

    def metadata(self) -> BatchMetadata:
        """What is remembered of it."""
        delta = self.last_offset - self.base_offset
        return BatchMetadata(self.last_sequence, self.last_offset, delta, self.max_timestamp_ms)


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction of this partition that a marker at `last_offset` has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


def fenced_error(producer_id: int, epoch: int, *, newer_epoch: int) -> ProducerFencedError:
    """The error for a batch of a producer that has already written with a newer epoch."""
    return ProducerFencedError(
        f"producer {producer_id} with epoch {epoch} is fenced, since epoch {newer_epoch} has written: another instance "
        "of this writer is running or has taken over; stop this one"
    )


def producer_batches(
    data: NDArray[np.uint8], batches: NDArray[np.void], *, data_position: int, file: str
) -> Iterator[ProducerBatch]:
    """The batches of a table that have a producer id; of `data`, only markers are read.

    Raises CorruptRecordError for a marker that cannot be read.
    """
    # A leader looks at one batch at a time: choosing rows of a table takes longer than to make a tuple of its only one.
    some = batches if len(batches) == 1 else batches[batches["producer_id"] >= 0]
    # Plain tuples: reading a row of a table field by field takes three times as long.
    for row in some.tolist():
        (position, _, base_offset, last_offset, _, max_timestamp_ms, producer_id, _, *rest) = row
        if producer_id < 0:
            continue
        base_sequence, records_count, _, attributes, producer_epoch = rest
        is_control = bool(attributes & CONTROL_MASK)
        marker = None
        if is_control and records_count:
            marker = _read_marker(data, position, data_position=data_position, file=file)
        yield ProducerBatch(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            base_offset=base_offset,
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp_ms,
            is_transactional=bool(attributes & TRANSACTIONAL_MASK),
            is_control=is_control,
            marker=marker,
        )


@quick_dataclass(frozen=True, slots=True)
class AppendedProducers:
    """What an append that was checked means for producers: `states` after it, of which `last_writer` has written last.

    `last_writer` is None if no batch has a producer id. `is_plain`: no batch belongs to a transaction or ends one, so
    that nothing but the states changes. `batches` gives those that have a producer id.
    """

    states: Mapping[int, ProducerState]
    last_writer: int | None
    is_plain: bool
    batches: Callable[[], Sequence[ProducerBatch]]

    @classmethod
    def of(cls, batches: Sequence[ProducerBatch], states: Mapping[int, ProducerState]) -> AppendedProducers:
        """Of an append whose batches with a producer id are these."""
        is_plain = not any(each.is_transactional or each.is_control for each in batches)
        return cls(states, batches[-1].producer_id if batches else None, is_plain, lambda: batches)


class ProducerAppend:
    """Batches of one producer that are about to be appended; rejects invalid ones, and changes no state itself.

    With `is_fencing`, older epochs of the producer and of coordinators are rejected. Stored batches have been accepted.
    """

    def __init__(self, current: ProducerState, *, is_fencing: bool) -> None:
        self._is_fencing = is_fencing
        self.updated = current.with_batches(())
        self.started_transactions: list[int] = []

    def append(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Add `batch`; returns the transaction that it ends.

        Raises ProducerFencedError, InvalidTransactionStateError.
        """
        if batch.marker is not None:
            return self._append_marker(batch, batch.marker)
        if not batch.is_control:
            self._append_data(batch)
        return None

    def _append_data(self, batch: ProducerBatch) -> None:
        self._check_epoch(batch)
        kept = self.updated.batches if self.updated.producer_epoch == batch.producer_epoch else ()
        metadata = batch.metadata()
        open_since = self.updated.current_txn_first_offset
        if open_since != NO_OFFSET and not batch.is_transactional:
            raise InvalidTransactionStateError(
                f"producer {batch.producer_id} has a transaction open since offset {open_since}, "
                f"but its batch at offset {batch.base_offset} is not transactional"
            )
        if open_since == NO_OFFSET and batch.is_transactional:
            open_since = batch.base_offset
            self.started_transactions.append(open_since)
        self.updated = ProducerState(
            batch.producer_id,
            batch.producer_epoch,
            self.updated.coordinator_epoch,
            batch.max_timestamp_ms,
            open_since,
            (*kept, metadata)[-BATCHES_TO_RETAIN:],
        )

    def _append_marker(self, batch: ProducerBatch, marker: EndTransactionMarker) -> CompletedTransaction | None:
        self._check_epoch(batch)
        if self._is_fencing and marker.coordinator_epoch < self.updated.coordinator_epoch:
            raise CoordinatorFencedError(
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
        if self._is_fencing and batch.producer_epoch < self.updated.producer_epoch:
            raise fenced_error(batch.producer_id, batch.producer_epoch, newer_epoch=self.updated.producer_epoch)


def _read_marker(
    data: NDArray[np.uint8], position: int, *, data_position: int, file: str
) -> EndTransactionMarker | None:
    record = decode_batch(data, position - data_position, file=file, file_position=position).records[0]
    parsed = parse_control_record(record.key, record.value, file=file, file_position=position)
    return parsed if isinstance(parsed, EndTransactionMarker) else None


@dataclass(frozen=True, slots=True)
class CheckedProducers:
    """Batches that have passed the producer checks but are not applied yet."""

    producers: tuple[ProducerAppend, ...]
    completed: tuple[CompletedTransaction, ...]


class Producers:
    """The producers of a partition below `end_offset`, in memory: their last batches, and their open transactions."""

    def __init__(self) -> None:
        self.producers: dict[int, ProducerState] = {}
        self.end_offset = 0
        #: First offset of an open transaction -> producer id, in the order of the offsets: so the first one is found
        #: without a search. A dict would step over all that have ended before it.
        self.open_transactions: OrderedDict[int, int] = OrderedDict()
        self._unreplicated: dict[int, int] = {}  # first offset -> marker's offset, until that is replicated
        self._last_writer: int | None = None  # None: to be found among the producers

    @property
    def is_empty(self) -> bool:
        return not self.producers and not self._unreplicated

    @property
    def last_entry(self) -> ProducerStateEntry | None:
        """The entry of the producer that has written last; None if no live producer has written.

        A producer of which only a marker with a newer epoch is left has written, too: that epoch fences older ones.
        """
        state = None if self._last_writer is None else self.producers.get(self._last_writer)
        if state is None:
            state = max(self.producers.values(), key=_last_offset, default=None)
        return None if state is None else state.entry()

    # Appending

    def check(self, batches: Iterable[ProducerBatch], *, is_fencing: bool = True) -> CheckedProducers:
        """Check the batches of one append. Raises as ProducerAppend.append does, and changes nothing."""
        appends: dict[int, ProducerAppend] = {}
        completed = []
        for batch in batches:
            append = appends.get(batch.producer_id)
            if append is None:
                known = self.producers.get(batch.producer_id)
                append = ProducerAppend(known or ProducerState(batch.producer_id), is_fencing=is_fencing)
                appends[batch.producer_id] = append
            transaction = append.append(batch)
            if transaction is not None:
                completed.append(transaction)
        return CheckedProducers(tuple(appends.values()), tuple(completed))

    def apply(
        self, checked: CheckedProducers, end_offset: int, on_completed: Callable[[CompletedTransaction, int], None]
    ) -> None:
        """Apply a checked append; `end_offset` is the offset after it.

        `on_completed` is called with each transaction that ended and the last stable offset right after its end.
        """
        for append in checked.producers:
            self._update(append)
        self._add_open(
            (first_offset, each.updated.producer_id)
            for each in checked.producers
            for first_offset in each.started_transactions
        )
        for transaction in checked.completed:
            on_completed(transaction, self._last_stable_offset_after(transaction))
            self._complete(transaction)
        self.end_offset = end_offset

    def take(self, appended: AppendedProducers, end_offset: int) -> None:
        """Apply a whole append that `is_plain` and ends before `end_offset`."""
        if appended.last_writer is not None:
            self.producers.update(appended.states)
            self._last_writer = appended.last_writer
        self.end_offset = end_offset

    def replay(
        self, batches: Iterable[ProducerBatch], on_completed: Callable[[CompletedTransaction, int], None]
    ) -> None:
        """Apply stored batches one after the other, as recovery does."""
        for batch in batches:
            self.apply(self.check((batch,), is_fencing=False), batch.last_offset + 1, on_completed)

    def recall(self, producer_id: int, batches: Sequence[ProducerBatch]) -> None:
        """Remember the producer's stored `batches`, in order, the last of which is the snapshot's."""
        state = self.producers[producer_id]
        own = [each for each in batches if each.producer_epoch == state.producer_epoch][-BATCHES_TO_RETAIN:]
        if own and state.batches[-1:] == (own[-1].metadata(),):
            self.producers[producer_id] = replace(state, batches=tuple(each.metadata() for each in own))

    def _update(self, append: ProducerAppend) -> None:
        updated = append.updated
        current = self.producers.get(updated.producer_id)
        self.producers[updated.producer_id] = updated if current is None else current.merged(updated)
        if updated.batches:
            self._last_writer = updated.producer_id

    def _add_open(self, started: Iterable[tuple[int, int]]) -> None:
        """Add transactions, each as its first offset and its producer. They begin above all others, in a sound log."""
        added = sorted(started)
        is_above = not added or not self.open_transactions or next(reversed(self.open_transactions)) < added[0][0]
        self.open_transactions.update(added)
        if not is_above:
            self.open_transactions = OrderedDict(sorted(self.open_transactions.items()))

    def _complete(self, transaction: CompletedTransaction) -> None:
        self.open_transactions.pop(transaction.first_offset, None)
        self._unreplicated[transaction.first_offset] = transaction.last_offset

    def _last_stable_offset_after(self, transaction: CompletedTransaction) -> int:
        others = (
            first for first, producer_id in self.open_transactions.items() if producer_id != transaction.producer_id
        )
        return next(others, transaction.last_offset + 1)

    # Open and unreplicated transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or was ended at or above the high watermark."""
        return min((*islice(self.open_transactions, 1), *self._unreplicated), default=None)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self.open_transactions), None)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Forget transactions whose markers are now below the high watermark."""
        ended = [first for first, last in self._unreplicated.items() if last < high_watermark]
        for first_offset in ended:
            del self._unreplicated[first_offset]

    # All at once

    def begin_with(self, entries: Iterable[ProducerStateEntry]) -> None:
        """Add the producers of a snapshot's entries."""
        begun = {entry.producer_id: ProducerState.of_entry(entry) for entry in entries}
        self.producers.update(begun)
        self._add_open(
            (state.current_txn_first_offset, producer_id)
            for producer_id, state in begun.items()
            if state.current_txn_first_offset != NO_OFFSET
        )

    def put(self, state: ProducerState) -> None:
        """Replace the state of one producer."""
        known = self.producers.get(state.producer_id)
        open_before = NO_OFFSET if known is None else known.current_txn_first_offset
        if state.current_txn_first_offset != open_before:
            self.open_transactions.pop(open_before, None)
            if state.current_txn_first_offset != NO_OFFSET:
                self._add_open([(state.current_txn_first_offset, state.producer_id)])
        self.producers[state.producer_id] = state

    def forget_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have not written for so long and have no open transaction."""
        for producer_id, state in list(self.producers.items()):
            if is_expired(state.entry(), now_ms, expiration_ms):
                del self.producers[producer_id]

    def clear(self) -> None:
        """Forget everything but `end_offset`."""
        self.producers.clear()
        self._last_writer = None
        self.open_transactions.clear()
        self._unreplicated.clear()


class ProducerStateManager(Producers):
    """Producers of the partition in `directory`, up to `end_offset`, with their snapshot files."""

    def __init__(self, directory: Path, *, expiration_ms: int, fs: FileSystem = LOCAL) -> None:
        super().__init__()
        self.snapshots = ProducerSnapshotFiles(directory, fs)
        self._expiration_ms = expiration_ms
        self._last_snapshot_offset = 0

    @property
    def directory(self) -> Path:
        return self.snapshots.directory

    def log_start_moved(self, log_start_offset: int) -> None:
        """Follow an increase of the log start offset."""
        self.high_watermark_moved(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)
        latest = self.snapshots.latest_offset
        self._last_snapshot_offset = log_start_offset if latest is None else latest

    def take_snapshot(self, *, durable: bool = False) -> None:
        """Write a snapshot at `end_offset`, unless the last one is at or above that offset."""
        if self.end_offset <= self._last_snapshot_offset:
            return
        entries = [state.entry() for state in java_hash_order(self.producers)]
        self.snapshots.write(self.end_offset, entries, durable=durable)
        self._last_snapshot_offset = self.end_offset

    def load(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Reset the state to a snapshot at or below `log_end_offset`, or to empty; the caller replays the rest.

        Snapshots outside (log start, log end] and damaged ones are removed. Expired producers without an open
        transaction are left out.
        """
        self.snapshots.remove_outside(log_start_offset, log_end_offset)
        if log_end_offset == self.end_offset:
            self.log_start_moved(log_start_offset)
            return
        self.clear()
        self.begin_at(*(self.snapshots.read_latest() or (log_start_offset, ())), now_ms)

    def begin_at(self, offset: int, entries: Iterable[ProducerStateEntry], now_ms: int) -> None:
        """Start from the entries of a snapshot at `offset`, without expired ones."""
        self._last_snapshot_offset = self.end_offset = offset
        self.begin_with(each for each in entries if not is_expired(each, now_ms, self._expiration_ms))

    def remove_expired(self, now_ms: int) -> None:
        """Forget producers that have not written for `producer.id.expiration.ms` and have no open transaction."""
        self.forget_expired(now_ms, self._expiration_ms)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything, and remove all snapshots."""
        self.clear()
        self.snapshots.remove_all()
        self._last_snapshot_offset = 0
        self.end_offset = offset


def _last_offset(state: ProducerState) -> int:
    return state.batches[-1].last_offset if state.batches else NO_OFFSET


def is_expired(entry: ProducerStateEntry, now_ms: int, expiration_ms: int) -> bool:
    """Whether a producer without an open transaction has expired, by the timestamp of its last records."""
    return entry.current_txn_first_offset < 0 and now_ms - entry.last_timestamp_ms >= expiration_ms


def java_hash_order(producers: dict[int, ProducerState]) -> list[ProducerState]:
    """The iteration order of a java.util.HashMap<Long, …> of these keys: the order of entries in Kafka's snapshots."""
    buckets = 16
    while len(producers) > buckets * 3 // 4:
        buckets *= 2

    def bucket(producer_id: int) -> int:
        folded = (producer_id ^ (producer_id >> 32)) & 0xFFFFFFFF
        return (folded ^ (folded >> 16)) & (buckets - 1)

    return [producers[producer_id] for producer_id in sorted(producers, key=bucket)]
