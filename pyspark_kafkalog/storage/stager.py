"""Stages records: checks them as a leader would, assigns partitions, encodes batches, writes staged files.

`TopicStager` serves the tasks of a Spark write; `stage_table` is the complete write of an Arrow table by one process.
The commit later copies the batches unchanged, so the steps of a broker's append are taken here: the topic's codec if it
has its own, LogAppendTime, the limits on timestamps and sizes, keys for compacted topics
(org.apache.kafka.storage.internals.log.LogValidator). A crash leaves staged files that nothing refers to.

Spark passes batches of some 10,000 rows; split over partitions, each would make short record batches. `RowBuffer`
collects about `limit_bytes` of them, which are encoded together, each from its own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.arrow import from_arrow
from pyspark_kafkalog.record.codecs.codec import codec_named
from pyspark_kafkalog.record.columns import RecordColumns
from pyspark_kafkalog.record.encode import RecordSource, encode_batches
from pyspark_kafkalog.record.header import NO_TIMESTAMP, TimestampType
from pyspark_kafkalog.record.kernels.encode import FIRST_AT
from pyspark_kafkalog.record.partitioner import NO_PARTITION, Partitioner, group_rows
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, TaskFiles
from pyspark_kafkalog.units import NS_PER_MS, US_PER_MS

_UNITS_PER_MS: Final = {"ms": 1, "us": US_PER_MS, "ns": NS_PER_MS}
_ROW_COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")


class Rows:
    """Rows of a write: the `columns` to encode, and the topics and partitions of the rows."""

    def __init__(self, given: Mapping[str, pa.Array], now_ms: int) -> None:
        self._given = given
        value = given["value"]
        self.columns: RecordColumns = from_arrow(
            given.get("key"), value, given.get("headers"), _timestamps_ms(given.get("timestamp"), len(value), now_ms)
        )

    @property
    def partitions(self) -> NDArray[np.int32] | None:
        """The column partition, with NO_PARTITION for null; None without such a column."""
        column = self._given.get("partition")
        if column is None:
            return None
        if pc.any(pc.less(column, 0)).as_py():
            raise InvalidRecordError(f"a record has partition {pc.min(column).as_py()}: partitions count from 0")
        partitions: NDArray[np.int32] = pc.fill_null(column, NO_PARTITION).to_numpy(zero_copy_only=False)
        return partitions

    def by_topic(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Each topic of the column topic with the indices of its rows. Raises InvalidRecordError for a null topic."""
        column = self._given["topic"]
        if column.null_count:
            raise InvalidRecordError(
                "The Kafka message data sent to the producer contains a null topic. "
                "Use the `topic` option for setting a default topic."
            )
        encoded = column.dictionary_encode()
        topics: list[str] = encoded.dictionary.to_pylist()
        order, bounds = group_rows(encoded.indices.to_numpy(zero_copy_only=False), len(topics))
        for at, topic in enumerate(topics):
            yield topic, order[bounds[at] : bounds[at + 1]]


class RowBuffer:
    """Collects Arrow batches; `add` returns their columns whenever `limit_bytes` are reached, `flush` the rest."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[list[dict[str, pa.Array]]]:
        """Add one batch; a batch larger than the limit is split into slices."""
        pieces = min(-(-batch.nbytes // self._limit_bytes), batch.num_rows)
        rows = -(-batch.num_rows // max(pieces, 1))
        for start in range(0, batch.num_rows, max(rows, 1)):
            piece = batch.slice(start, rows)
            self._batches.append(piece)
            self._size_bytes += piece.nbytes
            if self._size_bytes >= self._limit_bytes:
                yield from self.flush()

    def flush(self) -> Iterator[list[dict[str, pa.Array]]]:
        """The columns of each buffered batch, or nothing if the buffer is empty."""
        if self._batches:
            names = [name for name in _ROW_COLUMNS if name in self._batches[0].schema.names]
            batches = [{name: batch.column(name) for name in names} for batch in self._batches]
            self._batches, self._size_bytes = [], 0
            yield batches


def _timestamps_ms(column: pa.Array | None, count: int, now_ms: int) -> NDArray[np.int64]:
    """Timestamps in ms, rounded down; `now_ms` for null or without the column."""
    if column is None or pa.types.is_null(column.type):
        return np.full(count, now_ms, np.int64)
    if not pa.types.is_timestamp(column.type):
        raise InvalidRecordError(f"the column timestamp is of type {column.type}, it must be an Arrow timestamp")
    if column.type.unit == "s":
        column = _cast_to_ms(column)
    per_ms = _UNITS_PER_MS[column.type.unit]
    numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), now_ms * per_ms).to_numpy(zero_copy_only=False)
    return numbers if per_ms == 1 else numbers // per_ms


def _cast_to_ms(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.timestamp("ms", column.type.tz))
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"the column timestamp has a time that is no 64-bit number of ms: {error}") from None


_BUFFER_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Selected:
    """Records to stage: `rows` of `columns` (all if None) in `partitions`; NO_PARTITION lets the partitioner choose."""

    columns: RecordColumns
    rows: NDArray[np.int64] | None = None
    partitions: NDArray[np.int32] | None = None


def _rows(piece: Selected) -> NDArray[np.int64]:
    return np.arange(piece.columns.count, dtype=np.int64) if piece.rows is None else piece.rows


class TopicStager:
    """Stages records of `topic`, which has `partitions_count` partitions with directories in the root.

    `asked_compression` is used if the topic's compression.type is producer. A batch is closed at `batch_size_bytes`
    before compression. `clock_ms` returns the time for LogAppendTime and for the limit on future timestamps.
    """

    def __init__(
        self,
        task: StagingTask,
        topic: str,
        partitions_count: int,
        config: LogConfig,
        *,
        partitioner: Partitioner,
        asked_compression: str | None,
        batch_size_bytes: int,
        clock_ms: Callable[[], int],
        fs: FileSystem = LOCAL,
    ) -> None:
        self._topic = topic
        self._partitions_count = partitions_count
        self._config = config
        self._partitioner = partitioner
        self._codec = config.stored_compression(codec_named(asked_compression or "none").compression_type)
        self._batch_size_bytes = batch_size_bytes
        self._clock_ms = clock_ms
        self._files = TaskFiles(task, topic, fs)

    def add(self, pieces: Sequence[Selected]) -> None:
        """Stage the records of all pieces, whose batches go across the pieces.

        Raises InvalidRecordError; records staged before that remain until `discard`.
        """
        now_ms = self._clock_ms()
        assigned = [self._assign(piece, now_ms) for piece in pieces]
        order, bounds = group_rows(np.concatenate(assigned), self._partitions_count)
        source = RecordSource.of([piece.columns for piece in pieces])
        if any(piece.rows is not None for piece in pieces):
            firsts = source.pieces[:, FIRST_AT]
            order = np.concatenate([first + _rows(piece) for first, piece in zip(firsts, pieces, strict=True)])[order]
        for partition in np.flatnonzero(np.diff(bounds)).tolist():
            self._append(partition, source, order[bounds[partition] : bounds[partition + 1]], now_ms)

    def _assign(self, piece: Selected, now_ms: int) -> NDArray[np.int32]:
        rows = _rows(piece)
        self._check(piece.columns, rows, now_ms)
        return self._partitioner.assign(piece.columns, rows, piece.partitions)

    def finish(self) -> list[StagedFile]:
        """The finished files, their data on disk. After an error `discard` removes them."""
        return self._files.finish()

    def discard(self) -> None:
        """Remove all staged files, unless `finish` has completed."""
        self._files.discard()

    def _append(self, partition: int, records: RecordSource, rows: NDArray[np.int64], now_ms: int) -> None:
        timestamp_type = self._config.message_timestamp_type
        encoded = encode_batches(
            records,
            rows=rows,
            compression=self._codec,
            level=self._config.compression_level(self._codec),
            batch_size_bytes=self._batch_size_bytes,
            max_batch_bytes=min(self._config.max_message_bytes, self._config.segment_bytes),
            record_max_bytes=self._config.max_decompressed_message_bytes,
            base_offset=self._files.next_offset(partition),
            timestamp_type=timestamp_type,
            log_append_time_ms=now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else None,
        )
        self._files.append(partition, encoded.data, encoded.batches)

    def _check(self, columns: RecordColumns, rows: NDArray[np.int64], now_ms: int) -> None:
        if self._config.compact and _has_null_key(columns, rows):
            raise InvalidRecordError(f"topic {self._topic} is compacted: every record needs a key, one has none")
        if self._config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            return
        assert columns.timestamps_ms is not None
        timestamps_ms = columns.timestamps_ms if len(rows) == columns.count else columns.timestamps_ms[rows]
        timestamps_ms = timestamps_ms[timestamps_ms != NO_TIMESTAMP]
        if not len(timestamps_ms):
            return
        oldest_ms, latest_ms = int(timestamps_ms.min()), int(timestamps_ms.max())
        limits = (
            (oldest_ms, now_ms - oldest_ms > self._config.message_timestamp_before_max_ms, "before"),
            (latest_ms, latest_ms - now_ms > self._config.message_timestamp_after_max_ms, "after"),
        )
        for timestamp_ms, is_out, side in limits:
            if is_out:
                raise InvalidRecordError(
                    f"a record for topic {self._topic} has timestamp {timestamp_ms} ms, too long {side} the "
                    f"current time {now_ms} ms: the topic's message.timestamp.{side}.max.ms allows less"
                )


def _has_null_key(columns: RecordColumns, rows: NDArray[np.int64]) -> bool:
    keys = columns.keys
    if keys is None:
        return len(rows) > 0
    if keys.validity is None:
        return False
    return bool((keys.validity[rows >> 3] >> (rows & 7).astype(np.uint8) & 1 == 0).any())


def stage_table(
    task: StagingTask,
    topic: str,
    records: pa.Table | pa.RecordBatch | pa.RecordBatchReader,
    *,
    partitions_count: int,
    partition: int | None,
    config: LogConfig,
    asked_compression: str | None,
    batch_size_bytes: int,
    clock_ms: Callable[[], int],
    fs: FileSystem,
) -> list[StagedFile]:
    """Stage all rows of `records`, in `partition` or in the partitions that the default partitioner chooses.

    Raises InvalidRecordError, and then leaves no staged files.
    """
    stager = TopicStager(
        task,
        topic,
        partitions_count,
        config,
        partitioner=Partitioner(partitions_count, turn_bytes=batch_size_bytes),
        asked_compression=asked_compression,
        batch_size_bytes=batch_size_bytes,
        clock_ms=clock_ms,
        fs=fs,
    )
    batches = [records] if isinstance(records, pa.RecordBatch) else records
    if isinstance(batches, pa.Table):
        batches = batches.to_batches()
    buffer = RowBuffer(_BUFFER_BYTES)
    try:
        for batch in batches:
            for collected in buffer.add(batch):
                _stage(stager, collected, partition, clock_ms())
        for collected in buffer.flush():
            _stage(stager, collected, partition, clock_ms())
        return stager.finish()
    except BaseException:
        stager.discard()
        raise


def _stage(stager: TopicStager, batches: Sequence[Mapping[str, pa.Array]], partition: int | None, now_ms: int) -> None:
    pieces = [Rows(batch, now_ms).columns for batch in batches]
    given = [None if partition is None else np.full(piece.count, partition, np.int32) for piece in pieces]
    stager.add([Selected(piece, None, each) for piece, each in zip(pieces, given, strict=True)])
