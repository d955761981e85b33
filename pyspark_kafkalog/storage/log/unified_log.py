"""One partition's log, open for its only writer: segments, offsets, producer state, leader epochs.

    log start <= last stable <= high watermark <= log end

`UnifiedLog.open` loads a directory as a starting broker does, and recovers it if the shutdown was not clean.
`UnifiedLog.resume` continues from a commit's LogState without reading the log. Appends write data first, then index
entries; `flush` makes data and names durable. Data beyond that, left by a crash, is cut off by the next open or resume.

Source of the rules: org.apache.kafka.storage.internals.log.UnifiedLog and LocalLog.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.artefacts.partition_listing import refuse_link
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log import loader as log_loader
from pyspark_kafkalog.storage.log import lookup as log_lookup
from pyspark_kafkalog.storage.log import record_append, staged_append
from pyspark_kafkalog.storage.log import resume as log_resume
from pyspark_kafkalog.storage.log import truncation as log_truncation
from pyspark_kafkalog.storage.log.append_info import AppendInfo, LoadedLog
from pyspark_kafkalog.storage.log.isolation import Isolation
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import ResumedProducers
from pyspark_kafkalog.storage.log.producers import AppendOrigin, ProducerStateManager, producer_batches
from pyspark_kafkalog.storage.log.reader import TimestampAndOffset
from pyspark_kafkalog.storage.segment.index_entries import RunPlan
from pyspark_kafkalog.storage.segment.recovery import replay_batches
from pyspark_kafkalog.storage.segment.segment import BatchChunk, LogSegment
from pyspark_kafkalog.storage.staging.staged_file import StagedFile

if TYPE_CHECKING:
    from typing_extensions import Self

_NO_DATA: Final = np.empty(0, dtype=np.uint8)


class UnifiedLog:
    """A partition's log. Not thread-safe; the caller excludes other writers."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        clock: Callable[[], int],
        fs: FileSystem,
        rng: random.Random | None,
        high_watermark: int | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.fs = fs
        self.clock = clock
        self.segments = loaded.segments
        self.epochs = loaded.epochs
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        #: Base offset of the first segment closed since the last flush, whose indexes must be flushed with the data.
        self._flush_from = loaded.recovery_point
        self._producers = loaded.producers
        self._rng = rng
        self._high_watermark = high_watermark
        self.names_changed = loaded.names_changed
        self.is_recovered = loaded.is_recovered
        self.staged = loaded.staged
        self.high_watermark_moved()

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        high_watermark: int | None = None,
        clean_shutdown: bool = False,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        clock: Callable[[], int],
        fs: FileSystem = LOCAL,
        rng: random.Random | None = None,
    ) -> Self:
        """Load the log in `directory` for writing; an empty directory becomes an empty log.

        Unless `clean_shutdown`, segments from `recovery_point` on are re-read and truncated at the first bad batch. The
        high watermark is the log end unless given. `clock` returns ms since 1970, `rng` chooses roll jitters.
        """
        refuse_link(directory)
        loaded = log_loader.load(
            directory,
            config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset or 0,
            clean_shutdown=clean_shutdown,
            producer_id_expiration_ms=producer_id_expiration_ms,
            now_ms=clock(),
            fs=fs,
            rng=rng,
        )
        return cls(directory, config, loaded, clock=clock, fs=fs, rng=rng, high_watermark=high_watermark)

    @classmethod
    def resume(
        cls,
        directory: Path,
        config: LogConfig,
        state: LogState,
        *,
        clock: Callable[[], int],
        fs: FileSystem = LOCAL,
        rng: random.Random | None = None,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> Self:
        """Continue from `state`; cuts off data of a crash beyond it. Reads no batches unless an index is damaged.

        Raises CorruptRecordError if the active segment is shorter than in `state`.
        """
        refuse_link(directory)
        loaded = log_resume.resume(
            directory,
            config,
            state,
            now_ms=clock(),
            fs=fs,
            rng=rng,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        return cls(directory, config, loaded, clock=clock, fs=fs, rng=rng)

    # Offsets

    @property
    def high_watermark(self) -> int:
        if self._high_watermark is None:
            return self.log_end_offset
        return min(max(self._high_watermark, self.log_start_offset), self.log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed: the first offset of the oldest open transaction, at most the high watermark."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None:
            return self.high_watermark
        return min(max(first_unstable, self.log_start_offset), self.high_watermark)

    @property
    def active_segment(self) -> LogSegment:
        return self.segments.active

    @property
    def producers(self) -> ProducerStateManager:
        """Producer state, up to the log end."""
        if isinstance(self._producers, ResumedProducers):
            self._producers = self._producers.load(self.segments, self.log_end_offset, self.clock())
            self.high_watermark_moved()
        return self._producers

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, kept within log start and log end; returns it."""
        self._high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark_moved()
        return self._high_watermark

    def state(self) -> LogState:
        """The state that a commit must carry so that `resume` can continue from here."""
        counters = self.active_segment.counters()
        latest = self.epochs.latest
        first_unstable = self._producers.first_undecided_offset
        return LogState(
            leader_epoch=0 if latest is None else latest.epoch,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            active_base_offset=self.active_segment.base_offset,
            active_size_bytes=counters.size_bytes,
            active_first_timestamp_ms=counters.first_timestamp_ms,
            active_max_timestamp_ms=counters.max_timestamp_ms,
            active_max_timestamp_offset=counters.max_timestamp_offset,
            bytes_since_last_index_entry=counters.bytes_since_last_index_entry,
            first_unstable_offset=-1 if first_unstable is None else first_unstable,
            producer=self._producers.last_entry,
        )

    # Appending

    def append_as_leader(
        self, data: Buffer, *, leader_epoch: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Check the batches in `data` as a leader does, assign offsets and store them; all of them or none.

        A producer's batch that the log already holds is not stored again: the result is a duplicate, with its offsets.

        Raises InvalidRecordError, ProducerFencedError, OutOfOrderSequenceError, CorruptRecordError.
        """
        return record_append.append_as_leader(self, data, leader_epoch=leader_epoch, origin=origin)

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Store batches as a leader has stored them, with their offsets and epochs, all in one segment.

        Raises InvalidRecordError for offsets below the log end, CorruptRecordError for damage.
        """
        return record_append.append_as_follower(self, data)

    def append_staged(self, staged: StagedFile, *, leader_epoch: int, durable: bool = True) -> AppendInfo:
        """Store a staged file's batches, with offsets from the log end on; the caller removes the file.

        With `durable`, waits until they are on disk; otherwise `flush` does. See `staged_append`.
        """
        return staged_append.append_staged(self, staged, leader_epoch=leader_epoch, durable=durable)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Record in the epoch checkpoint that `leader_epoch` starts at `start_offset`, if it is new."""
        if leader_epoch >= 0:
            self.epochs.assign(leader_epoch, start_offset)

    def next_run(self, batches: NDArray[np.void]) -> RunPlan:
        """Plan the append of as many of `batches` as fit in the active segment, after a roll if none fits."""
        plan = self.active_segment.plan(batches, now_ms=self.clock())
        if plan.count == 0:
            self.roll(int(batches["base_offset"][0]))
            plan = self.active_segment.plan(batches, now_ms=self.clock())
        assert plan.count > 0
        return plan

    def run_stored(self, batches: NDArray[np.void]) -> None:
        """Advance the log end past `batches`, which were just stored in the active segment."""
        self.log_end_offset = int(batches["last_offset"][-1]) + 1

    def roll(self, next_offset: int | None = None) -> LogSegment:
        """Start a new segment at the log end, or above it at `next_offset`; does nothing if an empty one is there."""
        base_offset = max(next_offset or 0, self.log_end_offset)
        active = self.active_segment
        if active.base_offset == base_offset:
            assert active.size_bytes == 0
            return active
        active.become_inactive()
        self._flush_from = min(self._flush_from, active.base_offset)
        producers = self.producers
        segment = self.add_segment(base_offset)
        producers.end_offset = base_offset
        producers.take_snapshot(durable=True)
        return segment

    def check_producers(self, batches: NDArray[np.void]) -> None:
        """Raise ProducerFencedError if a producer of `batches` (no control batches) wrote with a newer epoch."""
        if isinstance(self._producers, ResumedProducers):
            self._producers.check(batches)
        else:
            found = producer_batches(_NO_DATA, batches, data_position=0, file=str(self.directory))
            self._producers.check(found, AppendOrigin.COORDINATOR)

    def count_producers(self, batches: NDArray[np.void]) -> None:
        """Apply `batches` (stored, no control batches) to the producer state."""
        if isinstance(self._producers, ResumedProducers):
            self._producers.count_in(batches)
        else:
            replay_batches(self.active_segment, self._producers, BatchChunk(_NO_DATA, 0, batches))

    def appended(self, first_offset: int, log_append_time_ms: int | None) -> AppendInfo:
        """Finish an append that began at `first_offset` and has advanced the log end."""
        self.high_watermark_moved()
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.flush()
        last_offset = self.log_end_offset - 1
        return AppendInfo(first_offset=first_offset, last_offset=last_offset, log_append_time_ms=log_append_time_ms)

    def high_watermark_moved(self) -> None:
        """Pass the new high watermark to the producer state."""
        if isinstance(self._producers, ProducerStateManager):
            self._producers.high_watermark_moved(self.high_watermark)

    # Reading

    def read(
        self, start_offset: int, *, isolation: Isolation = Isolation.LOG_END, max_bytes: int = 1 << 20
    ) -> log_lookup.FetchedBatches:
        """Stored batches from the one that holds `start_offset` on, at least one if any is readable.

        Raises OffsetOutOfRangeError.
        """
        return log_lookup.read(self, start_offset, isolation=isolation, max_bytes=max_bytes)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """The first record, in offset order, with that timestamp or a later one; control records count."""
        return log_lookup.offset_for_timestamp(self, timestamp_ms)

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp of the log."""
        return log_lookup.offset_of_max_timestamp(self)

    # Truncation

    def truncate_to(self, offset: int) -> None:
        """Make `offset` the log end: drop all batches that reach it or are above it."""
        log_truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and continue as an empty log that starts at `offset`."""
        log_truncation.truncate_fully_and_start_at(self, offset)

    def delete_records(self, before_offset: int) -> int:
        """Increase the log start offset to `before_offset`, which may be inside a segment; returns the new value.

        Raises OffsetOutOfRangeError above the high watermark. Retention deletes segments that are entirely below it.
        """
        return log_truncation.delete_records(self, before_offset)

    def add_segment(self, base_offset: int) -> LogSegment:
        """Start an empty segment, which becomes the active one."""
        segment = log_loader.create_segment(
            self.directory, base_offset, self.config, now_ms=self.clock(), fs=self.fs, rng=self._rng
        )
        self.segments.add(segment)
        self.names_changed = True
        return segment

    def drop_segment(self, segment: LogSegment) -> None:
        """Remove a segment, its files and the producer snapshot at its base offset."""
        self.segments.remove(segment.base_offset)
        segment.delete()
        self.producers.remove_snapshot(segment.base_offset)
        self.names_changed = True

    # Flushing and closing

    def flush(self, *, is_last: bool = False) -> None:
        """Wait until everything is on disk: data, then indexes, then the names of created and removed files.

        `is_last` means that no append follows, so that indexes can be trimmed before.
        """
        if is_last:
            self.active_segment.trim_indexes()
        for segment in self.segments.from_offset(min(self.recovery_point, self._flush_from)):
            segment.flush()
        if self.names_changed:
            self.fs.fsync_dir(self.directory)
            self.names_changed = False
        self.recovery_point = self._flush_from = self.log_end_offset

    def close(self) -> None:
        """Kafka's clean close: flush data, add closing time index entries, trim indexes, write a producer snapshot."""
        self.flush()
        self.producers.take_snapshot(durable=True)
        for segment in self.segments:
            segment.close()

    def suspend(self) -> None:
        """Close all files between two commits: trims the indexes, but adds no closing entry and no snapshot."""
        with contextlib.ExitStack() as closing:
            for segment in self.segments:
                if segment.is_open:
                    closing.callback(segment.close_files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.suspend()
