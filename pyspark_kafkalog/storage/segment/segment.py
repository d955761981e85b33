"""One segment: a `.log` file with the indexes of the same base offset, open for its writer.

The base offset is the smallest offset that the segment may hold. Bytes are appended to the `.log` first, index entries
after them: a crash leaves at worst a torn batch at the end, and indexes that end before or after the end of the log;
recovery repairs both. Source of the rules: org.apache.kafka.storage.internals.log.LogSegment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.header import NO_TIMESTAMP, RECORD_BATCH_OVERHEAD_BYTES, Buffer, parse_header
from pyspark_kafkalog.storage.artefacts.time_index import TimestampOffset
from pyspark_kafkalog.storage.filesystem import FileSystem, pread
from pyspark_kafkalog.storage.segment.append_plan import (
    IndexEntries,
    RunPlan,
    SegmentCounters,
    SegmentLimits,
    advance,
    plan_entries,
    plan_run,
)
from pyspark_kafkalog.storage.segment.log_file import BatchChunk, patch_headers, read_chunks
from pyspark_kafkalog.storage.segment.segment_files import SegmentFiles


class BatchPosition(NamedTuple):
    """A batch's base offset, its first byte in the `.log` file and its total length."""

    base_offset: int
    position: int
    size_bytes: int


class LogSegment(SegmentFiles):
    """A segment open for writing; `size_bytes` is the valid length of the `.log`.

    `created_ms` is the time at which this writer opened or created it; segments without timestamps roll by it.
    `counters`, if given, describes the segment's content; otherwise it is read from the files when needed.
    """

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        *,
        fs: FileSystem,
        created_ms: int,
        jitter_ms: int = 0,
        suffix: str = "",
        counters: SegmentCounters | None = None,
    ) -> None:
        super().__init__(directory, base_offset, config, fs=fs, suffix=suffix)
        self.created_ms = created_ms
        self.bytes_since_last_index_entry = 0
        self._jitter_ms = jitter_ms
        self._size_bytes = -1
        self._first_timestamp_ms: int | None = None
        self._max_timestamp: TimestampOffset | None = None
        if counters is not None:
            self.set_counters(counters)

    @property
    def size_bytes(self) -> int:
        if self._size_bytes < 0:
            self._size_bytes = os.fstat(self.fd).st_size
        return self._size_bytes

    # What the segment holds

    def chunks(self, position: int = 0, end: int | None = None) -> Iterator[BatchChunk]:
        """Batches from byte `position` on, where a batch must start; see `read_chunks`. CRCs are not checked."""
        end = self.size_bytes if end is None else end
        return read_chunks(self.fd, file=str(self.log_path), start=position, end=end, base_offset=self.base_offset)

    def first_timestamp_ms(self) -> int:
        """Largest timestamp of the first batch, the start of time-based rolling; -1 if empty or without timestamps."""
        if self._first_timestamp_ms is None:
            self._first_timestamp_ms = self._read_first_timestamp()
        return self._first_timestamp_ms

    def max_timestamp(self) -> TimestampOffset:
        """Largest timestamp and the last offset of the batch that first had it; read from the time index if unknown."""
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last_entry
        return self._max_timestamp

    def counters(self) -> SegmentCounters:
        """The state that the next append depends on."""
        timestamp = self.max_timestamp()
        return SegmentCounters(
            size_bytes=self.size_bytes,
            first_timestamp_ms=self.first_timestamp_ms(),
            max_timestamp_ms=timestamp.timestamp_ms,
            max_timestamp_offset=timestamp.offset,
            bytes_since_last_index_entry=self.bytes_since_last_index_entry,
        )

    def find_batch(self, offset: int) -> BatchPosition | None:
        """The batch that holds `offset` or, if none does, the first one above it; None if all are below."""
        for chunk in self.chunks(self.position_at_or_before(offset)):
            at = int(np.searchsorted(chunk.batches["last_offset"], offset, side="left"))
            if at < len(chunk.batches):
                batch = chunk.batches[at]
                return BatchPosition(int(batch["base_offset"]), int(batch["position"]), int(batch["size_bytes"]))
        return None

    def position_at_or_before(self, offset: int) -> int:
        """A position, by the index, where a batch starts and at or after which `offset` and all later ones are stored.

        0 if the index is not reliable.
        """
        entry = self.offset_index.lookup(offset)
        if entry.position == 0 or entry.position >= self.size_bytes:
            return 0
        head = pread(self.fd, RECORD_BATCH_OVERHEAD_BYTES, entry.position)
        try:
            header = parse_header(head, 0, file=str(self.log_path), file_position=entry.position)
        except DiskFormatError:
            return 0
        return entry.position if header.last_offset == entry.offset else 0

    def read_next_offset(self) -> int:
        """The offset after the last batch, read from the last index entry on; the base offset if empty.

        Raises CorruptRecordError if the batches do not fill the `.log`, which then was not closed cleanly.
        """
        next_offset, end_position = self.base_offset, 0
        for chunk in self.chunks(self.position_at_or_before(self.offset_index.last_offset)):
            next_offset, end_position = int(chunk.batches["last_offset"][-1]) + 1, chunk.end_position
        self._check_filled(end_position)
        return next_offset

    def _check_filled(self, end_position: int) -> None:
        if end_position != self.size_bytes:
            raise CorruptRecordError(
                file=str(self.log_path),
                position=end_position,
                expected=f"batches up to byte {self.size_bytes}",
                found="a torn batch",
                advice="open the log as after an unclean shutdown, which cuts it there",
            )

    def _read_first_timestamp(self) -> int:
        if self.size_bytes < RECORD_BATCH_OVERHEAD_BYTES:
            return NO_TIMESTAMP
        head = pread(self.fd, RECORD_BATCH_OVERHEAD_BYTES, 0)
        return parse_header(head, 0, file=str(self.log_path), file_position=0).max_timestamp_ms

    # Appending

    def plan(self, batches: NDArray[np.void], *, now_ms: int) -> RunPlan:
        """How many of `batches` (BATCH_DTYPE, final offsets) fit before the segment must roll, with one append each."""
        return plan_run(batches, self.counters(), self._limits(now_ms))

    def plan_whole(self, batches: NDArray[np.void], *, now_ms: int) -> RunPlan | None:
        """The plan that appends all of `batches` as one append, as a follower does; None if it must roll before."""
        counters, limits = self.counters(), self._limits(now_ms)
        whole = batches[-1:].copy()
        whole["size_bytes"] = batches["size_bytes"].sum()
        whole["max_timestamp_ms"] = batches["max_timestamp_ms"].max()
        if plan_run(whole, counters, limits).count == 0:
            return None
        sizes = batches["size_bytes"].astype(np.int64)
        positions = counters.size_bytes + np.cumsum(sizes) - sizes
        entries = plan_entries(batches, positions, counters, limits)
        return RunPlan(len(batches), entries, advance(batches, counters, entries))

    def append(self, data: Buffer, plan: RunPlan) -> None:
        """Write `data`, the bytes of the batches of `plan`, and then their index entries."""
        self.fs.pwrite_all(self.fd, data, self.size_bytes)
        self._appended(plan)

    def append_from_file(self, source_fd: int, source_position: int, batches: NDArray[np.void], plan: RunPlan) -> None:
        """Copy the batches from another file inside the kernel, and set the base offset and leader epoch of each.

        `batches` has their final offsets and epochs; they are stored back to back from byte `source_position` of the
        source.
        """
        start = self.size_bytes
        length = plan.counters.size_bytes - start
        self.fs.copy_range(source_fd, source_position, self.fd, start, length)
        patch_headers(self.fs, self.fd, batches, start)
        self._appended(plan)

    def adopt(self, path: Path, batches: NDArray[np.void], *, now_ms: int) -> None:
        """Make the file at `path` this empty segment's `.log`: its headers are patched in place, then it is linked.

        It also keeps its other name, for a retry if this append is not committed. The caller makes data and name
        durable.
        """
        assert self.size_bytes == 0
        plan = self.plan(batches, now_ms=now_ms)
        assert plan.count == len(batches)
        fd = self.fs.open(path, os.O_RDWR)
        try:
            patch_headers(self.fs, fd, batches, 0)
            self.take_log(path, fd)
        except BaseException:
            self.fs.close(fd)
            raise
        self._appended(plan)

    def _limits(self, now_ms: int) -> SegmentLimits:
        time_index = self.time_index
        offset_index = self.offset_index
        return SegmentLimits(
            base_offset=self.base_offset,
            segment_bytes=self.config.segment_bytes,
            roll_after_ms=self.config.max_segment_ms - self._jitter_ms,
            index_interval_bytes=self.config.index_interval_bytes,
            offset_entries_left=offset_index.max_entries - offset_index.entries,
            time_entries_left=time_index.max_entries - 1 - time_index.entries,
            last_time_entry_ms=time_index.last_entry.timestamp_ms,
            waited_without_timestamps_ms=now_ms - self.created_ms,
        )

    def _appended(self, plan: RunPlan) -> None:
        self.set_counters(plan.counters)
        self._add_index_entries(plan.entries)

    def index_batches(self, batches: NDArray[np.void], counters: SegmentCounters) -> SegmentCounters:
        """Add the index entries of stored `batches`, which follow those in `counters`; returns the new counters."""
        sizes = batches["size_bytes"].astype(np.int64)
        positions = counters.size_bytes + np.cumsum(sizes) - sizes
        entries = plan_entries(batches, positions, counters, self._limits(self.created_ms))
        self._add_index_entries(entries)
        return advance(batches, counters, entries)

    def _add_index_entries(self, entries: IndexEntries) -> None:
        """Add the entries that fit: one large follower append may have more entries than an index has room for."""
        room = self.offset_index.max_entries - self.offset_index.entries
        self.offset_index.append_many(entries.offsets[:room], entries.positions[:room])
        room = max(self.time_index.max_entries - 1 - self.time_index.entries, 0)
        self.time_index.maybe_append_many(entries.timestamps_ms[:room], entries.time_offsets[:room])

    # Truncation and rebuilding

    def truncate_to(self, offset: int) -> int:
        """Drop all batches that reach `offset` or above, and their index entries; returns the number of bytes dropped.

        Afterwards the segment is ready for appends: its indexes are preallocated again.
        """
        found = self.find_batch(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.make_room()
        dropped = 0 if found is None else self.size_bytes - found.position
        if found is not None:
            self.cut(found.position)
        self.bytes_since_last_index_entry = 0
        self._first_timestamp_ms = None
        self.read_max_timestamp()
        return dropped

    def cut(self, size_bytes: int) -> None:
        """Set the `.log` file's length and the segment's size."""
        self.fs.truncate(self.fd, size_bytes)
        self._size_bytes = size_bytes

    def rebuild_indexes(self) -> None:
        """Rebuild offset and time index from the `.log`, whose batches are known to be valid.

        Raises CorruptRecordError if the batches do not fill the segment.
        """
        self.offset_index.reset()
        self.time_index.reset()
        counters = SegmentCounters(max_timestamp_offset=self.base_offset)
        for chunk in self.chunks():
            counters = self.index_batches(chunk.batches, counters)
        self._check_filled(counters.size_bytes)
        self.set_counters(counters)

    def set_counters(self, counters: SegmentCounters) -> None:
        """Set the counters to the segment's present content."""
        self._size_bytes = counters.size_bytes
        self._first_timestamp_ms = counters.first_timestamp_ms
        self._max_timestamp = TimestampOffset(counters.max_timestamp_ms, counters.max_timestamp_offset)
        self.bytes_since_last_index_entry = counters.bytes_since_last_index_entry

    def become_inactive(self) -> None:
        """Close the segment in a roll: add the closing time index entry and trim the indexes."""
        self._add_closing_entry()
        self.trim_indexes()

    def _add_closing_entry(self) -> None:
        timestamp = self.max_timestamp()
        self.time_index.maybe_append(timestamp.timestamp_ms, timestamp.offset, skip_full_check=True)

    def read_max_timestamp(self) -> None:
        """Find the largest timestamp: that of the last time index entry, or a larger one in the batches after it."""
        best = self.time_index.last_entry
        for chunk in self.chunks(self.position_at_or_before(best.offset)):
            at = int(np.argmax(chunk.batches["max_timestamp_ms"]))
            if int(chunk.batches["max_timestamp_ms"][at]) > best.timestamp_ms:
                best = TimestampOffset(
                    int(chunk.batches["max_timestamp_ms"][at]), int(chunk.batches["last_offset"][at])
                )
        self._max_timestamp = best

    def close(self) -> None:
        """Kafka's clean close: add the closing time index entry, trim the indexes, close the files."""
        if self._max_timestamp is not None:
            self._add_closing_entry()
        self.close_files()
