"""The batches that read_committed leaves out: those of aborted transactions.

A reader with read_committed ends at the last stable offset and gets no data batch of an aborted transaction. What ends
a transaction is the next marker of its producer in the log. The `.txnindex` of the segment that holds an abort marker
repeats it, with the transaction's first offset; it may be missing, torn, or wrong.

    ScannedTransactions    the transactions of a range, by batch headers and markers: what a local log says itself
    ScannedRanges          what scans of closed segments have found, for the next reader
    AbortedTransactions    the aborted ones, which a reader leaves out
    SegmentTransactions    those of closed segments, for jobs that compare transaction indexes with markers
    CommittedBatches       the batches of a read that belong to no aborted transaction, compared with the markers read

Source of the rules: org.apache.kafka.storage.internals.log.TransactionIndex.collectAbortedTxns, ProducerStateManager
and the consumer's CompletedFetch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_record
from pyspark_kafkalog.record.header import CONTROL_MASK, RECORD_BATCH_OVERHEAD_BYTES, TRANSACTIONAL_MASK
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, TransactionIndex
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_file
from pyspark_kafkalog.storage.segment.reader import BatchRun
from pyspark_kafkalog.storage.segment.stored import listed_segments
from pyspark_kafkalog.units import INT64_MAX
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_logger = logging.getLogger(__name__)

_KIND_MASK: Final = TRANSACTIONAL_MASK | CONTROL_MASK
#: The bytes of a marker as Kafka writes it, from the record on: a length of one byte; no attributes, deltas of 0, a key
#: of 4 bytes (zigzag), version 0; then the low byte of the type.
_MARKER_HEAD: Final = bytes([0, 0, 0, 8, 0, 0, 0])
_MARKER_HEAD_AT: Final = RECORD_BATCH_OVERHEAD_BYTES + 1
_MARKER_TYPE_AT: Final = _MARKER_HEAD_AT + len(_MARKER_HEAD)
_ENDS_MAX: Final = 4096
_SCANNED_RANGES_MAX: Final = 256
_SCANNED_ENTRIES_MAX: Final = 65_536
_REBUILD: Final = (
    "on a root of this package run kafkalog reindex; in a broker's directory move the segment's .index file away: a "
    "broker that starts, and kafkalog adopt, rebuild its indexes; a remote segment's index comes from a copy"
)
_NO_MARKER: Final = int(ControlRecordType.UNKNOWN)
_ABORT: Final = int(ControlRecordType.ABORT)


class AbortedTransactions:
    """Aborted transactions of one partition, whose batches are left out.

    `indexed_until`: those with a marker below that offset come from transaction indexes, which a reader compares with
    the markers of the log; 0 if all come from markers.
    """

    def __init__(self, transactions: Iterable[AbortedTxn], *, indexed_until: int = 0) -> None:
        self.indexed_until = indexed_until
        self.transactions = tuple(sorted(transactions, key=lambda each: each.last_offset))
        self._first_offsets = {(each.producer_id, each.last_offset): each.first_offset for each in self.transactions}
        by_producer: dict[int, list[AbortedTxn]] = {}
        for each in self.transactions:
            by_producer.setdefault(each.producer_id, []).append(each)
        self._ranges = {producer_id: _offsets(own).T.copy() for producer_id, own in by_producer.items()}

    def agree(self, ended: EndedTransaction) -> bool:
        """Whether they say the same of a transaction with data, of whose batches those from its first offset on count.

        What comes from no index is right.
        """
        if not ended.is_aborted:
            return not self.overlap(ended.producer_id, ended.first_offset, ended.last_offset)
        if ended.last_offset >= self.indexed_until:
            return True
        return self._first_offsets.get((ended.producer_id, ended.last_offset), INT64_MAX) <= ended.first_offset

    def overlap(self, producer_id: int, first_offset: int, last_offset: int) -> bool:
        """Whether a transaction of the producer is said to reach into [first_offset, last_offset]."""
        ranges = self._ranges.get(producer_id)
        return ranges is not None and bool(((ranges[0] <= last_offset) & (ranges[1] >= first_offset)).any())

    def keep(self, batches: NDArray[np.void]) -> NDArray[np.void]:
        """`batches` (BATCH_DTYPE) without those of aborted transactions; control batches stay."""
        if not self._ranges:
            return batches
        is_aborted = self.is_aborted(batches)
        return batches[~is_aborted] if is_aborted.any() else batches

    def is_aborted(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """For each batch, whether it holds data of an aborted transaction."""
        import numpy as np

        result = np.zeros(len(batches), dtype=np.bool_)
        attributes = batches["attributes"]
        is_data = (attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)) == TRANSACTIONAL_MASK
        rows = np.flatnonzero(is_data)
        producer_ids = batches["producer_id"][rows]
        for producer_id in np.unique(producer_ids):
            ranges = self._ranges.get(int(producer_id))
            if ranges is None:
                continue
            own = rows[producer_ids == producer_id]
            first_offsets, last_offsets = ranges
            base_offsets = batches["base_offset"][own]
            at = np.searchsorted(last_offsets, base_offsets, side="left")
            inside = np.minimum(at, len(last_offsets) - 1)
            result[own] = (at < len(last_offsets)) & (first_offsets[inside] <= base_offsets)
        return result


def indexed_transactions(directory: Path, start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """The entries of the `.txnindex` files that overlap [start_offset, end_offset); none of a damaged file.

    Files that are replaced meanwhile are read again, as a cleaner moves entries between files.
    """
    indexes = listed_segments(directory).transaction_indexes(start_offset)
    while True:
        found = _collect(directory, sorted(indexes), start_offset, end_offset)
        before, indexes = indexes, listed_segments(directory).transaction_indexes(start_offset)
        if indexes == before:
            return found


def _collect(directory: Path, bases: Iterable[int], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for base_offset in bases:
        path = segment_file(directory, base_offset, TXN_INDEX_SUFFIX)
        with contextlib.suppress(CorruptIndexError), TransactionIndex.open(path, base_offset) as index:
            result = index.collect_aborted(start_offset, end_offset)
            found.extend(result.transactions)
            if result.is_complete:
                break
    return found


def marker_types(run: BatchRun, batches: NDArray[np.void]) -> NDArray[np.int64]:
    """The control record type of each of the run's control `batches`; UNKNOWN for one whose record was cleaned.

    Raises CorruptRecordError for a damaged batch.
    """
    import numpy as np

    from pyspark_kafkalog.record.scan import verify_crcs  # compiled, not needed for planning

    types = np.full(len(batches), _NO_MARKER, dtype=np.int64)
    rows = np.flatnonzero(batches["records_count"] > 0)
    if not len(rows):
        return types
    verify_crcs(run.data, batches[rows], data_position=run.position, file=run.file)
    starts = batches["position"][rows].astype(np.int64) - run.position
    # A batch with a record is longer than this head, or its only record is not a marker.
    fits = batches["size_bytes"][rows] > _MARKER_TYPE_AT
    heads = run.data[np.where(fits, starts, 0)[:, None] + np.arange(_MARKER_HEAD_AT, _MARKER_TYPE_AT + 1)]
    is_usual = fits & (heads[:, :-1] == np.frombuffer(_MARKER_HEAD, np.uint8)).all(axis=1)
    types[rows[is_usual]] = heads[is_usual, -1]
    for at in rows[~is_usual].tolist():
        types[at] = _parsed_type(run, int(batches["position"][at]))
    return types


def abort_markers(run: BatchRun) -> set[tuple[int, int]]:
    """Producer and offset of the abort markers of a run. Raises CorruptRecordError for a damaged one."""
    batches = run.batches[(run.batches["attributes"] & _KIND_MASK) == _KIND_MASK]
    batches = batches[marker_types(run, batches) == _ABORT]
    return set(zip(batches["producer_id"].tolist(), batches["base_offset"].tolist(), strict=True))


def _parsed_type(run: BatchRun, position: int) -> int:
    record = decode_batch(run.data, position - run.position, file=run.file, file_position=position).records[0]
    parsed = parse_control_record(record.key, record.value, file=run.file, file_position=position)
    return int(getattr(parsed, "control_type", _NO_MARKER))


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """A transaction that a marker at `last_offset` has ended.

    `first_offset` is that of its first batch in the scan, and the marker's own without a batch of it there. It may have
    begun below: before the scan, or with records that the cleaner has removed.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool

    @property
    def has_data(self) -> bool:
        """Whether a batch of it was scanned."""
        return self.first_offset < self.last_offset


@dataclass(slots=True)
class ScannedTransactions:
    """The transactions with data in [start of the scan, end_offset), by the batches in order.

    `open` has the first offset of each transaction that no marker has ended yet, by producer.
    """

    end_offset: int
    open: dict[int, int] = field(default_factory=dict)
    ended: list[EndedTransaction] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)  # producers of which a marker was read

    @property
    def producer_ids(self) -> set[int]:
        """The producers with data in the range."""
        return {*self.open, *(each.producer_id for each in self.ended)}

    @property
    def end_marker(self) -> int:
        """The offset of the last marker; above all offsets if a transaction is still open."""
        return INT64_MAX if self.open else max((each.last_offset for each in self.ended), default=-1)

    def add(self, run: BatchRun) -> None:
        """Add the next batches. Raises CorruptRecordError for a damaged marker."""
        batches = run.batches
        kinds = batches["attributes"] & _KIND_MASK
        is_wanted = (kinds == TRANSACTIONAL_MASK) & (batches["base_offset"] < self.end_offset)
        is_wanted |= kinds == _KIND_MASK
        if not is_wanted.any():
            return
        batches = batches[is_wanted]
        batches = batches[batches["producer_id"].argsort(kind="stable")]
        is_control = (batches["attributes"] & CONTROL_MASK) != 0
        types = is_control.astype("i8")
        types.fill(_NO_MARKER)
        types[is_control] = marker_types(run, batches[is_control])
        is_ending = (types == _ABORT) | (types == int(ControlRecordType.COMMIT))
        kept = is_ending | ~is_control
        self._add_sorted(batches[kept], types[kept], is_ending[kept])

    def _add_sorted(self, batches: NDArray[np.void], types: NDArray[np.int64], is_ending: NDArray[np.bool_]) -> None:
        """Add batches that are sorted by producer, then by offset."""
        import numpy as np

        ids, offsets = batches["producer_id"], batches["base_offset"]
        is_first = np.ones(len(batches), dtype=np.bool_)
        is_first[1:] = ids[1:] != ids[:-1]
        begins = is_first.copy()  # the first batch of a transaction, if it is data
        begins[1:] |= is_ending[:-1]
        began_at = np.maximum.accumulate(np.where(begins, np.arange(len(batches)), 0))
        groups = np.flatnonzero(is_first)
        for first, last in zip(groups.tolist(), [*(groups[1:] - 1).tolist(), len(batches) - 1], strict=True):
            self._add_producer(int(ids[first]), first, last, offsets, types, is_ending, began_at)

    def _add_producer(
        self,
        producer_id: int,
        first: int,
        last: int,
        offsets: NDArray[np.int64],
        types: NDArray[np.int64],
        is_ending: NDArray[np.bool_],
        began_at: NDArray[np.int64],
    ) -> None:
        """Add the rows [first, last] of one producer. Only rows that end a transaction cost Python's time."""
        for at in (is_ending[first : last + 1].nonzero()[0] + first).tolist():
            begin = int(began_at[at])
            is_known = begin > first or producer_id in self._known
            before = self.open.pop(producer_id, None)
            is_aborted = int(types[at]) == _ABORT
            if before is not None or begin < at or (is_aborted and not is_known):
                begin_offset = int(offsets[begin]) if before is None else before
                ended = EndedTransaction(producer_id, begin_offset, int(offsets[at]), is_aborted)
                self.ended.append(ended)
            self._known.add(producer_id)
        if not is_ending[last]:
            self.open.setdefault(producer_id, int(offsets[began_at[last]]))


class TransactionEnds:
    """Markers that scans have found behind their range, of the transactions of this process's readers.

    A bounded number; a reader looks whether the marker is still there before it relies on one. Used by threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: OrderedDict[tuple[str, int], EndedTransaction] = OrderedDict()

    def note(self, log: str, ended: EndedTransaction, end_offset: int) -> None:
        """Remember the end of a transaction of the log, unless its marker is in the range, which ends there."""
        if ended.last_offset < end_offset:
            return
        with self._lock:
            self._ends[log, ended.producer_id] = ended
            while len(self._ends) > _ENDS_MAX:
                self._ends.popitem(last=False)

    def get(self, log: str, producer_id: int, offset: int) -> EndedTransaction | None:
        """The end of the producer's transaction that has a batch at `offset`, if a scan from there or below has it."""
        with self._lock:
            known = self._ends.get((log, producer_id))
        return known if known is not None and known.first_offset <= offset < known.last_offset else None


@dataclass(frozen=True, slots=True)
class _ScannedSegment:
    """A closed segment: its offsets, and what its `.log` was before it was scanned."""

    directory: str
    base_offset: int
    end_offset: int
    log: tuple[int, int, int, int]


@dataclass(slots=True)
class _ScannedRange:
    segment: _ScannedSegment
    start_offset: int
    end_offset: int
    aborted: list[AbortedTxn]
    offsets: NDArray[np.int64]  # first and last offset of each


class ScannedRanges:
    """What scans of closed segments have found, so that the next reader of the same range does not scan it again.

    One range a segment, which grows as a consumer reads on. Only transactions that end in their segment: markers behind
    it may be truncated with other segments. Bounded; used by threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges: OrderedDict[tuple[str, int], _ScannedRange] = OrderedDict()
        self._newest: dict[str, int] = {}  # by directory: the base offset of the range that was used last
        self._entries = 0

    def find(self, directory: Path, start_offset: int, end_offset: int) -> list[AbortedTxn] | None:
        """The aborted transactions of a range that was scanned, None if it was not, or its segment has changed."""
        name = str(directory)
        with self._lock:
            known = self._ranges.get((name, self._newest.get(name, -1)))
            if known is None or not known.start_offset <= start_offset < known.segment.end_offset:
                at = [known for (each, _), known in self._ranges.items() if each == name]
                known = next((each for each in at if each.start_offset <= start_offset < each.end_offset), None)
            if known is None or not known.start_offset <= start_offset or end_offset > known.end_offset:
                return None
            self._newest[name] = known.segment.base_offset
            self._ranges.move_to_end((name, known.segment.base_offset))
            aborted, offsets, segment = known.aborted, known.offsets, known.segment
        if _log_identity(directory, segment.base_offset) != segment.log:
            return None
        # Not by the last stable offsets of the entries, which nothing has confirmed.
        is_wanted = (offsets[:, 1] >= start_offset) & (offsets[:, 0] < end_offset)
        return [aborted[at] for at in is_wanted.nonzero()[0].tolist()]

    @staticmethod
    def segment_at(directory: Path, bases: Sequence[int], offset: int) -> _ScannedSegment | None:
        """The closed segment with `offset`, before it is scanned; None if that is the last one, or there is none."""
        at = bisect_right(bases, offset)
        log = _log_identity(directory, bases[at - 1]) if 0 < at < len(bases) else None
        return None if log is None else _ScannedSegment(str(directory), bases[at - 1], bases[at], log)

    def note(self, segment: _ScannedSegment, start_offset: int, end_offset: int, aborted: Iterable[AbortedTxn]) -> None:
        """Remember what a scan of a range of the segment has found."""
        import numpy as np

        key = segment.directory, segment.base_offset
        found = list(aborted)
        with self._lock:
            known = self._ranges.get(key)
            is_same = known is not None and known.segment == segment
            if known is not None and is_same and known.start_offset <= start_offset <= known.end_offset:
                again = (known.offsets[:, 1] >= start_offset).nonzero()[0].tolist()
                markers = {(known.aborted[at].producer_id, known.aborted[at].last_offset) for at in again}
                found = [each for each in found if (each.producer_id, each.last_offset) not in markers]
                known = _ScannedRange(
                    segment,
                    known.start_offset,
                    max(end_offset, known.end_offset),
                    [*known.aborted, *found],
                    np.concatenate([known.offsets, _offsets(found)]),
                )
            else:
                self._entries -= 0 if known is None else len(known.aborted)
                known = _ScannedRange(segment, start_offset, end_offset, found, _offsets(found))
            self._entries += len(found)
            self._ranges[key] = known
            self._newest[segment.directory] = segment.base_offset
            self._ranges.move_to_end(key)
            while self._ranges and (self._entries > _SCANNED_ENTRIES_MAX or len(self._ranges) > _SCANNED_RANGES_MAX):
                (name, base_offset), dropped = self._ranges.popitem(last=False)
                self._entries -= len(dropped.aborted)
                if self._newest.get(name) == base_offset:
                    del self._newest[name]


def _offsets(transactions: Sequence[AbortedTxn]) -> NDArray[np.int64]:
    import numpy as np

    return np.array([(each.first_offset, each.last_offset) for each in transactions], np.int64).reshape(-1, 2)


def _log_identity(directory: Path, base_offset: int) -> tuple[int, int, int, int] | None:
    try:
        status = segment_file(directory, base_offset, LOG_SUFFIX).lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def confirmed(
    scanned: ScannedTransactions, indexed: Iterable[AbortedTxn], last_ends: dict[int, int] | None = None
) -> tuple[list[AbortedTxn], EndedTransaction | None]:
    """The aborted transactions of a scan, and the first transaction of which the index says something wrong.

    The index knows where a transaction begins that begins below the scan or whose first records the cleaner has
    removed, and the last stable offset after it. No entry may reach over the producer's transaction before, nor into
    one that was committed. `last_ends` has the marker of that transaction by producer, and is kept up to date.
    """
    indexed = list(indexed)
    by_marker = {(each.producer_id, each.last_offset): each for each in indexed}
    said = AbortedTransactions(indexed)
    found, wrong = [], None
    last_ends = {} if last_ends is None else last_ends
    for each in scanned.ended:
        last_end = last_ends.get(each.producer_id, -1)
        last_ends[each.producer_id] = each.last_offset
        if not each.is_aborted:
            if wrong is None and each.has_data and said.overlap(each.producer_id, each.first_offset, each.last_offset):
                wrong = each
            continue
        entry = by_marker.get((each.producer_id, each.last_offset))
        if entry is None or not last_end < entry.first_offset <= each.first_offset:
            if not each.has_data:
                continue  # nothing of it was in the partition, or it is not in the range
            wrong = wrong or each
            # The first offset is a last stable offset that is never too high.
            entry = AbortedTxn(each.producer_id, each.first_offset, each.last_offset, each.first_offset)
        found.append(entry)
    return found, wrong


class SegmentTransactions:
    """The transactions of one segment after the other, by their batches and markers, to compare indexes with.

    `open_before` has the first offset of those that are open at the beginning, by producer, as far as known;
    `last_ends` the markers of the transactions before, which is kept up to date.
    """

    def __init__(self, open_before: Mapping[int, int] | None = None, last_ends: dict[int, int] | None = None) -> None:
        self._scanned = ScannedTransactions(INT64_MAX, dict(open_before or {}))
        self._last_ends = {} if last_ends is None else last_ends
        self._aborts: set[tuple[int, int]] = set()

    def add(self, run: BatchRun) -> None:
        """Add the next batches. Raises CorruptRecordError for a damaged marker."""
        self._scanned.add(run)
        self._aborts |= abort_markers(run)

    def check(self, indexed: Sequence[AbortedTxn], *, file: str) -> None:
        """Compare the entries of a segment's index, `file`, with the batches since the last segment.

        Raises CorruptIndexError.
        """
        wrong, unmarked = self._compare(indexed)[1:]
        if wrong is not None:
            raise wrong_index_error(wrong, file=file)
        if unmarked is not None:
            raise CorruptIndexError(
                file=file,
                position=0,
                expected=f"an abort marker of producer {unmarked.producer_id} at offset {unmarked.last_offset}, as an "
                "entry of the transaction index says",
                found="none",
                advice=_REBUILD,
            )

    def right_entries(self, indexed: Sequence[AbortedTxn]) -> list[AbortedTxn]:
        """The entries of an index that agrees with the segment's markers, by markers."""
        return sorted(self._compare(indexed)[0], key=lambda each: each.last_offset)

    def _compare(
        self, indexed: Sequence[AbortedTxn]
    ) -> tuple[list[AbortedTxn], EndedTransaction | None, AbortedTxn | None]:
        found, wrong = confirmed(self._scanned, indexed, self._last_ends)
        unmarked = next((each for each in indexed if (each.producer_id, each.last_offset) not in self._aborts), None)
        self._scanned.ended, self._aborts = [], set()
        return found, wrong, unmarked


class TransactionScan(Protocol):
    """Reads batches and markers of the log that CommittedBatches does not meet itself."""

    def end_open(self, scanned: ScannedTransactions, offset: int, until: int) -> None:
        """Read on from `offset` up to `until`, or to the markers that end the open transactions of `scanned`."""
        ...

    def transactions(
        self, start_offset: int, end_offset: int, *, open_before: Mapping[int, int]
    ) -> ScannedTransactions:
        """The transactions with data in the range."""
        ...


class CommittedBatches:
    """Leaves out the batches of aborted transactions of one read, which ends at `end_offset`.

    `find(offset)` gives the aborted transactions from that offset on; it is called at the first batch of a transaction,
    and never for a range without one. Those that come from transaction indexes are compared with the markers: of the
    read in `keep`, behind it, for transactions that are open at its end, in `finish`. A read that is not `is_whole`
    may not have met all markers: then the log is read again before an index is called wrong.
    """

    def __init__(
        self, find: Callable[[int], AbortedTransactions], scan: TransactionScan, end_offset: int, *, is_whole: bool
    ) -> None:
        self._find = find
        self._scan = scan
        self._end_offset = end_offset
        self._is_whole = is_whole
        self._aborted: AbortedTransactions | None = None
        self._scanned = ScannedTransactions(end_offset)
        self._scanned_until = 0
        self._file = ""

    def keep(self, run: BatchRun) -> NDArray[np.void]:
        """The batches of a run without those of aborted transactions; control batches stay.

        Raises CorruptIndexError if a transaction index says something else than the log.
        """
        batches = run.batches
        is_data = (batches["attributes"] & _KIND_MASK) == TRANSACTIONAL_MASK
        if self._aborted is None:
            if not is_data.any():
                return batches
            self._aborted = self._find(int(batches["base_offset"][is_data.argmax()]))
        if int(batches["base_offset"][0]) < self._aborted.indexed_until:
            self._file = run.file
            self._scanned.add(run)
            self._scanned_until = int(batches["last_offset"][-1]) + 1
            self._compare(self._aborted, run)
        return self._aborted.keep(batches)

    def finish(self) -> None:
        """Compare the transactions that are open at the end of the read, where their markers are.

        One that is said to be aborted is followed to its marker also behind the part of the log with indexes.
        Raises CorruptIndexError if a transaction index says something else than the log, DiskFormatError.
        """
        scanned, aborted = self._scanned, self._aborted
        if aborted is None or not scanned.open:
            return
        if not self._is_whole:  # some may have ended in what was not read
            begin = min(scanned.open.values())
            self._scanned = self._scan.transactions(begin, self._end_offset, open_before={})
        else:
            is_doubtful = any(aborted.overlap(each, first, INT64_MAX) for each, first in scanned.open.items())
            until = INT64_MAX if is_doubtful else aborted.indexed_until
            is_beyond = self._end_offset > aborted.indexed_until  # so the last part was not scanned
            self._scan.end_open(scanned, self._scanned_until if is_beyond else self._end_offset, until)
        self._compare(aborted, None)

    def _compare(self, aborted: AbortedTransactions, run: BatchRun | None) -> None:
        ended, self._scanned.ended = self._scanned.ended, []
        for each in ended:
            if not each.has_data or aborted.agree(each):
                continue
            if self._is_whole or self._is_confirmed(each):
                position = 0 if run is None else _position_of(run, each.last_offset)
                raise wrong_index_error(each, file=self._file, position=position)

    def _is_confirmed(self, ended: EndedTransaction) -> bool:
        found = self._scan.transactions(ended.first_offset, ended.first_offset + 1, open_before={}).ended
        return any(
            (each.producer_id, each.last_offset, each.is_aborted)
            == (ended.producer_id, ended.last_offset, ended.is_aborted)
            for each in found
        )


def wrong_index_error(transaction: EndedTransaction, *, file: str, position: int = 0) -> CorruptIndexError:
    """The error for a transaction index that says something else than a marker; `file` holds the marker or the log."""
    producer_id, last_offset = transaction.producer_id, transaction.last_offset
    if transaction.is_aborted:
        expected = (
            f"an entry in the transaction index for the abort marker of producer {producer_id} at offset {last_offset}"
            f", which aborts the records from offset {transaction.first_offset} on"
        )
        found = "none that is right"
    else:
        expected = (
            f"no entry in the transaction index for the records from offset {transaction.first_offset} on, which the "
            f"commit marker of producer {producer_id} at offset {last_offset} commits"
        )
        found = "an entry that aborts them"
    return CorruptIndexError(file=file, position=position, expected=expected, found=found, advice=_REBUILD)


@functools.lru_cache(maxsize=1024)
def warn_once(directory: Path) -> None:
    """Log that a partition's transaction index is wrong: not for each of the reads that meet it."""
    _logger.warning(
        "%s: transaction indexes differ from the markers of the log, which decide; kafkalog verify names the files and "
        "how they are rebuilt",
        directory,
    )


def _position_of(run: BatchRun, offset: int) -> int:
    at = int(run.batches["base_offset"].searchsorted(offset))
    return int(run.batches["position"][min(at, len(run.batches) - 1)])
