"""Buffers rows for record batches: collects Arrow batches until they fill record batches.

Spark passes batches of some 10,000 rows; split over partitions, each would make short record batches. The buffer first
joins them to about `limit_bytes`. Memory: for a moment twice the limit, then the joined copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.arrow import from_arrow
from pyspark_kafkalog.record.columns import RecordColumns
from pyspark_kafkalog.record.partitioner import NO_PARTITION, group_rows
from pyspark_kafkalog.units import US_PER_MS

_COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")


class Rows:
    """Rows of a write: the `columns` to encode, and the topics and partitions of the rows."""

    def __init__(self, joined: dict[str, pa.Array], now_ms: int) -> None:
        self._joined = joined
        value = joined["value"]
        self.columns: RecordColumns = from_arrow(
            joined.get("key"), value, joined.get("headers"), _timestamps_ms(joined.get("timestamp"), len(value), now_ms)
        )

    @property
    def partitions(self) -> NDArray[np.int32] | None:
        """The column partition, with NO_PARTITION for null; None without such a column."""
        column = self._joined.get("partition")
        if column is None:
            return None
        if pc.any(pc.less(column, 0)).as_py():
            raise InvalidRecordError(f"a record has partition {pc.min(column).as_py()}: partitions count from 0")
        partitions: NDArray[np.int32] = pc.fill_null(column, NO_PARTITION).to_numpy(zero_copy_only=False)
        return partitions

    def by_topic(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Each topic of the column topic with the indices of its rows. Raises InvalidRecordError for a null topic."""
        column = self._joined["topic"]
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
    """Collects Arrow batches; `add` returns joined rows whenever `limit_bytes` are reached, `flush` the rest."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[dict[str, pa.Array]]:
        """Add one batch; a batch larger than the limit is split into slices."""
        pieces = min(-(-batch.nbytes // self._limit_bytes), batch.num_rows)
        rows = -(-batch.num_rows // max(pieces, 1))
        for start in range(0, batch.num_rows, max(rows, 1)):
            piece = batch.slice(start, rows)
            self._batches.append(piece)
            self._size_bytes += piece.nbytes
            if self._size_bytes >= self._limit_bytes:
                yield from self.flush()

    def flush(self) -> Iterator[dict[str, pa.Array]]:
        """The buffered rows, joined: one array for each column, or nothing if the buffer is empty."""
        if self._batches:
            names = [name for name in _COLUMNS if name in self._batches[0].schema.names]
            joined = {name: _join([batch.column(name) for batch in self._batches]) for name in names}
            self._batches, self._size_bytes = [], 0
            yield joined


def _join(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _timestamps_ms(column: pa.Array | None, count: int, now_ms: int) -> NDArray[np.int64]:
    """Timestamps in ms, rounded down; `now_ms` for null or without the column."""
    if column is None or pa.types.is_null(column.type):
        return np.full(count, now_ms, np.int64)
    if not pa.types.is_timestamp(column.type):
        raise InvalidRecordError(f"the column timestamp is of type {column.type}, it must be an Arrow timestamp")
    is_finer = column.type.unit == "ns"
    timestamps_us = column.cast(pa.timestamp("us", column.type.tz), safe=not is_finer).cast(pa.int64())
    filled: NDArray[np.int64] = pc.fill_null(timestamps_us, now_ms * US_PER_MS).to_numpy(zero_copy_only=False)
    return filled // US_PER_MS
