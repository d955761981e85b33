"""Decides which batches a cleaning keeps, and produces the bytes of the batches that stay.

    copied      every record stays and no delete horizon has to be set: the same bytes
    rewritten   some records stay, or a tombstone or marker gets its delete horizon (in place of the base timestamp)
    emptied     no record stays, but the header must: the last batch of a producer that is still active, for its
                sequence number, and the batch that ends the cleaned range
    dropped

Base and last offset, producer, leader epoch and codec of a batch never change. Kafka's rules for producers and
transactions:

1. The last batch of each active producer is retained, even if all of its records are removed, so that its sequence
   numbers continue. It is removed when the producer has written another batch, or has expired.
2. Nothing at or above the last stable offset is cleaned. So all transactions that the cleaner sees are decided, and the
   transaction indexes have the aborted ones in advance. The markers decide: a cleaning ends at one that says something
   else.
3. Records of aborted transactions are removed at once, whatever their keys.
4. A transaction's marker is retained until all batches of the transaction have been removed, and then for
   delete.retention.ms, as a tombstone is, so that no consumer that has read its data misses the marker. Until its data
   is removed, an aborted transaction stays in the transaction index of the cleaned segment.

Source of the rules: org.apache.kafka.storage.internals.log.LogCleaner, Cleaner (cleanInto), CleanedTransactionMetadata,
and MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.maintenance.cleaner import kernels_cleaner as kernels
from pyspark_kafkalog.maintenance.cleaner.kernels_cleaner import EMPTY_BATCH
from pyspark_kafkalog.maintenance.cleaner.record_chunks import RecordChunk
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType, decompressed_limit_bytes
from pyspark_kafkalog.record.control import ControlRecordType
from pyspark_kafkalog.record.encode import seal_headers
from pyspark_kafkalog.record.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from pyspark_kafkalog.record.kernels.native import COPY_SLACK_BYTES
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.log.isolation import EndedTransaction, wrong_index_error
from pyspark_kafkalog.units import INT64_MAX

_KEPT_FLAGS: Final = TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK


@dataclass(slots=True)
class _Aborted:
    """An aborted transaction whose marker has not been reached; `first_data`: the first batch of it that was read."""

    transaction: AbortedTxn
    first_data: int = -1

    @property
    def has_data(self) -> bool:
        return self.first_data >= 0


@dataclass(slots=True)
class CleanedTransactions:
    """The state between two batches. `aborted` are all aborted transactions that may occur, `log` names the log.

    `retained` collects those whose data was read before their marker: the index of the cleaned segment needs them.
    Where a marker says something else than `aborted`, which comes from transaction indexes, the cleaning ends.
    """

    aborted: list[AbortedTxn]
    log: str = "the log"
    retained: list[AbortedTxn] = field(default_factory=list)
    _next: int = 0
    _open_aborted: dict[int, _Aborted] = field(default_factory=dict)
    #: The first offset of data since the producer's last marker that no entry aborts.
    _open_committed: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, aborted: Iterable[AbortedTxn], log: str = "the log") -> CleanedTransactions:
        return cls(sorted(set(aborted), key=lambda each: each.first_offset), log)

    def copy(self) -> CleanedTransactions:
        """The current state with nothing retained, for a task that starts at this point."""
        state = CleanedTransactions(self.aborted, self.log)
        state._next = self._next
        state._open_aborted = {each: replace(aborted) for each, aborted in self._open_aborted.items()}
        state._open_committed = dict(self._open_committed)
        return state

    def take_retained(self) -> list[AbortedTxn]:
        """Return and clear the transactions for the index of the segment whose batches have been judged since."""
        taken, self.retained = self.retained, []
        return taken

    def unended(self) -> dict[int, int]:
        """The first offset, by producer, of the transactions whose markers are behind what was judged."""
        found = dict(self._open_committed)
        for producer_id, each in self._open_aborted.items():
            first_offset = each.first_data if each.has_data else each.transaction.first_offset
            found[producer_id] = min(first_offset, found.get(producer_id, first_offset))
        return found

    def may_go(self, batches: NDArray[np.void], control_types: NDArray[np.int16]) -> NDArray[np.bool_]:
        """For each batch (BATCH_DTYPE, in order) whether its transaction allows it to be dropped.

        True for data of aborted transactions and for markers of transactions of which nothing else remains.
        Raises CorruptIndexError for a marker that says something else of its transaction than `aborted`.
        """
        result = np.zeros(len(batches), np.bool_)
        rows = np.flatnonzero(batches["attributes"] & (TRANSACTIONAL_MASK | CONTROL_MASK))
        if not len(rows):
            return result
        chosen = batches[rows]
        is_control = (chosen["attributes"] & CONTROL_MASK) != 0
        for row, base_offset, last_offset, producer_id, control, control_type in zip(
            rows.tolist(),
            chosen["base_offset"].tolist(),
            chosen["last_offset"].tolist(),
            chosen["producer_id"].tolist(),
            is_control.tolist(),
            control_types[rows].tolist(),
            strict=True,
        ):
            self._open_up_to(last_offset)
            if control:
                result[row] = self._marker(producer_id, base_offset, control_type)
            else:
                result[row] = self._data(producer_id, base_offset)
        return result

    def _open_up_to(self, offset: int) -> None:
        while self._next < len(self.aborted) and self.aborted[self._next].first_offset <= offset:
            transaction = self.aborted[self._next]
            known = self._open_aborted.get(transaction.producer_id)
            if known is None or known.transaction.last_offset < transaction.first_offset:
                self._open_aborted[transaction.producer_id] = _Aborted(transaction)
            self._next += 1

    def _data(self, producer_id: int, base_offset: int) -> bool:
        aborted = self._open_aborted.get(producer_id)
        if aborted is None or aborted.transaction.last_offset < base_offset:
            self._open_committed.setdefault(producer_id, base_offset)
            return False
        if not aborted.has_data:
            aborted.first_data = base_offset
        return True

    def _marker(self, producer_id: int, offset: int, control_type: int) -> bool:
        if control_type == EMPTY_BATCH:
            return True
        if control_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            return False
        is_abort = control_type == ControlRecordType.ABORT
        kept_from = self._open_committed.pop(producer_id, None)
        aborted = self._open_aborted.get(producer_id)
        if aborted is not None and (is_abort or aborted.transaction.last_offset < offset):
            del self._open_aborted[producer_id]
        if is_abort:
            self._check_abort(producer_id, offset, kept_from, aborted)
            if aborted is None or not aborted.has_data:
                return True
            self.retained.append(aborted.transaction)
            return False
        if aborted is not None and (aborted.has_data or offset <= aborted.transaction.last_offset):
            first_offset = aborted.first_data if aborted.has_data else aborted.transaction.first_offset
            raise wrong_index_error(EndedTransaction(producer_id, first_offset, offset, False), file=self.log)
        return kept_from is None

    def _check_abort(self, producer_id: int, offset: int, kept_from: int | None, aborted: _Aborted | None) -> None:
        is_other = aborted is not None and aborted.has_data and aborted.transaction.last_offset != offset
        if kept_from is not None or is_other:
            first_offset = aborted.first_data if kept_from is None and aborted is not None else kept_from
            raise wrong_index_error(EndedTransaction(producer_id, first_offset or 0, offset, True), file=self.log)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """The parameters of a pass, in addition to the offset map. Times in ms.

    `now_ms` is the time at which the pass began. `end_offset` is the end of the cleaned range, whose last batch stays.
    `producers` are the active ones by id, as of the end of the log.
    """

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    producers: Mapping[int, ProducerStateEntry] = field(default_factory=dict)

    @property
    def new_horizon_ms(self) -> int:
        """The delete horizon of tombstones and markers that do not have one yet; none if it would exceed int64.

        Without a horizon they stay forever, as in Kafka, where the sum overflows.
        """
        horizon_ms = self.now_ms + self.delete_retention_ms
        return horizon_ms if horizon_ms <= INT64_MAX else NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class BatchVerdicts:
    """One row for each batch of a chunk. `discards`: none of its records may stay, whatever the map says.

    `keeps_empty`: the header stays even if no record does. `gives_horizon`: a marker that is to get its delete horizon.
    """

    discards: NDArray[np.bool_]
    keeps_empty: NDArray[np.bool_]
    gives_horizon: NDArray[np.bool_]


def judge_batches(chunk: RecordChunk, transactions: CleanedTransactions, rules: RetentionRules) -> BatchVerdicts:
    """The verdicts on a chunk's batches by headers, transactions and producers. Chunks come in the order of the log."""
    batches = chunk.batches
    attributes = batches["attributes"]
    is_control = (attributes & CONTROL_MASK) != 0
    has_horizon = (attributes & DELETE_HORIZON_MASK) != 0
    horizons = batches["base_timestamp_ms"]
    may_go = transactions.may_go(batches, chunk.records.control_types)
    discards = may_go & (~is_control | (has_horizon & (horizons <= rules.now_ms)))
    keeps_empty = _is_last_of_producer(batches, is_control, rules.producers)
    keeps_empty |= batches["last_offset"] == rules.end_offset - 1
    return BatchVerdicts(discards=discards, keeps_empty=keeps_empty, gives_horizon=may_go & is_control)


def _is_last_of_producer(
    batches: NDArray[np.void], is_control: NDArray[np.bool_], producers: Mapping[int, ProducerStateEntry]
) -> NDArray[np.bool_]:
    """Whether each batch is the last one of an active producer; for a producer known only by its epoch, a marker with
    it.
    """
    result = np.zeros(len(batches), np.bool_)
    if not producers:
        return result
    ids = batches["producer_id"]
    for row in np.flatnonzero(np.isin(ids, np.fromiter(producers, np.int64, len(producers)))).tolist():
        entry = producers[int(ids[row])]
        if entry.last_offset >= 0:
            result[row] = int(batches["last_offset"][row]) == entry.last_offset
        else:
            result[row] = is_control[row] and int(batches["producer_epoch"][row]) == entry.producer_epoch
    return result


def start_keep(chunk: RecordChunk, verdicts: BatchVerdicts) -> NDArray[np.uint8]:
    """1 for each record that the offset map has yet to judge or that stays, 0 for records dropped with their batch."""
    counts = np.diff(chunk.records.firsts)
    return np.repeat(~verdicts.discards, counts).view(np.uint8)  # bounded: the records of a chunk, after check_counts


def restore_control(chunk: RecordChunk, verdicts: BatchVerdicts, keep: NDArray[np.uint8]) -> None:
    """Keep the records of markers that stay: the offset map does not cover control records."""
    is_control = (chunk.batches["attributes"] & CONTROL_MASK) != 0
    if is_control.any():
        # bounded: the records of a chunk, after check_counts
        keep[np.repeat(is_control & ~verdicts.discards, np.diff(chunk.records.firsts))] = 1


@dataclass(frozen=True, slots=True)
class FilteredChunk:
    """The bytes and batches of a chunk that stay (BATCH_DTYPE, positions in `data`), with counts."""

    data: bytes
    batches: NDArray[np.void]
    bytes_read: int
    records_read: int
    records_kept: int


def filter_chunk(
    chunk: RecordChunk, verdicts: BatchVerdicts, keep: NDArray[np.uint8], rules: RetentionRules
) -> FilteredChunk:
    """Encode the batches of a chunk with the records for which `keep` is 1."""
    batches, records = chunk.batches, chunk.records
    count = len(batches)
    kept, tombstones, max_ms, first_ms = (np.empty(count, np.int64) for _ in range(4))
    kernels.summarize(records.firsts, keep, records.flags, records.timestamps_ms, kept, tombstones, max_ms, first_ms)
    lacks_horizon = (batches["attributes"] & DELETE_HORIZON_MASK) == 0
    sets_horizon = lacks_horizon & ((tombstones > 0) | verdicts.gives_horizon) & (kept > 0)
    is_copied = (kept > 0) & (kept == batches["records_count"]) & ~sets_horizon
    is_rewritten = (kept > 0) & ~is_copied
    is_emptied = (kept == 0) & verdicts.keeps_empty
    pieces: list[tuple[int, bytes | memoryview]] = []  # number of the first batch, bytes of it and its followers
    table = batches.copy()
    if is_rewritten.any():
        horizons = np.where(lacks_horizon, NO_TIMESTAMP, batches["base_timestamp_ms"])
        horizons[sets_horizon] = rules.new_horizon_ms
        rows = np.flatnonzero(is_rewritten)
        table["base_timestamp_ms"][rows] = np.where(horizons[rows] >= 0, horizons[rows], first_ms[rows])
        table["max_timestamp_ms"][rows] = max_ms[rows]
        table["records_count"][rows] = kept[rows]
        attributes = batches["attributes"][rows] & (_KEPT_FLAGS | COMPRESSION_MASK)
        table["attributes"][rows] = attributes | np.where(horizons[rows] >= 0, DELETE_HORIZON_MASK, 0)
        pieces += _rewrite(chunk, keep, rows, table)
    if is_emptied.any():
        pieces += _empty(np.flatnonzero(is_emptied), table)
    if is_copied.any():
        pieces += _copy_runs(chunk, is_copied)
    pieces.sort(key=lambda piece: piece[0])
    table = table[is_copied | is_rewritten | is_emptied]
    sizes = table["size_bytes"]
    table["position"] = np.cumsum(sizes) - sizes
    return FilteredChunk(
        b"".join(data for _, data in pieces), table, chunk.stored_bytes, chunk.stored_records, int(kept.sum())
    )


def _copy_runs(chunk: RecordChunk, is_copied: NDArray[np.bool_]) -> list[tuple[int, memoryview]]:
    """The stored bytes of batches that stay unchanged, with neighbouring batches in one piece."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_copied, [False])).view(np.int8)))
    starts = chunk.batches["position"] - chunk.position
    ends = starts + chunk.batches["size_bytes"]
    data = chunk.data.data
    return [
        (first, data[int(starts[first]) : int(ends[after - 1])])
        for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]


def _empty(rows: NDArray[np.int64], table: NDArray[np.void]) -> list[tuple[int, memoryview]]:
    """Headers alone: no records, no codec, no base timestamp; the largest timestamp is unchanged."""
    table["size_bytes"][rows] = RECORD_BATCH_OVERHEAD_BYTES
    table["records_count"][rows] = 0
    table["base_timestamp_ms"][rows] = NO_TIMESTAMP
    table["attributes"][rows] &= _KEPT_FLAGS
    return _sealed(rows, table, np.empty(len(rows) * RECORD_BATCH_OVERHEAD_BYTES, np.uint8))


def _sealed(rows: NDArray[np.int64], table: NDArray[np.void], data: NDArray[np.uint8]) -> list[tuple[int, memoryview]]:
    """Write the headers of the batches `rows`, which are adjacent in `data`, and return their bytes."""
    chosen = table[rows]
    ends = np.cumsum(chosen["size_bytes"])
    chosen["position"] = ends - chosen["size_bytes"]
    seal_headers(data, chosen)
    table["crc"][rows] = chosen["crc"]
    view = data.data
    return [
        (row, view[start:end])
        for row, start, end in zip(rows.tolist(), chosen["position"].tolist(), ends.tolist(), strict=True)
    ]


def _rewrite(
    chunk: RecordChunk, keep: NDArray[np.uint8], rows: NDArray[np.int64], table: NDArray[np.void]
) -> list[tuple[int, memoryview]]:
    """The batches `rows` with the records that stay; sets sizes and CRCs in `table`, which has all other fields."""
    records = chunk.records
    section_ends = chunk.sections.addresses + chunk.sections.sizes
    room = int(chunk.sections.sizes[rows].sum()) + RECORD_BATCH_OVERHEAD_BYTES * len(rows)
    room += kernels.RECORD_GROWTH_BYTES * int(table["records_count"][rows].sum(dtype=np.int64)) + COPY_SLACK_BYTES
    out = np.empty(room, np.uint8)  # bounded: the chunk's bytes and records, after check_counts
    sizes = np.empty(len(rows), np.int64)
    kernels.rewrite(
        rows,
        records.firsts,
        keep,
        records.starts,
        records.ends,
        records.timestamps_ms,
        section_ends,
        np.ascontiguousarray(table["base_timestamp_ms"][rows]),
        out,
        sizes,
    )
    codecs = table["attributes"][rows] & COMPRESSION_MASK
    if codecs.any():
        out, sizes = _compress(chunk.file, out, sizes, codecs, table["base_offset"][rows])
    table["size_bytes"][rows] = sizes
    return _sealed(rows, table, out[: int(sizes.sum())])


def _compress(
    file: str, plain: NDArray[np.uint8], sizes: NDArray[np.int64], codecs: NDArray[np.int16], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The same batches with their records compressed, each with its own codec."""
    header = bytes(RECORD_BATCH_OVERHEAD_BYTES)
    parts: list[bytes | memoryview] = []
    start = 0
    compressed_sizes = np.empty(len(sizes), np.int64)
    compress = {each: CODECS[CompressionType(each)].compress for each in np.unique(codecs).tolist()}
    for i, (size, codec) in enumerate(zip(sizes.tolist(), codecs.tolist(), strict=True)):
        body = plain[start + RECORD_BATCH_OVERHEAD_BYTES : start + size]
        payload = compress[codec](body)
        parts += (header, payload)
        compressed_sizes[i] = RECORD_BATCH_OVERHEAD_BYTES + len(payload)
        start += size
    _check_readable(file, sizes, compressed_sizes, offsets)
    return np.frombuffer(bytearray().join(parts), np.uint8), compressed_sizes


def _check_readable(
    file: str, sizes: NDArray[np.int64], compressed_sizes: NDArray[np.int64], offsets: NDArray[np.int64]
) -> None:
    """Refuse batches that a reader would reject as decompression bombs. Sizes are those of the batches at `offsets`."""
    for i in np.flatnonzero(sizes > decompressed_limit_bytes(0)).tolist():
        before, after = (int(each[i]) - RECORD_BATCH_OVERHEAD_BYTES for each in (sizes, compressed_sizes))
        if before > decompressed_limit_bytes(after):
            raise InvalidRecordError(
                f"{file}: what stays of the batch at offset {int(offsets[i])} would shrink from {before} to "
                f"{after} bytes, which readers refuse to decompress"
            )
