"""Reads a partition's records as Arrow batches: no lock, no write, memory bounded by chunk and batch size.

A reader takes offsets, never file positions, and finds the segment by the floor of the base offsets. Retention and the
cleaner may delete or replace a segment during the read: an open file remains readable, and if a name is gone, the
reader lists the directory again and continues at the offset that it has reached.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, OffsetOutOfRangeError
from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets, refuse_link
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions
from pyspark_kafkalog.storage.names import LOG_SUFFIX, SWAP_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment.reader import BatchRun, SegmentReader

if TYPE_CHECKING:
    import pyarrow as pa

_REPLACED_SEGMENT_TRIES: Final = 10
_NO_TARGET_BYTES: Final = 1 << 62


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


class LogReader:
    """Reads one partition directory."""

    def __init__(self, directory: Path, topic_partition: TopicPartition) -> None:
        refuse_link(directory)
        self.directory = directory
        self.topic_partition = topic_partition
        self._bases: list[int] = []  # base offsets of the segments, as last listed

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
        """
        from pyspark_kafkalog.record.arrow import to_record_batch  # imports compiled code, not needed for planning
        from pyspark_kafkalog.record.decode import decode_slices

        if start_offset >= end_offset:
            return  # before any file access: a topic whose creator was killed may have no directory yet
        columns = frozenset(schema.names) - {"topic", "partition"}
        aborted = AbortedTransactions.overlapping(self.directory, start_offset, end_offset) if committed else None
        for run in self.runs(start_offset, end_offset, min_timestamp_ms=min_timestamp_ms):
            batches = run.batches if aborted is None else aborted.keep(run.batches)
            for decoded in decode_slices(
                run.data,
                batches,
                data_position=run.position,
                file=run.file,
                columns=columns,
                start_offset=start_offset,
                end_offset=end_offset,
                min_timestamp_ms=min_timestamp_ms,
                until_timestamp_ms=until_timestamp_ms,
            ):
                yield to_record_batch(
                    decoded, schema, topic=self.topic_partition.topic, partition=self.topic_partition.partition
                )

    def runs(self, start_offset: int, end_offset: int, *, min_timestamp_ms: int | None = None) -> Iterator[BatchRun]:
        """Runs of checked batches that overlap [start_offset, end_offset); a run's data is valid until the next run.

        With `min_timestamp_ms` batches that the time indexes show to be older may be left out.
        """
        next_offset = start_offset
        while next_offset < end_offset:
            with self._open_floor(next_offset) as segment:
                if segment.base_offset >= end_offset:
                    return
                following = self._next_base(segment.base_offset)
                position = segment.position_for_offset(next_offset)
                if min_timestamp_ms is not None:
                    position = max(position, segment.position_for_timestamp(min_timestamp_ms))
                yield from segment.runs(
                    position,
                    start_offset=next_offset,
                    end_offset=end_offset,
                    limit_offset=following,
                    limit_now=functools.partial(self._limit_now, segment.base_offset),
                )
                if following is None and segment.reached_offset < end_offset:
                    raise self._log_too_short(segment, end_offset)
                next_offset = max(next_offset, segment.reached_offset, following or 0)

    def check_end(self, high_watermark: int) -> None:
        """Raise CorruptRecordError unless the active segment has the batch that ends right below `high_watermark`.

        A high watermark is between two batches. If the batch below it is missing, committed records are missing, or
        the batch's base offset, which no CRC covers, is damaged. A closed segment is not checked, as the cleaner may
        have removed its last records.
        """
        with self._open_floor(high_watermark - 1) as segment:
            if self._next_base(segment.base_offset) is not None:
                return
            found = segment.locate(high_watermark - 1)
            if found is None or found[1].last_offset != high_watermark - 1 or found[1].base_offset >= high_watermark:
                raise self._log_too_short(segment, high_watermark)

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int, end_offset: int) -> TimestampAndOffset | None:
        """The first record in offset order in [start_offset, end_offset) with a timestamp of at least `timestamp_ms`.

        Control records count, as in Kafka's ListOffsets. Returns None if no record matches.
        """
        next_offset = start_offset
        while next_offset < end_offset:
            with self._open_floor(next_offset) as segment:
                found = self._first_since(segment, timestamp_ms, next_offset, end_offset)
                if found is not None:
                    return found
                following = self._next_base(segment.base_offset)
            if following is None:
                return None
            next_offset = following
        return None

    def _first_since(
        self, segment: SegmentReader, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        first = max(segment.position_for_offset(start_offset), segment.position_for_timestamp(timestamp_ms))
        for position, header in segment.headers(first):
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset:
                batch = decode_batch(segment.batch_at(position, header), 0, file=segment.file, file_position=position)
                for record in batch.records:
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
        best: tuple[int, int, int] | None = None  # timestamp, base offset of the segment, position in it
        next_offset: int | None = start_offset
        while next_offset is not None and next_offset < end_offset:
            with self._open_floor(next_offset) as segment:
                following = self._next_base(segment.base_offset)
                position, header = segment.last_indexed_timestamp() or (0, None)
                if following is None or header is None:
                    headers = segment.headers(position)
                    largest = max(((each.max_timestamp_ms, -at) for at, each in headers), default=(NO_TIMESTAMP, 0))
                    latest_ms, position = largest[0], -largest[1]
                else:
                    latest_ms = header.max_timestamp_ms
                if latest_ms > (NO_TIMESTAMP if best is None else best[0]):
                    best = (latest_ms, segment.base_offset, position)
            next_offset = following
        return None if best is None else self._record_at(*best, start_offset, end_offset)

    def _record_at(
        self, timestamp_ms: int, base_offset: int, position: int, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        """The first record with exactly that timestamp in a batch, if its offset is in the range."""
        with SegmentReader(self.directory, base_offset) as segment:
            header = segment.header_at(position)
            batch = decode_batch(segment.batch_at(position, header), 0, file=segment.file, file_position=position)
        for record in batch.records:
            if record.timestamp_ms == timestamp_ms:
                inside = start_offset <= record.offset < end_offset
                return TimestampAndOffset(timestamp_ms, record.offset, header.leader_epoch) if inside else None
        return None

    def split(self, start_offset: int, end_offset: int, target_bytes: int) -> list[Split]:
        """Cut [start_offset, end_offset) at index entries into splits of about `target_bytes` of `.log` each."""
        return list(self._splits(start_offset, end_offset, target_bytes))

    def head(self, start_offset: int, end_offset: int, target_bytes: int) -> Split:
        """The first of `split`; opens no more segments than necessary. Never empty unless the range is."""
        return next(self._splits(start_offset, end_offset, target_bytes), Split(start_offset, end_offset, 0))

    def _splits(self, start_offset: int, end_offset: int, target_bytes: int) -> Iterator[Split]:
        split_start, split_bytes = start_offset, 0
        bases = list_base_offsets(self.directory)
        first = max(bisect.bisect_right(bases, start_offset) - 1, 0)
        for base_offset, following in itertools.pairwise([*bases[first:], end_offset]):
            if base_offset >= end_offset:
                break
            for cut_offset, size_bytes in self._cut_points(
                base_offset,
                max(start_offset, base_offset),
                min(following, end_offset),
                first_bytes=target_bytes - split_bytes,
                each_bytes=target_bytes,
            ):
                split_bytes += size_bytes
                if split_bytes >= target_bytes and split_start < cut_offset < end_offset:
                    yield Split(split_start, cut_offset, split_bytes)
                    split_start, split_bytes = cut_offset, 0
        if split_start < end_offset:
            yield Split(split_start, end_offset, split_bytes)

    def size_bytes(self, start_offset: int, end_offset: int) -> int:
        """Approximate size of the offsets [start_offset, end_offset) in bytes of `.log`, by the indexes."""
        return sum(each.size_bytes for each in self.split(start_offset, end_offset, _NO_TARGET_BYTES))

    def _cut_points(
        self, base_offset: int, start_offset: int, end_offset: int, *, first_bytes: int, each_bytes: int
    ) -> Iterator[tuple[int, int]]:
        try:
            segment = SegmentReader(self.directory, base_offset)
        except FileNotFoundError:
            return
        with segment:
            yield from segment.cut_points(start_offset, end_offset, first_bytes=first_bytes, each_bytes=each_bytes)

    def _open_floor(self, offset: int) -> SegmentReader:
        """The segment that holds `offset`; lists the directory again if the segment was deleted."""
        for _ in range(_REPLACED_SEGMENT_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return SegmentReader(self.directory, self._floor_base(offset))
            self._bases = list_base_offsets(self.directory)
        return SegmentReader(self.directory, self._floor_base(offset))

    def _floor_base(self, offset: int) -> int:
        bases = self._bases = self._bases or list_base_offsets(self.directory)
        if not bases:
            raise CorruptRecordError(
                file=str(self.directory),
                position=0,
                expected=f"a segment with offset {offset}",
                found=f"no {LOG_SUFFIX} file",
                advice="check that the path is a partition directory and whether the topic was deleted",
            )
        at = bisect.bisect_right(bases, offset) - 1
        if at < 0:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topic_partition} is below {bases[0]}, its first segment"
            )
        return bases[at]

    def _next_base(self, base_offset: int) -> int | None:
        """Base offset of the next segment, None for the last one, which may have been rolled since it was listed."""
        if base_offset >= self._bases[-1]:
            self._bases = list_base_offsets(self.directory)
        at = bisect.bisect_right(self._bases, base_offset)
        return self._bases[at] if at < len(self._bases) else None

    def _limit_now(self, base_offset: int) -> int | None:
        """Base offset of the next segment, listed again; None while the segment is replacing several others.

        Those keep their names until it has taken the name of the first one. During all that time a `.swap` file exists,
        which is therefore checked first.
        """
        swap = segment_file(self.directory, base_offset, LOG_SUFFIX + SWAP_SUFFIX)
        if swap.exists():
            return None
        self._bases = list_base_offsets(self.directory)
        return self._next_base(base_offset)

    def _log_too_short(self, segment: SegmentReader, end_offset: int) -> DiskFormatError:
        return CorruptRecordError(
            file=str(segment_file(self.directory, segment.base_offset, LOG_SUFFIX)),
            position=segment.size_bytes,
            expected=f"batches up to offset {end_offset - 1}",
            found=f"the end of the log at offset {segment.reached_offset}",
            advice="committed records are missing: restore the file from a copy",
        )
