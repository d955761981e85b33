"""One partition's log, open for its only writer: segments, offsets, producer state, leader epochs.

    log start <= last stable <= high watermark <= log end

Open. `UnifiedLog.resume` continues from a commit's LogState without reading the log (`resume`). `UnifiedLog.open` loads
a directory as a starting broker does, and recovers it if the shutdown was not clean (`loader`; Kafka's LogLoader).

Append. `append_staged` takes the batches that a write has staged for the partition:

    plan        the table of batches with final offsets, leader epoch and, with LogAppendTime, timestamps
    check       sizes, and the epochs of producers; after this nothing is refused any more
    epoch       the leader epoch checkpoint, if the epoch is new
    write       the active segment takes batches until it must roll. Their bytes are read from the files of all tasks,
                base offset and leader epoch of each are overwritten, which the CRC does not cover, and they are written
                together: nothing is decoded. Many bytes of one file are copied inside the kernel, and then overwritten.
                A large file becomes a segment of its own: its headers are overwritten in place, then it is linked
    index       the index entries, computed from the table (LogSegment.append)
    producers   the producer state

Roll. A segment that is full by size, time, offset or index entries gets its closing time index entry and is trimmed; an
empty one begins at the log end, and a producer snapshot is written there.

Flush. `flush` waits for the disk: data, then indexes, then leader epochs that were only noted, then the names of
created and removed files.

Crash. An append that was not committed leaves bytes past the committed end of the active segment, or a segment above
it. The next resume removes both; a start as a broker keeps whole batches and truncates at the first damaged one. Index
entries follow the data, so that an index may end early, and it is then rebuilt.

Checks of what clients send (`leader_append`, `sequences`) and following a leader (`follower`) have their own modules.

Source of the rules: org.apache.kafka.storage.internals.log.UnifiedLog, LocalLog and LogSegment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidRecordError, RecordBatchTooLargeError, RecordTooLargeError
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    CONTROL_MASK,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    TimestampType,
    crc32c,
    parse_header,
)
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log import loader as log_loader
from pyspark_kafkalog.storage.log.loader import LeftLog, LoadedLog
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import ResumedProducers
from pyspark_kafkalog.storage.log.producers import (
    AppendedProducers,
    ProducerBatch,
    ProducerStateManager,
    producer_batches,
)
from pyspark_kafkalog.storage.segment.index_entries import RunPlan
from pyspark_kafkalog.storage.segment.reader import CHUNK_BYTES
from pyspark_kafkalog.storage.segment.recovery import replay_batches, replay_producers
from pyspark_kafkalog.storage.segment.segment import BatchChunk, LogSegment, set_headers
from pyspark_kafkalog.storage.staged_parts import StagedPart

if TYPE_CHECKING:
    from typing_extensions import Self

#: Staged files from this size on become a segment of their own instead of being copied: copying data that is already on
#: disk, and syncing it again, cost a quarter of a write. Copying less than this costs some milliseconds.
SPLICE_BYTES: Final = 16 << 20
#: From this size on, bytes of one staged file are copied inside the kernel, or by the server of a network file system.
#: Fewer take less time through memory, where the headers of all batches are overwritten at once.
KERNEL_COPY_BYTES: Final = 1 << 20

_NO_DATA: Final = np.empty(0, dtype=np.uint8)


class UnifiedLog:
    """A partition's log. Not thread-safe; the caller excludes other writers.

    `recovery_point` is the offset from which on records may not be on disk yet. `is_recovered` is true if opening it
    has cut off data of a crashed writer; `staged` holds the names of the staged files found in the directory.
    """

    def __init__(
        self, directory: Path, config: LogConfig, loaded: LoadedLog, *, clock: Callable[[], int], fs: FileSystem
    ) -> None:
        self.directory = directory
        self.config = config
        self.fs = fs
        self.clock = clock
        self.segments = loaded.segments
        self.epochs = loaded.epochs
        self.log_start_offset = loaded.log_start_offset
        self.local_log_start_offset = loaded.local_log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.is_recovered = loaded.is_recovered
        self.staged = loaded.staged
        self._names = loaded.names
        #: Base offset of the first segment closed since the last flush, whose indexes must be flushed with the data.
        self._flush_from = loaded.recovery_point
        self._names_changed = loaded.names_changed
        self._flush_also: list[Callable[[], None]] = []
        self._producers = loaded.producers
        self.high_watermark_moved()

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean_shutdown: bool = False,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        clock: Callable[[], int],
        fs: FileSystem = LOCAL,
    ) -> Self:
        """Load the log in `directory` for writing; an empty directory becomes an empty log.

        Unless `clean_shutdown`, segments from `recovery_point` on are re-read and truncated at the first bad batch.
        `clock` returns ms since 1970.
        """
        refuse_link(directory)
        loaded = log_loader.load(
            directory,
            config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
            producer_id_expiration_ms=producer_id_expiration_ms,
            now_ms=clock(),
            fs=fs,
        )
        return cls(directory, config, loaded, clock=clock, fs=fs)

    @classmethod
    def resume(
        cls,
        directory: Path,
        config: LogConfig,
        state: LogState,
        *,
        clock: Callable[[], int],
        fs: FileSystem = LOCAL,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        staged: Collection[str] | None = None,
    ) -> Self:
        """Continue from `state`; cuts off data of a crash beyond it. Reads no batches unless an index is damaged.

        With the names of the `staged` files to append, a directory that is as this process has left it is not listed.
        Raises CorruptRecordError if the active segment is shorter than in `state`.
        """
        refuse_link(directory)
        loaded = log_loader.resume(
            directory,
            config,
            state,
            now_ms=clock(),
            fs=fs,
            producer_id_expiration_ms=producer_id_expiration_ms,
            staged=staged,
        )
        return cls(directory, config, loaded, clock=clock, fs=fs)

    # State

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed: the first offset of the oldest open transaction, else the log end."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None:
            return self.log_end_offset
        return min(max(first_unstable, self.log_start_offset), self.log_end_offset)

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

    def take_producers(self, producers: ProducerStateManager) -> None:
        """Use `producers`, the complete state at the log end, instead of building it from the files."""
        assert producers.end_offset == self.log_end_offset
        self._producers = producers
        self.high_watermark_moved()

    def high_watermark_moved(self) -> None:
        """Pass the log end to the producer state as the high watermark: no other replica has to confirm an append."""
        if isinstance(self._producers, ProducerStateManager):
            self._producers.high_watermark_moved(self.log_end_offset)

    def state(self) -> LogState:
        """The state that a commit must carry so that `resume` can continue from here."""
        active = self.active_segment
        counters = active.counters()
        latest = self.epochs.latest
        first_unstable = self._producers.first_undecided_offset
        return LogState(
            leader_epoch=0 if latest is None else latest.epoch,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            active_base_offset=active.base_offset,
            active_size_bytes=counters.size_bytes,
            active_first_timestamp_ms=counters.first_timestamp_ms,
            active_max_timestamp_ms=counters.max_timestamp_ms,
            active_max_timestamp_offset=counters.max_timestamp_offset,
            bytes_since_last_index_entry=counters.bytes_since_last_index_entry,
            first_unstable_offset=-1 if first_unstable is None else first_unstable,
            local_log_start_offset=self.local_log_start_offset,
            producer=self._producers.last_entry,
        )

    def as_left(self) -> LeftLog | None:
        """The log as this process leaves it, for a resume from the state to be committed; None if it was loaded."""
        if self._names is None:
            return None
        found = os.fstat(self.active_segment.fd)
        return LeftLog(self.directory, (found.st_dev, found.st_ino), self._names)

    # Appending

    def append_staged(self, staged: StagedPart, *, leader_epoch: int) -> None:
        """Store the staged batches from the log end on; the caller flushes, and removes the files once committed.

        Raises InvalidRecordError for batches that the topic does not accept, ProducerFencedError, and
        UnknownTopicError, CorruptRecordError if a file is missing or does not match its table.
        """
        batches = self._plan_staged(staged, leader_epoch)
        self._check_producers(batches)
        self.assign_epoch(leader_epoch, self.log_end_offset)
        for first, last, is_large in staged.sections(min(KERNEL_COPY_BYTES, self._splice_bytes)):
            if is_large and not self._sets_append_time:
                self._append_large(staged, first, batches[first:last])
            else:
                self._append_small(staged, first, batches[first:last])
        self._appended()

    def _append_large(self, staged: StagedPart, first: int, batches: NDArray[np.void]) -> None:
        """Append batches of one file, back to back there, that begin with the part's batch `first`."""
        number = int(staged.numbers[first])
        with staged.files.opened(number) as fd:
            is_whole = staged.is_whole_file(first, first + len(batches))
            if is_whole and self._splice(staged.files.path(number), fd, batches):
                return
            for run, plan in self._runs(batches):
                self.active_segment.append_from_file(fd, int(run["position"][0]), run, plan)
                self._stored(run)

    def _append_small(self, staged: StagedPart, first: int, batches: NDArray[np.void]) -> None:
        """Append batches of any files, that begin with the part's batch `first`, through memory."""
        at = first
        for run, plan in self._runs(batches, CHUNK_BYTES):
            data = np.empty(int(run["size_bytes"].sum()), np.uint8)  # bounded: a chunk, or one batch
            staged.read(at, at + len(run), data)
            if self._sets_append_time:
                _stamp(data, run, str(staged.files.path(int(staged.numbers[at]))))
            else:
                set_headers(data, run)
            self.active_segment.append(data, plan)
            self._stored(run)
            at += len(run)

    def append_as_coordinator(self, batch: Buffer, *, leader_epoch: int) -> None:
        """Store one batch of a coordinator: an end-transaction marker, or records of the coordinator's own topic.

        Raises ProducerFencedError for a marker if its producer or another coordinator has written with a newer epoch,
        and InvalidRecordError for a batch that is too large.
        """
        data = as_bytes_array(batch).copy()
        header = parse_header(data, 0, file=str(self.directory), file_position=0)
        check_batch_size(header.size_bytes, self.config)
        header = replace(header, base_offset=self.log_end_offset, leader_epoch=leader_epoch)
        timestamp_ms = self.clock() if self._sets_append_time else header.max_timestamp_ms
        stamp(data, header, self.config.message_timestamp_type, timestamp_ms)
        batches = scan_batches(data, file=str(self.directory)).batches
        self.producers.check(producer_batches(data, batches, data_position=0, file=str(self.directory)))
        self.assign_epoch(leader_epoch, self.log_end_offset)
        self.append(data, batches)

    def append(
        self,
        data: NDArray[np.uint8],
        batches: NDArray[np.void],
        *,
        known: AppendedProducers | None = None,
        is_read_soon: bool = True,
    ) -> None:
        """Store checked batches with final offsets, epochs and timestamps; `batches` has their positions in `data`.

        Each is an append of its own, before which the log may roll.
        `known` is what they mean for producers, if the caller has found out. Unless `is_read_soon`, they need not be
        kept in memory for readers.
        """
        self._producers = self.producers  # complete, because control batches change more than the last writer's entry
        plain = known if known is not None and known.is_plain else None
        if plain is None and (batches["attributes"] & CONTROL_MASK).any():
            self._names_changed = True  # the transaction index file is created with its first entry
        for run, plan in self._runs(batches):
            first, last = run[0], run[-1]
            of_run = data[int(first["position"]) : int(last["position"] + last["size_bytes"])]
            self.active_segment.append(of_run, plan, is_read_soon=is_read_soon)
            if plain is not None and len(run) == len(batches):
                self.log_end_offset = int(last["last_offset"]) + 1
                self.producers.take(plain, self.log_end_offset)
            else:
                self._stored(run, data, None if known is None else known.batches())
        self._appended()

    def epoch_after(self, committed_epoch: int) -> int:
        """The leader epoch to append with: `committed_epoch`, or the next one if opening the log cut data off.

        So no two records ever have the same offset and epoch, as after the election that follows a broker's crash.
        """
        return committed_epoch + 1 if self.is_recovered else committed_epoch

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Record in the epoch checkpoint that `leader_epoch` starts at `start_offset`, if it is new."""
        if leader_epoch >= 0:
            self.epochs.assign(leader_epoch, start_offset)

    @property
    def _sets_append_time(self) -> bool:
        return self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME

    def _plan_staged(self, staged: StagedPart, leader_epoch: int) -> NDArray[np.void]:
        """The staged table as it will be stored: with offsets, epoch, and timestamps if the log sets them."""
        special = (staged.batches["attributes"] & (CONTROL_MASK | TRANSACTIONAL_MASK)) != 0
        if special.any():
            name = staged.files.file(int(staged.numbers[np.argmax(special)])).name
            raise InvalidRecordError(f"{name} holds transactional or control batches, which cannot be staged")
        check_batch_size(int(staged.batches["size_bytes"].max()), self.config)
        batches = np.array(staged.batches, dtype=BATCH_DTYPE)
        batches["base_offset"] += self.log_end_offset
        batches["last_offset"] += self.log_end_offset
        batches["leader_epoch"] = leader_epoch
        if self._sets_append_time:
            batches["max_timestamp_ms"] = self.clock()
            batches["attributes"] |= TIMESTAMP_TYPE_MASK
        return batches

    def _check_producers(self, batches: NDArray[np.void]) -> None:
        """Raise ProducerFencedError if a producer of `batches` (no control batches) wrote with a newer epoch."""
        if isinstance(self._producers, ResumedProducers):
            self._producers.check(batches)
        else:
            self._producers.check(producer_batches(_NO_DATA, batches, data_position=0, file=str(self.directory)))

    @property
    def _splice_bytes(self) -> int:
        return min(SPLICE_BYTES, self.config.segment_bytes // 2)

    def _splice(self, path: Path, fd: int, batches: NDArray[np.void]) -> bool:
        """Make the staged file a segment of its own if it is large and contains no roll; returns whether it did.

        Both names then refer to the same bytes. A file that already has another name is therefore left unchanged: the
        purpose of that name is unknown, and the headers under it must not change.
        """
        size_bytes = int(batches["size_bytes"].sum())
        if size_bytes < self._splice_bytes or os.fstat(fd).st_nlink > 1:
            return False
        segment = self.roll()
        if segment.plan(batches, now_ms=self.clock()).count < len(batches):
            return False
        segment.splice(path, batches, now_ms=self.clock())
        self._names_changed = True
        self._stored(batches)
        return True

    def _runs(
        self, batches: NDArray[np.void], limit_bytes: int | None = None
    ) -> Iterator[tuple[NDArray[np.void], RunPlan]]:
        """Runs of `batches` that fit in the active segment, with plans; the caller stores each before the next.

        With `limit_bytes`, each run is at most that long, or one batch.
        """
        rest = batches
        while len(rest):
            plan = self._plan_run(rest if limit_bytes is None else rest[: _count_within(rest, limit_bytes)])
            yield rest[: plan.count], plan
            rest = rest[plan.count :]

    def _plan_run(self, batches: NDArray[np.void]) -> RunPlan:
        """Plan the append of as many of `batches` as fit in the active segment, after a roll if none fits."""
        plan = self.active_segment.plan(batches, now_ms=self.clock())
        if plan.count == 0:
            self.roll(int(batches["base_offset"][0]))
            plan = self.active_segment.plan(batches, now_ms=self.clock())
        assert plan.count > 0
        return plan

    def _stored(
        self, run: NDArray[np.void], data: NDArray[np.uint8] = _NO_DATA, known: Sequence[ProducerBatch] | None = None
    ) -> None:
        """Count in `run`, which the active segment has just stored. `data` is necessary if it has control batches.

        `known` are the batches with a producer id, of this run and perhaps of others.
        """
        first_offset, self.log_end_offset = self.log_end_offset, int(run["last_offset"][-1]) + 1
        if isinstance(self._producers, ResumedProducers):
            self._producers.count_in(run)
        elif known is None:
            replay_batches(self.active_segment, self._producers, BatchChunk(data, 0, run))
        else:
            of_run = [each for each in known if first_offset <= each.base_offset < self.log_end_offset]
            replay_producers(self.active_segment, self._producers, of_run, end_offset=self.log_end_offset)

    def _appended(self) -> None:
        """Finish an append, which has advanced the log end."""
        self.high_watermark_moved()
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.flush()

    # Segments

    def roll(self, next_offset: int | None = None) -> LogSegment:
        """Start a new segment at the log end, or above it at `next_offset`, unless the active one is empty there."""
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

    def add_segment(self, base_offset: int) -> LogSegment:
        """Start an empty segment, which becomes the active one."""
        segment = log_loader.create_segment(self.directory, base_offset, self.config, now_ms=self.clock(), fs=self.fs)
        self.segments.add(segment)
        self._names_changed = True
        return segment

    def drop_segment(self, segment: LogSegment) -> None:
        """Remove a segment, its files and the producer snapshot at its base offset."""
        self.segments.remove(segment.base_offset)
        segment.delete()
        self.producers.snapshots.remove(segment.base_offset)
        self._names_changed = True

    # Flushing and closing

    def flush(self, *, is_last: bool = False) -> None:
        """Wait until everything is on disk: data, indexes, noted leader epochs, the names of created and removed files.

        `is_last` means that no append follows, so that the indexes are trimmed first.
        """
        for wait in self.flush_calls(is_last=is_last):
            wait()
        self.flushed()

    def flush_calls(self, *, is_last: bool = False) -> list[Callable[[], None]]:
        """The calls that `flush` makes one after the other; they may also be made side by side, before `flushed`.

        What is written afterwards is not waited for.
        """
        if is_last:
            self.active_segment.trim_indexes()
        is_waited_for = self.fs.waits_for_disk
        unflushed = self.segments.from_offset(min(self.recovery_point, self._flush_from)) if is_waited_for else ()
        calls = [call for segment in unflushed for call in segment.flush_calls()]
        calls += self._flush_also
        if self.epochs.is_changed:
            calls.append(self.epochs.flush)
        if self._names_changed:
            calls.append(partial(self.fs.fsync_dir, self.directory))
        return calls

    def flush_also(self, call: Callable[[], None]) -> None:
        """Let the next flush also make `call`, which waits for what others have written to the directory."""
        self._flush_also.append(call)

    def flushed(self) -> None:
        """Everything that was written is on disk: all of `flush_calls` have returned."""
        self._flush_also.clear()
        self._names_changed = False
        self.recovery_point = self._flush_from = self.log_end_offset

    def close(self) -> None:
        """Kafka's clean close: flush data, add closing time index entries, trim indexes, write a producer snapshot."""
        self.flush()
        self.producers.take_snapshot(durable=True)
        for segment in self.segments.made:
            segment.close()

    def suspend(self) -> None:
        """Close all files between two commits: trims the indexes, but adds no closing entry and no snapshot."""
        with contextlib.ExitStack() as closing:
            for segment in self.segments.made:
                if segment.is_open:
                    closing.callback(segment.close_files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.suspend()


def check_batch_size(size_bytes: int, config: LogConfig) -> None:
    """Raise RecordTooLargeError over max.message.bytes, RecordBatchTooLargeError over segment.bytes."""
    if size_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a record batch of {size_bytes} bytes is larger than max.message.bytes={config.max_message_bytes}: write "
            "smaller batches, or increase the topic's max.message.bytes"
        )
    if size_bytes > config.segment_bytes:
        raise RecordBatchTooLargeError(
            f"a record batch of {size_bytes} bytes is larger than segment.bytes={config.segment_bytes}: write smaller "
            "batches, or increase the topic's segment.bytes"
        )


def stamp(
    batch: NDArray[np.uint8], header: BatchHeader, timestamp_type: TimestampType, max_timestamp_ms: int
) -> BatchHeader:
    """Overwrite the header of `batch` with `header`, a timestamp type and a largest timestamp.

    The CRC is recomputed only if these differ.
    """
    if header.timestamp_type != timestamp_type or header.max_timestamp_ms != max_timestamp_ms:
        attributes = header.attributes & ~TIMESTAMP_TYPE_MASK | int(timestamp_type) << 3
        header = replace(header, attributes=attributes, max_timestamp_ms=max_timestamp_ms)
        batch[:RECORD_BATCH_OVERHEAD_BYTES] = np.frombuffer(header.pack(), dtype=np.uint8)
        header = replace(header, crc=crc32c(batch[ATTRIBUTES_AT:]))
    batch[:RECORD_BATCH_OVERHEAD_BYTES] = np.frombuffer(header.pack(), dtype=np.uint8)
    return header


def _stamp(data: NDArray[np.uint8], run: NDArray[np.void], file: str) -> None:
    """Set the offsets, epochs and log append times of the table in `data`, the bytes of the batches of `run`.

    `file` is the staged file of the first one.
    """
    at = 0
    for row in run:
        header = parse_header(data, at, file=file, file_position=int(row["position"]))
        header = replace(header, base_offset=int(row["base_offset"]), leader_epoch=int(row["leader_epoch"]))
        batch = data[at : at + int(row["size_bytes"])]
        stamp(batch, header, TimestampType.LOG_APPEND_TIME, int(row["max_timestamp_ms"]))
        at += len(batch)


def _count_within(batches: NDArray[np.void], limit_bytes: int) -> int:
    """The number of first batches that fit into `limit_bytes`, at least one."""
    return max(1, int(np.searchsorted(np.cumsum(batches["size_bytes"]), limit_bytes, side="right")))
