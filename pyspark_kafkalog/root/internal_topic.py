"""A coordinator's topic: creates it, and follows a partition: all its records once, then those appended since.

Many records up to the last stable offset, where no transaction is open, are read by the compiled decoder; a few, and
those above it, batch by batch without it, because loading it takes a second and 50 MB.

The cleaner removes tombstones some time after they were written (delete.retention.ms). Who follows a partition and
finds that records are missing which it has not read may have missed the deletion of what it knows: it reads all again.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import TopicExistsError
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import NO_PRODUCER_ID, BatchHeader
from pyspark_kafkalog.record.reference import RecordBatch, decode_batch
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyspark_kafkalog.root.native import NativeRoot
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot

#: Offsets from which on the compiled decoder is worth loading.
_MANY_OFFSETS: Final = 500


def ensure_internal_topic(
    root: NativeRoot, topic: str, partitions_count: int, *, compression: str, segment_bytes: int
) -> None:
    """Create a compacted topic of a coordinator, unless it exists in the newest image."""
    root.refresh()
    if topic not in root.store.image.topics:
        configs = {"cleanup.policy": "compact", "compression.type": compression, "segment.bytes": str(segment_bytes)}
        with contextlib.suppress(TopicExistsError):  # another process has created it meanwhile
            root.create_topic(topic, partitions_count, configs)
        root.refresh()


class _RecordsCleanedError(Exception):
    """Records that were not read yet have been removed by the cleaner: the partition has to be read from its start."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The records of one batch; `producer_id` is that of their transaction, and `is_commit` is set by its marker."""

    producer_id: int
    changes: Sequence[tuple[int, bytes | None, bytes | None]] = ()
    is_commit: bool | None = None


@dataclass(frozen=True, slots=True)
class LogTail:
    """The records of [start_offset, end_offset), read while the steps are taken. `is_new`: all are read again."""

    origin: object
    is_new: bool
    start_offset: int
    end_offset: int
    steps: Iterable[ReplayStep]

    def read(self) -> LogTail | None:
        """The same with its records read; None if all records of the partition have to be read again.

        Raises as `FollowedLog.follow`.
        """
        try:
            return None if self.is_new else replace(self, steps=tuple(self.steps))
        except _RecordsCleanedError:
            return None


class FollowedLog(ABC):
    """What a partition's records say, up to `end_offset`."""

    def __init__(self) -> None:
        self.end_offset = 0
        self._origin: object = None

    def follow(self, found: PartitionSnapshot, topic_id: str | None) -> frozenset[str] | None:
        """Read the partition's records that have not been read yet; the names that `_take` returned for them.

        None: all records were read again, because the partition was replaced, its beginning was deleted, or records
        were cleaned that had not been read.

        Raises CorruptRecordError, OffsetOutOfRangeError if retention deletes the records meanwhile.
        """
        try:
            return self.apply(self.tail_of(found, topic_id))
        except _RecordsCleanedError:
            return self.apply(self.tail_of(found, topic_id))

    def tail_of(self, found: PartitionSnapshot, topic_id: str | None) -> LogTail:
        """The records that have not been read yet. Reads nothing before its steps are taken, and changes nothing."""
        origin = (topic_id, found.log_start_offset)
        is_new = self._origin != origin or found.high_watermark < self.end_offset
        start_offset = found.log_start_offset if is_new else self.end_offset
        whole = None if is_new else _Whole(start_offset)
        has_open = not is_new and self._has_open_transactions()
        steps = _steps(found, start_offset, whole, has_open=has_open) if found.high_watermark > start_offset else ()
        return LogTail(origin, is_new, start_offset, found.high_watermark, steps)

    def apply(self, tail: LogTail) -> frozenset[str] | None:
        """Take over a tail, as `follow` does. After an error the next tail is of all records."""
        if tail.is_new:
            self._clear()
        self._origin = None  # if a step fails, applied records cannot be distinguished from the rest
        changed: set[str] = set()
        for step in tail.steps:
            changed.update(self._take(step))
        self._origin, self.end_offset = tail.origin, tail.end_offset
        return None if tail.is_new else frozenset(changed)

    @abstractmethod
    def _clear(self) -> None:
        """Forget all that was read."""

    @abstractmethod
    def _take(self, step: ReplayStep) -> Iterable[str]:
        """Take over the records; names of what they change."""

    def _has_open_transactions(self) -> bool:
        """Whether records of open transactions were read: the rest of them must be told apart from others."""
        return False


def _steps(
    found: PartitionSnapshot, start_offset: int, whole: _Whole | None, *, has_open: bool
) -> Iterator[ReplayStep]:
    reader = LogReader(found.extents(), TopicPartition(found.topic, found.partition))
    if not has_open and found.high_watermark - start_offset >= _MANY_OFFSETS:
        if whole is not None:
            for run in reader.runs(start_offset, found.high_watermark):
                whole.check(run.batches)
            whole.check_end(found.high_watermark)
            whole = None
        import pyarrow as pa

        stable_offset = max(found.last_stable_offset, start_offset)
        if stable_offset == found.high_watermark:
            reader.check_end(stable_offset)
        schema = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
        for records in reader.read(start_offset, stable_offset, schema=schema, committed=True):
            columns = (records.column(name).to_pylist() for name in schema.names)
            yield ReplayStep(NO_PRODUCER_ID, list(zip(*columns, strict=True)))
        start_offset = stable_offset
    if start_offset < found.high_watermark:
        reader.check_end(found.high_watermark)
        for file, at, data in reader.batches(start_offset, found.high_watermark):
            batch = decode_batch(data, 0, file=file, file_position=at)
            if whole is not None:
                whole.check_one(batch.header)
            yield _step(batch, start_offset, file, at)
        if whole is not None:
            whole.check_end(found.high_watermark)


def _step(batch: RecordBatch, start_offset: int, file: str, position: int) -> ReplayStep:
    header = batch.header
    if header.is_control:
        types = [parse_control_type(record.key, file=file, file_position=position) for record in batch.records]
        return ReplayStep(header.producer_id, is_commit=ControlRecordType.COMMIT in types)
    changes = [(each.offset, each.key, each.value) for each in batch.records if each.offset >= start_offset]
    return ReplayStep(header.producer_id if header.is_transactional else NO_PRODUCER_ID, changes)


class _Whole:
    """Checks that the batches from an offset on have all records that were written."""

    def __init__(self, start_offset: int) -> None:
        self._next_offset = start_offset

    def check(self, batches: NDArray[np.void]) -> None:
        """The next ones (BATCH_DTYPE). Raises _RecordsCleanedError."""
        if not len(batches):
            return
        base_offsets, next_offsets = batches["base_offset"], batches["last_offset"] + 1
        if (
            base_offsets[0] > self._next_offset
            or (base_offsets[1:] != next_offsets[:-1]).any()
            or (batches["records_count"] != next_offsets - base_offsets).any()
        ):
            raise _RecordsCleanedError
        self._next_offset = int(next_offsets[-1])

    def check_one(self, header: BatchHeader) -> None:
        """The next one. Raises _RecordsCleanedError."""
        if header.base_offset > self._next_offset or header.records_count != header.last_offset_delta + 1:
            raise _RecordsCleanedError
        self._next_offset = header.next_offset

    def check_end(self, end_offset: int) -> None:
        """There are no further ones up to `end_offset`. Raises _RecordsCleanedError."""
        if self._next_offset < end_offset:
            raise _RecordsCleanedError
