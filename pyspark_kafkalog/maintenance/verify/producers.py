"""Checks the producer snapshots and the transaction index of a segment against its batches, while they are walked.

The state of the producers is carried over from segment to segment, and replaced by each snapshot. Of consecutive
batches of one producer only the first and the last matter, so Python processes only these, and every end-transaction
marker.

A cleaned log contains less than its snapshots: the last batches of a producer may be gone, and markers without data
have no index entry. There only contradictions are reported.

What lies below the log start offset counts for a writer that was there before the log start has moved. One that has
rebuilt the state since has not read it, as in Kafka (UnifiedLog.rebuildProducerState): to that writer, a transaction
begins with its first batch that reaches the log start, and is not open without one. The index may be either writer's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.verify.batches import WalkedRun
from pyspark_kafkalog.maintenance.verify.findings import REINDEX, RESTORE, FindingSink, Severity
from pyspark_kafkalog.record.control import ControlRecordType
from pyspark_kafkalog.record.header import CONTROL_MASK, TRANSACTIONAL_MASK
from pyspark_kafkalog.storage.artefacts.producer_snapshot import NO_OFFSET, ProducerStateEntry, read_snapshot
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY_BYTES, AbortedTxn, TransactionIndex
from pyspark_kafkalog.storage.log.producers import CompletedTransaction, ProducerBatch, Producers, producer_batches

ProducerEntries = tuple[ProducerStateEntry, ...]


def read_producers(path: Path, offset: int, sink: FindingSink) -> ProducerEntries | None:
    """The entries of the snapshot at `offset`. None for a missing one, and for an unusable one, which is reported."""
    try:
        entries = read_snapshot(path)
    except FileNotFoundError:
        return None
    except CorruptIndexError as error:
        sink.add_damage(Severity.ERROR, "producer-snapshot", error, advice=REINDEX)
        return None
    wrong = [each for each in entries if not _is_possible(each, offset)]
    if wrong or len({each.producer_id for each in entries}) < len(entries):
        sink.add(
            Severity.ERROR,
            "producer-snapshot",
            path,
            position=0,
            offset=offset,
            expected=f"each producer once, with offsets below {offset}",
            found=str(wrong[0]) if wrong else "a producer twice",
            advice=REINDEX,
        )
        return None
    return entries


def _is_possible(entry: ProducerStateEntry, offset: int) -> bool:
    return (
        entry.producer_id >= 0
        and NO_OFFSET <= entry.last_offset < offset
        and NO_OFFSET <= entry.current_txn_first_offset < offset
        and entry.offset_delta >= 0
    )


def compare_producers(
    derived: ProducerEntries,
    stored: ProducerEntries,
    path: Path,
    offset: int,
    sink: FindingSink,
    *,
    has_gaps: bool,
    log_start_offset: int,
) -> None:
    """Compare the snapshot at `offset` with the log. Producers that the snapshot lacks have expired.

    What lies below the log start counts for a writer that was there before the log start has moved, and not for one
    that has rebuilt the state since, as a broker does (UnifiedLog.rebuildProducerState).
    """
    by_id = {entry.producer_id: entry for entry in derived}
    for entry in stored:
        found = by_id.get(entry.producer_id)
        if found is not None and not _agree(found, entry, has_gaps=has_gaps, log_start_offset=log_start_offset):
            sink.add(
                Severity.ERROR,
                "producer-snapshot-differs",
                path,
                position=0,
                offset=offset,
                expected=f"the state by the log: {found}",
                found=str(entry),
                advice="delete the file and run kafkalog reindex: it is rebuilt from the previous snapshot",
            )


def _agree(log: ProducerStateEntry, stored: ProducerStateEntry, *, has_gaps: bool, log_start_offset: int) -> bool:
    if has_gaps and (stored.last_offset > log.last_offset or stored.producer_epoch > log.producer_epoch):
        return True
    if stored.last_offset == NO_OFFSET and (has_gaps or log.last_offset < log_start_offset):
        return True
    same_batch = (stored.producer_epoch, stored.last_offset, stored.last_sequence) == (
        log.producer_epoch,
        log.last_offset,
        log.last_sequence,
    )
    begins = log.current_txn_first_offset
    is_known_in_part = NO_OFFSET < begins < log_start_offset
    return same_batch and (has_gaps or is_known_in_part or stored.current_txn_first_offset == begins)


class ProducerCheck:
    """Producers and aborted transactions of one segment.

    `producers` is their state at its beginning; `is_known`: that state is complete. `txn_index` is the segment's, open,
    or None without one.
    """

    def __init__(
        self,
        base_offset: int,
        producers: ProducerEntries,
        txn_index: TransactionIndex | None,
        txn_path: Path,
        file: str,
        sink: FindingSink,
        *,
        has_gaps: bool,
        log_start_offset: int,
        visible_end: int,
    ) -> None:
        self._file = file
        self._sink = sink
        self._has_gaps = has_gaps
        self._state = Producers()
        self._state.begin_with(producers)
        self._log_start_offset = log_start_offset
        self._base_offset = base_offset
        self._completed: tuple[CompletedTransaction, int] | None = None
        #: Producer -> base offset of its transaction's first batch in this segment that reaches the log start.
        self._first_readable: dict[int, int] = {}
        self._txns = _TxnIndexCheck(
            txn_index, txn_path, sink, log_start_offset=log_start_offset, visible_end=visible_end
        )

    def add(self, run: WalkedRun) -> None:
        """Process the next batches."""
        split = int(np.searchsorted(run.good["last_offset"], self._log_start_offset))
        chosen = np.concatenate([state_changing_batches(part) for part in (run.good[:split], run.good[split:])])
        if not len(chosen):
            return
        try:
            for batch in producer_batches(run.data, chosen, data_position=run.position, file=self._file):
                self._add(batch)
        except DiskFormatError as error:
            self._sink.add_damage(Severity.ERROR, "control-record", error, advice=RESTORE)
        except KafkalogError as error:
            self._sink.add(
                Severity.ERROR,
                "producer-batches",
                self._file,
                position=run.position,
                expected="batches that a producer can have written",
                found=str(error),
                advice=RESTORE,
            )

    def _add(self, batch: ProducerBatch) -> None:
        self._completed = None
        before = self._state.producers.get(batch.producer_id)
        self._state.replay((batch,), self._note)
        if batch.marker is None:
            if batch.is_transactional and not batch.is_control and batch.last_offset >= self._log_start_offset:
                self._first_readable.setdefault(batch.producer_id, batch.base_offset)
            return
        first_readable = self._first_readable.pop(batch.producer_id, None)
        if batch.marker.control_type is ControlRecordType.ABORT:
            # In a cleaned log the data may be gone, and with it the entry.
            is_needed = first_readable is not None or (
                not self._has_gaps and before is not None and before.entry().last_offset >= self._log_start_offset
            )
            self._txns.marker(batch, self._possible(first_readable), is_needed=is_needed)

    def _possible(self, first_readable: int | None) -> _Possible | None:
        """What the entry of the transaction that has just ended can be; None if nothing is known of it."""
        if self._completed is None:
            return None
        transaction, last_stable_offset = self._completed
        least = (0, 0) if self._has_gaps else (transaction.first_offset, last_stable_offset)
        first_most, stable_most = transaction.first_offset, last_stable_offset
        if first_most < self._log_start_offset:
            # Its first batch that counts may be in an earlier segment.
            first_most = self._base_offset if first_readable is None else first_readable
        if stable_most < self._log_start_offset:
            # The transaction that held it back may not count.
            stable_most = transaction.last_offset + 1
        return _Possible(least[0], first_most, least[1], stable_most)

    def _note(self, transaction: CompletedTransaction, last_stable_offset: int) -> None:
        self._completed = (transaction, last_stable_offset)

    def finish(self, *, is_damaged: bool) -> ProducerEntries:
        """The state of the producers after the last batch."""
        self._txns.finish(is_damaged=is_damaged)
        return tuple(state.entry() for state in self._state.producers.values())


def state_changing_batches(batches: NDArray[np.void]) -> NDArray[np.void]:
    """The relevant batches with a producer id: markers, and the first and last of each run of one kind and producer."""
    rows = np.flatnonzero(batches["producer_id"] >= 0)
    if len(rows) <= 2:
        return batches[rows]
    attributes = batches["attributes"][rows] & (CONTROL_MASK | TRANSACTIONAL_MASK)
    producer_ids = batches["producer_id"][rows]
    epochs = batches["producer_epoch"][rows]
    order = np.argsort(producer_ids, kind="stable")
    sorted_ids, sorted_kinds, sorted_epochs = producer_ids[order], attributes[order], epochs[order]
    is_first = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = (
        (sorted_ids[1:] != sorted_ids[:-1])
        | (sorted_kinds[1:] != sorted_kinds[:-1])
        | (sorted_epochs[1:] != sorted_epochs[:-1])
    )
    is_last = np.ones(len(rows), dtype=np.bool_)
    is_last[:-1] = is_first[1:]
    is_relevant = is_first | is_last | ((sorted_kinds & CONTROL_MASK) != 0)
    chosen: NDArray[np.void] = batches[rows[np.sort(order[is_relevant])]]
    return chosen


class _TxnIndexCheck:
    """Compares the entries of a transaction index with the abort markers of its segment, both in order.

    Transactions that end below the log start offset are skipped: they are never read, and Kafka's cleaner leaves data
    there without its entry, and entries without their data.
    """

    def __init__(
        self, index: TransactionIndex | None, path: Path, sink: FindingSink, *, log_start_offset: int, visible_end: int
    ) -> None:
        self._path = path
        self._sink = sink
        self._log_start_offset = log_start_offset
        self._visible_end = visible_end
        self._slot = -1
        self._entries: Iterator[AbortedTxn] = iter(()) if index is None else iter(index)
        self._entry: AbortedTxn | None = None
        if index is not None:
            size_bytes = os.stat(path).st_size if path.exists() else 0
            if size_bytes % TXN_INDEX_ENTRY_BYTES and size_bytes // TXN_INDEX_ENTRY_BYTES == index.entries:
                self._fault(
                    "index-length",
                    index.entries * TXN_INDEX_ENTRY_BYTES,
                    f"a file of whole entries of {TXN_INDEX_ENTRY_BYTES} bytes",
                    f"{size_bytes} bytes",
                )
        self._next()

    def marker(self, batch: ProducerBatch, possible: _Possible | None, *, is_needed: bool) -> None:
        """Process an abort marker; `possible` is what its entry can be, None if its transaction is not known."""
        marker_offset = batch.base_offset
        if marker_offset < self._log_start_offset:
            return
        while self._entry is not None and self._entry.last_offset < marker_offset:
            self._no_marker(self._entry)
            self._next()
        entry = self._entry
        if entry is None or entry.last_offset != marker_offset:
            if possible is not None and is_needed:
                self._fault(
                    "txn-index-missing",
                    max(self._slot, 0) * TXN_INDEX_ENTRY_BYTES,
                    f"an entry for the transaction of producer {batch.producer_id} that the marker at offset "
                    f"{marker_offset} aborts: without it read_committed returns its records",
                    "none",
                    offset=marker_offset,
                )
            return
        if entry.producer_id != batch.producer_id or not _fits(entry, possible):
            self._fault(
                "txn-index-entry",
                self._slot * TXN_INDEX_ENTRY_BYTES,
                f"producer {batch.producer_id}, {_describe(possible)}",
                f"producer {entry.producer_id}, first offset {entry.first_offset}, "
                f"last stable offset {entry.last_stable_offset}",
                offset=marker_offset,
            )
        self._next()

    def finish(self, *, is_damaged: bool) -> None:
        """After the last marker: check that no entry is left."""
        while self._entry is not None:
            if not is_damaged and self._entry.last_offset < self._visible_end:
                self._no_marker(self._entry)
            self._next()

    def _no_marker(self, entry: AbortedTxn) -> None:
        self._fault(
            "txn-index-entry",
            self._slot * TXN_INDEX_ENTRY_BYTES,
            f"an abort marker of producer {entry.producer_id} at offset {entry.last_offset}",
            "none",
            offset=entry.last_offset,
        )

    def _next(self) -> None:
        try:
            while True:
                self._slot += 1
                self._entry = next(self._entries, None)
                if self._entry is None or self._entry.last_offset >= self._log_start_offset:
                    return
        except CorruptIndexError as error:
            self._entry = None
            self._entries = iter(())
            self._sink.add_damage(Severity.ERROR, "txn-index-entry", error, advice=REINDEX)

    def _fault(self, what: str, position: int, expected: str, found: str, *, offset: int | None = None) -> None:
        self._sink.add(
            Severity.ERROR,
            what,
            self._path,
            position=position,
            offset=offset,
            expected=expected,
            found=found,
            advice=REINDEX,
        )


@dataclass(frozen=True, slots=True)
class _Possible:
    """The least and the largest first offset and last stable offset of an index entry."""

    first_least: int
    first_most: int
    stable_least: int
    stable_most: int


def _fits(entry: AbortedTxn, possible: _Possible | None) -> bool:
    if possible is None:
        return entry.first_offset < entry.last_offset
    return (
        possible.first_least <= entry.first_offset <= possible.first_most
        and possible.stable_least <= entry.last_stable_offset <= possible.stable_most
    )


def _describe(possible: _Possible | None) -> str:
    if possible is None:
        return "a transaction that began before its marker"
    first = _range(possible.first_least, possible.first_most)
    return f"first offset {first}, last stable offset {_range(possible.stable_least, possible.stable_most)}"


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
