"""Reads a partition's records as Arrow batches: no lock, no write, memory bounded by chunk and batch size.

A reader takes offsets, never file positions, and finds the segment by the floor of the base offsets. Retention and the
cleaner may delete or replace a segment during the read: an open local one remains readable, and if a segment is gone,
the reader lists the extents again and continues at the offset that it has reached.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from pyspark_kafkalog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    DiskFormatError,
    InvalidRecordError,
    OffsetOutOfRangeError,
)
from pyspark_kafkalog.record.header import NO_TIMESTAMP, RECORD_BATCH_OVERHEAD_BYTES, Buffer
from pyspark_kafkalog.record.reference import iterate_batch
from pyspark_kafkalog.storage.artefacts.index_file import read_entries
from pyspark_kafkalog.storage.artefacts.producer_snapshot import NO_OFFSET, read_snapshot
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY_BYTES, AbortedTxn, parse_aborted
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.log.isolation import (
    AbortedTransactions,
    CommittedBatches,
    EndedTransaction,
    ScannedRanges,
    ScannedTransactions,
    TransactionEnds,
    confirmed,
    indexed_transactions,
    warn_once,
    wrong_index_error,
)
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_partition_dir,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import CHUNK_BYTES, BatchRun, Extent, LocalExtent, SegmentReader
from pyspark_kafkalog.storage.segment.stored import cut_points, first_since, forget_listing, latest_in, listed_segments
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX, MIB
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

#: What a scan of headers reads at once: most transactions end soon behind the range that is asked for.
SCAN_CHUNK_BYTES: Final = MIB
_REPLACED_SEGMENT_TRIES: Final = 10
_NO_TARGET_BYTES: Final = 1 << 62
_BASE_OFFSET: Final = attrgetter("base_offset")
#: What a read of a segment consists of.
_Part = TypeVar("_Part")

_transaction_ends: Final = TransactionEnds()
_scanned_ranges: Final = ScannedRanges()


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets [start_offset, end_offset) to read in one task, and their approximate size in bytes of `.log`."""

    start_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TimestampAndOffset:
    """A record's timestamp in ms, its offset, and the leader epoch of its batch (-1: none)."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class PartitionExtents(Protocol):
    """Provides the extents of one partition. Retention, the cleaner and writers may change them at any time."""

    @property
    def name(self) -> str:
        """What error messages call the partition's log: the path of a local directory."""
        ...

    def current(self) -> Sequence[Extent]:
        """The present extents in the order of their base offsets, which is also that of their ends.

        Offsets between two extents that are in neither no longer exist. Raises OSError, DiskFormatError.
        """
        ...

    def after_loss(self, extent: Extent) -> Sequence[Extent]:
        """The extents after one of them turned out to be gone. Raises as `current`; OffsetOutOfRangeError if it should
        be there still."""
        ...

    def is_being_replaced(self, base_offset: int) -> bool:
        """Whether several extents are just being replaced by one, which has that base offset. `current` may then
        contain those whose records this one already holds."""
        ...

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """The aborted transactions in [start_offset, end_offset). Raises DiskFormatError for damage."""
        ...

    def widen(self) -> None:
        """Also list what follows the offsets for which these were made, as of now. Raises as `current`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalExtents:
    """The segments in a local partition directory. Raises LogDirError if `directory` is a symbolic link."""

    directory: Path

    def __post_init__(self) -> None:
        refuse_link(self.directory)

    @property
    def name(self) -> str:
        """The path of the directory."""
        return str(self.directory)

    def current(self) -> Sequence[LocalExtent]:
        """The segments that the directory holds now, in order. Raises OSError, DiskFormatError."""
        return listed_segments(self.directory)

    def after_loss(self, extent: Extent) -> Sequence[LocalExtent]:
        """The segments that the directory holds now: a missing one was deleted or replaced."""
        forget_listing(self.directory)
        return self.current()

    def widen(self) -> None:
        """Do nothing: all segments are listed."""

    def is_being_replaced(self, base_offset: int) -> bool:
        """Whether the segment has a `.swap` file, which exists until all that it replaces have lost their names."""
        return segment_file(self.directory, base_offset, LOG_SUFFIX + SWAP_SUFFIX).exists()

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """The aborted transactions in the range, by the markers of the log; the `.txnindex` files need not be right.

        What begins below the first segment is in the producer snapshot there. Raises DiskFormatError for damage.
        """
        known = _scanned_ranges.find(self.directory, start_offset, end_offset)
        if known is not None:
            return AbortedTransactions(known)
        found, wrong = self._aborted(start_offset, end_offset)
        if wrong is not None:
            warn_once(self.directory)
        return AbortedTransactions(found)

    def indexed_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions in the range for a job that copies the entries of the `.txnindex` files.

        Raises CorruptIndexError if these do not have them all, or have a committed one, DiskFormatError.
        """
        found, wrong = self._aborted(start_offset, end_offset)
        if wrong is not None:
            raise wrong_index_error(wrong, file=self.name, position=0)
        return found

    def check_transaction_index(self, base_offset: int, end_offset: int) -> None:
        """Check that the `.txnindex` of the closed segment [base_offset, end_offset) is whole, names each of its abort
        markers and no committed transaction: readers of a copy in remote storage rely on it.

        Raises CorruptIndexError, DiskFormatError.
        """
        path = segment_file(self.directory, base_offset, TXN_INDEX_SUFFIX)
        try:
            data = read_entries(path, TXN_INDEX_ENTRY_BYTES, batch_bytes_min=RECORD_BATCH_OVERHEAD_BYTES)
            indexed = parse_aborted(data, file=str(path))
        except FileNotFoundError:
            indexed = []
        scanned = ScannedTransactions(end_offset, self._open_at(base_offset, end_offset) or {})
        for run in self._reader().runs(base_offset, end_offset, is_scan=True):
            scanned.add(run)
        wrong = confirmed(scanned, indexed)[1]
        if wrong is not None:
            raise wrong_index_error(wrong, file=str(path), position=0)

    def _reader(self) -> LogReader:
        return LogReader(self, parse_partition_dir(self.directory.name) or TopicPartition(self.directory.name, 0))

    def _aborted(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTxn], EndedTransaction | None]:
        bases = listed_segments(self.directory).base_offsets
        first_base = next(iter(bases), 0)
        segment = ScannedRanges.segment_at(self.directory, bases, start_offset)
        indexed = indexed_transactions(self.directory, start_offset, end_offset)
        before = {} if start_offset >= first_base else self._open_at(first_base, end_offset)
        scanned = self._reader().transactions(max(start_offset, first_base), end_offset, open_before=before or {})
        found, wrong = confirmed(scanned, indexed)
        scanned_ids = scanned.producer_ids
        if before is None or start_offset >= first_base:
            # A broker names transactions without a batch in the range, too: these hide nothing. And without the
            # snapshot only the index knows of transactions that begin below the first segment.
            found += [each for each in indexed if each.producer_id not in scanned_ids]
        if segment is not None and scanned.end_marker < segment.end_offset and end_offset <= segment.end_offset:
            _scanned_ranges.note(segment, start_offset, end_offset, found)
        return found, wrong

    def _open_at(self, base_offset: int, end_offset: int) -> dict[int, int] | None:
        """First offset, by producer, of the transactions below `end_offset` that are open at the segment's beginning.

        None without a usable producer snapshot.
        """
        try:
            entries = read_snapshot(segment_file(self.directory, base_offset, PRODUCER_SNAPSHOT_SUFFIX))
        except (FileNotFoundError, CorruptIndexError):
            return None
        begins = {each.producer_id: each.current_txn_first_offset for each in entries}
        return {producer_id: first for producer_id, first in begins.items() if NO_OFFSET < first < end_offset}


class LogReader:
    """Reads one partition. Its extents are listed by the first read that needs them, and again where they changed.

    A server passes the topic's max.decompressed.message.bytes as `record_max_bytes`: lookups by time then raise
    InvalidRecordError at a larger record of a compressed batch.
    """

    def __init__(
        self, extents: PartitionExtents, topic_partition: TopicPartition, *, record_max_bytes: int = INT32_MAX
    ) -> None:
        self.extents = extents
        self.topic_partition = topic_partition
        self._records_of = functools.partial(iterate_batch, record_max_bytes=record_max_bytes)
        self._listed: Sequence[Extent] = ()  # as last listed
        self._segment: SegmentReader | None = None  # the one that `runs` reads
        #: The offset that the last read has reached: all records of its range below it were returned.
        self.reached_offset = 0

    def read(
        self,
        start_offset: int,
        end_offset: int,
        *,
        schema: pa.Schema,
        committed: bool = False,
        min_timestamp_ms: int | None = None,
        until_timestamp_ms: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Records with start_offset <= offset < end_offset as batches of `schema` (a subset of KAFKA_SCHEMA's columns).

        `committed` leaves out records of aborted transactions; the caller's range then ends at the last stable offset.
        With a timestamp range only records in [min, until) are returned. Control records are never returned.

        Raises CorruptRecordError for damage in the range or if the log ends before `end_offset`, and
        OffsetOutOfRangeError if `start_offset` is below the first segment because retention has deleted it.
        InvalidRecordError for a timestamp that the type in `schema` cannot hold: see record.arrow.
        """
        from pyspark_kafkalog.record.arrow import to_record_batch  # imports compiled code, not needed for planning
        from pyspark_kafkalog.record.decode import decode_slices

        if start_offset >= end_offset:
            return  # before any file access: a topic whose creator was killed may have no directory yet
        columns = frozenset(schema.names) - {"topic", "partition"}
        of = self.topic_partition
        to_arrow = functools.partial(to_record_batch, schema=schema, topic=of.topic, partition=of.partition)
        committed_batches = self._committed(end_offset, is_whole=min_timestamp_ms is None) if committed else None
        for run in self.runs(start_offset, end_offset, min_timestamp_ms=min_timestamp_ms):
            batches = run.batches if committed_batches is None else committed_batches.keep(run)
            decode = functools.partial(
                decode_slices,
                run.data,
                batches,
                data_position=run.position,
                file=run.file,
                start_offset=start_offset,
                end_offset=end_offset,
                min_timestamp_ms=min_timestamp_ms,
                until_timestamp_ms=until_timestamp_ms,
                has_timestamps=run.has_timestamps,
            )
            try:
                yield from map(to_arrow, decode(columns=columns))
            except DiskFormatError as error:
                raise self._placed(error) from None
            except InvalidRecordError:  # with the offset, the error names it
                for _ in map(to_arrow, decode(columns=columns | {"offset"})):
                    pass
                raise
        if committed_batches is not None:
            committed_batches.finish()

    def _committed(self, end_offset: int, *, is_whole: bool) -> CommittedBatches:
        return CommittedBatches(
            lambda offset: self.extents.aborted_transactions(offset, end_offset),
            LogReader(self.extents, self.topic_partition),
            end_offset,
            is_whole=is_whole,
        )

    def transactions(
        self, start_offset: int, end_offset: int, *, open_before: Mapping[int, int]
    ) -> ScannedTransactions:
        """The transactions with data in [start_offset, end_offset), by their batches and markers.

        `open_before` has the first offset of those that are open at `start_offset`, by producer. A range that ends at
        the last stable offset or below is read on until a marker has ended each transaction. The end that was found is
        remembered: a client that reads a long transaction in many steps asks for it each time.
        Raises DiskFormatError for damage.
        """
        scanned = ScannedTransactions(end_offset, dict(open_before))
        self._scan(scanned, start_offset, INT64_MAX)
        return scanned

    def _scan(self, scanned: ScannedTransactions, start_offset: int, until: int) -> None:
        for run in self.runs(start_offset, until, is_scan=True):
            scanned.add(run)
            if int(run.batches["last_offset"][-1]) + 1 >= scanned.end_offset:
                name = self.extents.name
                for ended in (each for each in scanned.ended if each.last_offset >= scanned.end_offset):
                    _transaction_ends.note(name, ended, scanned.end_offset)
                self._end_known(scanned)
                if not scanned.open:
                    break

    def end_open(self, scanned: ScannedTransactions, offset: int, until: int) -> None:
        """Read on from `offset` up to `until`, or to the markers that end the open transactions of `scanned`.

        Extents that were made for a range are widened if they end before. Raises DiskFormatError for damage.
        """
        self._end_known(scanned)
        for is_widened in (False, True):
            if not scanned.open or offset >= until:
                return
            self.reached_offset = offset
            try:
                self._scan(scanned, offset, until)
            except (DiskFormatError, OffsetOutOfRangeError):
                if is_widened:
                    raise
            offset = self.reached_offset
            if not is_widened and scanned.open and offset < until:
                self.extents.widen()
                self._listed = ()

    def _end_known(self, scanned: ScannedTransactions) -> None:
        """End the open transactions whose marker an earlier scan has found, if it is still there."""
        for producer_id, first_offset in list(scanned.open.items()):
            known = _transaction_ends.get(self.extents.name, producer_id, first_offset)
            if known is not None and self._is_marker(known):
                del scanned.open[producer_id]
                scanned.ended.append(replace(known, first_offset=first_offset))

    def _is_marker(self, ended: EndedTransaction) -> bool:
        try:
            with self._open_floor(ended.last_offset) as segment:
                found = segment.locate(ended.last_offset)
        except (DiskFormatError, OffsetOutOfRangeError, FileNotFoundError):
            return False
        header = None if found is None else found[1]
        return header is not None and (header.base_offset, header.producer_id, header.is_control) == (
            ended.last_offset,
            ended.producer_id,
            True,
        )

    def runs(
        self, start_offset: int, end_offset: int, *, min_timestamp_ms: int | None = None, is_scan: bool = False
    ) -> Iterator[BatchRun]:
        """Runs of checked batches that overlap [start_offset, end_offset); a run's data is valid until the next run.

        With `min_timestamp_ms` batches that the time indexes show to be older may be left out. With `is_scan` CRCs are
        not compared, runs are small, and the log may end before the range.
        """

        def read(segment: SegmentReader, following: int | None) -> Iterator[BatchRun]:
            return self._segment_runs(segment, end_offset, following, min_timestamp_ms, is_scan=is_scan)

        return self._of_each_segment(start_offset, end_offset, read, may_end_before=is_scan)

    def batches(self, start_offset: int, end_offset: int) -> Iterator[tuple[str, int, Buffer]]:
        """File, position in it, and bytes of each checked batch that overlaps [start_offset, end_offset).

        For a few batches: they are read one by one, without compiled code. Raises as `runs`.
        """

        def read(segment: SegmentReader, following: int | None) -> Iterator[tuple[str, int, Buffer]]:
            found = segment.batches(
                segment.position_for_offset(self.reached_offset),
                start_offset=self.reached_offset,
                end_offset=end_offset,
                limit_offset=following,
                limit_now=functools.partial(self._limit_now, segment.base_offset),
            )
            return ((segment.file, position, data) for position, data in found)

        return self._of_each_segment(start_offset, end_offset, read)

    def _of_each_segment(
        self,
        start_offset: int,
        end_offset: int,
        read: Callable[[SegmentReader, int | None], Iterator[_Part]],
        *,
        may_end_before: bool = False,
    ) -> Iterator[_Part]:
        """What `read` returns of each segment in the range; `read` also gets the base offset of the next segment."""
        self.reached_offset = start_offset
        while self.reached_offset < end_offset:
            with self._open_floor(self.reached_offset) as segment:
                if segment.base_offset >= end_offset:
                    return
                following = self._next_base(segment.extent)
                self._segment = segment
                try:
                    yield from read(segment, following)
                except FileNotFoundError:  # a remote one was deleted while it was read
                    self.reached_offset = max(self.reached_offset, segment.reached_offset)
                    self._listed = self.extents.after_loss(segment.extent)
                    continue
                except DiskFormatError as error:
                    raise segment.placed(error) from None
                if following is None and segment.reached_offset < end_offset:
                    if may_end_before:
                        return
                    raise self._log_too_short(segment, end_offset)
                self.reached_offset = max(self.reached_offset, segment.reached_offset, following or 0)

    def _placed(self, error: DiskFormatError) -> DiskFormatError:
        return error if self._segment is None else self._segment.placed(error)

    def _segment_runs(
        self,
        segment: SegmentReader,
        end_offset: int,
        following: int | None,
        min_timestamp_ms: int | None,
        *,
        is_scan: bool,
    ) -> Iterator[BatchRun]:
        """The runs of one segment from the offset that was reached on."""
        latest_ms = segment.extent.known_max_timestamp_ms
        if min_timestamp_ms is not None and latest_ms is not None and latest_ms < min_timestamp_ms:
            return
        position = segment.position_for_offset(self.reached_offset)
        if min_timestamp_ms is not None:
            position = max(position, segment.position_for_timestamp(min_timestamp_ms))
        yield from segment.runs(
            position,
            start_offset=self.reached_offset,
            end_offset=end_offset,
            limit_offset=following,
            limit_now=functools.partial(self._limit_now, segment.base_offset),
            check_crcs=not is_scan,
            chunk_bytes=SCAN_CHUNK_BYTES if is_scan else CHUNK_BYTES,
        )

    def check_end(self, high_watermark: int) -> None:
        """Raise CorruptRecordError unless the active segment has the batch that ends right below `high_watermark`.

        A high watermark is between two batches. If the batch below it is missing, committed records are missing, or
        the batch's base offset, which no CRC covers, is damaged. A closed segment is not checked, as the cleaner may
        have removed its last records.
        """
        with self._open_floor(high_watermark - 1) as segment:
            if segment.extent.end_offset is not None:
                return
            if not segment.has_batch_below(high_watermark) and self._next_base(segment.extent) is None:
                raise self._log_too_short(segment, high_watermark)

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int, end_offset: int) -> TimestampAndOffset | None:
        """The first record in offset order in [start_offset, end_offset) with a timestamp of at least `timestamp_ms`.

        Control records count, as in Kafka's ListOffsets. Returns None if no record matches.
        """
        next_offset = start_offset
        while next_offset < end_offset:
            next_offset = self._next_since(next_offset, timestamp_ms)
            if next_offset >= end_offset:
                return None
            with self._open_floor(next_offset) as segment:
                latest_ms = segment.extent.known_max_timestamp_ms
                if latest_ms is None or latest_ms >= timestamp_ms:
                    try:
                        found = self._first_since(segment, timestamp_ms, next_offset, end_offset)
                    except FileNotFoundError:
                        self._listed = self.extents.after_loss(segment.extent)
                        continue
                    if found is not None:
                        return found
                following = self._next_base(segment.extent)
            if following is None:
                return None
            next_offset = following
        return None

    def _next_since(self, offset: int, timestamp_ms: int) -> int:
        """`offset`, or the base offset of the next extent with such a timestamp if it is known that those before have
        none."""
        self._floor(offset)
        at = bisect.bisect_right(self._listed, offset, key=_BASE_OFFSET) - 1
        return max(offset, self._listed[first_since(self._listed, at, timestamp_ms)].base_offset)

    def _first_since(
        self, segment: SegmentReader, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        first = max(segment.position_for_offset(start_offset), segment.position_for_timestamp(timestamp_ms))
        for position, header in segment.headers(first):
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset:
                data = segment.batch_at(position, header)
                for record in self._records_of(data, 0, file=segment.file, file_position=position):
                    if record.timestamp_ms >= timestamp_ms and start_offset <= record.offset < end_offset:
                        return TimestampAndOffset(record.timestamp_ms, record.offset, header.leader_epoch)
            if header.next_offset >= end_offset:
                return None  # the rest may be the torn tail of a killed broker
        return None

    def offset_of_max_timestamp(self, start_offset: int, end_offset: int) -> TimestampAndOffset | None:
        """The first record with the largest timestamp of the log, if its offset is in [start_offset, end_offset).

        Control records count, as in Kafka's ListOffsets. Returns None if the offset is outside the range, or no record
        has a timestamp. Of closed segments, only the last time index entry and the batch that confirms it are read.
        """
        while True:
            try:
                best = self._latest_batch(start_offset, end_offset)
                return None if best is None else self._record_at(*best, start_offset, end_offset)
            except _LostExtentError as lost:
                self._listed = self.extents.after_loss(lost.extent)

    def _latest_batch(self, start_offset: int, end_offset: int) -> tuple[int, Extent, int] | None:
        """The first batch with the largest timestamp: the timestamp, its segment, its position there."""
        best: tuple[int, Extent, int] | None = None
        next_offset: int | None = start_offset
        while next_offset is not None and next_offset < end_offset:
            with self._open_floor(next_offset) as segment, _naming_lost(segment.extent):
                following = self._next_base(segment.extent)
                known_ms = segment.extent.known_max_timestamp_ms
                largest_ms = NO_TIMESTAMP if best is None else best[0]
                if known_ms is None or known_ms > largest_ms:
                    latest_ms, position = latest_in(segment, is_closed=following is not None)
                    if latest_ms > largest_ms:
                        best = (latest_ms, segment.extent, position)
            next_offset = following
        return best

    def _record_at(
        self, timestamp_ms: int, extent: Extent, position: int, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        """The first record with exactly that timestamp in a batch, if its offset is in the range."""
        with _naming_lost(extent), SegmentReader(extent) as segment:
            header = segment.header_at(position)
            data, file = segment.batch_at(position, header), segment.file
        for record in self._records_of(data, 0, file=file, file_position=position):
            if record.timestamp_ms == timestamp_ms:
                inside = start_offset <= record.offset < end_offset
                return TimestampAndOffset(timestamp_ms, record.offset, header.leader_epoch) if inside else None
        return None

    def split(self, start_offset: int, end_offset: int, target_bytes: int, *, relist: bool = True) -> list[Split]:
        """Cut [start_offset, end_offset) at index entries into splits of about `target_bytes` of `.log` each.
        Without `relist` the extents are those that the reader listed last, for calls of one plan."""
        return list(self._splits(start_offset, end_offset, target_bytes, relist=relist))

    def head(self, start_offset: int, end_offset: int, target_bytes: int) -> Split:
        """The first of `split`; opens no more segments than necessary. Never empty unless the range is."""
        return next(self._splits(start_offset, end_offset, target_bytes), Split(start_offset, end_offset, 0))

    def _splits(self, start_offset: int, end_offset: int, target_bytes: int, *, relist: bool = True) -> Iterator[Split]:
        split_start, split_bytes, reached = start_offset, 0, start_offset
        if relist or not self._listed or _ends_by(self._listed[-1], end_offset - 1):
            self._listed = self.extents.current()
        listed = self._listed
        first = max(bisect.bisect_right(listed, start_offset, key=_BASE_OFFSET) - 1, 0)
        for extent in (listed[at] for at in range(first, len(listed))):  # bounded: the extents
            if extent.base_offset >= end_offset:
                break
            begin = max(reached, extent.base_offset)
            reached = end_offset if extent.end_offset is None else min(extent.end_offset, end_offset)
            for cut_offset, size_bytes in cut_points(
                extent, begin, reached, first_bytes=target_bytes - split_bytes, each_bytes=target_bytes
            ):
                split_bytes += size_bytes
                if split_bytes >= target_bytes and split_start < cut_offset < end_offset:
                    yield Split(split_start, cut_offset, split_bytes)
                    split_start, split_bytes = cut_offset, 0
        if split_start < end_offset:
            yield Split(split_start, end_offset, split_bytes)

    def first_offset_from(self, offset: int, *, default: int) -> int:
        """The first offset from `offset` on that is in a segment now, `default` if there is none."""
        found = (max(each.base_offset, offset) for each in self.extents.current() if not _ends_by(each, offset))
        return next(found, default)

    def size_bytes(self, start_offset: int, end_offset: int) -> int:
        """Approximate size of the offsets [start_offset, end_offset) in bytes of `.log`, by the indexes."""
        return sum(each.size_bytes for each in self.split(start_offset, end_offset, _NO_TARGET_BYTES))

    def _open_floor(self, offset: int) -> SegmentReader:
        """The segment that holds `offset`; lists the extents again if the segment was deleted."""
        for _ in range(_REPLACED_SEGMENT_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return SegmentReader(self._floor(offset))
            self._listed = ()
            forget_listing(self.extents.name)
        return SegmentReader(self._floor(offset))

    def _floor(self, offset: int) -> Extent:
        extents = self._listed
        if not extents or _ends_by(extents[-1], offset):
            extents = self._listed = self.extents.current()
        if not extents:
            raise CorruptRecordError(
                file=self.extents.name,
                position=0,
                expected=f"a segment with offset {offset}",
                found=f"no {LOG_SUFFIX} file",
                advice="check that the path is a partition directory and whether the topic was deleted",
            )
        at = bisect.bisect_right(extents, offset, key=_BASE_OFFSET) - 1
        if at < 0:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topic_partition} is below {extents[0].base_offset}, its first segment"
            )
        if not _ends_by(extents[at], offset):
            return extents[at]
        if at + 1 == len(extents):
            raise CorruptRecordError(
                file=self.extents.name,
                position=0,
                expected=f"a segment with offset {offset}",
                found=f"the end of the log at offset {extents[at].end_offset}",
                advice="the reader's view of the log is older than the offset, or committed records are missing",
            )
        raise OffsetOutOfRangeError(
            f"offset {offset} of {self.topic_partition} is in no segment: one ends below {extents[at].end_offset}, the "
            f"next begins at {extents[at + 1].base_offset}"
        )

    def _next_base(self, extent: Extent) -> int | None:
        """Base offset of the next segment, None for the last one, which may have been rolled since it was listed."""
        return self._next_base_now(extent.base_offset) if extent.end_offset is None else extent.end_offset

    def _next_base_now(self, base_offset: int) -> int | None:
        """The end of the segment, which is the base offset of the next one, listed again; None for the last one."""
        extents = self._listed = self.extents.current()
        at = bisect.bisect_right(extents, base_offset, key=_BASE_OFFSET)
        if at and extents[at - 1].base_offset == base_offset:
            return extents[at - 1].end_offset
        return extents[at].base_offset if at < len(extents) else None

    def _limit_now(self, base_offset: int) -> int | None:
        """Base offset of the next segment, listed again; None while the segment is replacing several others.

        Those remain listed until it has taken the place of the first one, which is therefore checked first.
        """
        return None if self.extents.is_being_replaced(base_offset) else self._next_base_now(base_offset)

    @staticmethod
    def _log_too_short(segment: SegmentReader, end_offset: int) -> DiskFormatError:
        return CorruptRecordError(
            file=segment.file,
            position=segment.size_bytes,
            expected=f"batches up to offset {end_offset - 1}",
            found=f"the end of the log at offset {segment.reached_offset}",
            advice="committed records are missing: restore the file from a copy",
        )


class _LostExtentError(Exception):
    """An extent was deleted or replaced while it was read."""

    def __init__(self, extent: Extent) -> None:
        self.extent = extent


@contextlib.contextmanager
def _naming_lost(extent: Extent) -> Iterator[None]:
    """Raises _LostExtentError for a FileNotFoundError in the block."""
    try:
        yield
    except FileNotFoundError:
        raise _LostExtentError(extent) from None


def _ends_by(extent: Extent, offset: int) -> bool:
    """Whether the extent ends at or below `offset`; never if its end is open."""
    return extent.end_offset is not None and extent.end_offset <= offset
