"""Throughput of Spark's Python data source API itself, which is the upper bound of every Python data source.

`ReadyBatches` yields prepared Arrow batches with the seven columns of Spark's Kafka source; `CountOnly` takes Arrow
batches and counts their rows. Both work in batch and in streaming queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

BATCH_ROWS = 40_000
SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"


class ReadyBatches(DataSource):
    """Options: `records`, `partitions`, `keyBytes`, `valueBytes`, for streams `maxOffsetsPerTrigger`."""

    @classmethod
    def name(cls) -> str:
        return "ready_batches"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(int(self.options["records"]), int(self.options["partitions"]), self._rows())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        limit = self.options.get("maxOffsetsPerTrigger")
        return _ReadyStream(
            int(self.options["records"]), int(self.options["partitions"]), self._rows(), int(limit) if limit else None
        )

    def _rows(self) -> _ReadyRows:
        return _ReadyRows(b"k" * int(self.options["keyBytes"]), b"v" * int(self.options["valueBytes"]))


@dataclass
class _Share(InputPartition):
    number: int
    records: int


@dataclass
class _ReadyRows:
    key: bytes
    value: bytes

    def read(self, share: _Share) -> Iterator[Any]:
        import pyarrow as pa

        left = share.records
        rows = min(BATCH_ROWS, left)
        batch = pa.record_batch(
            {
                "key": pa.array([self.key] * rows, pa.binary()),
                "value": pa.array([self.value] * rows, pa.binary()),
                "topic": pa.array(["orders"] * rows, pa.string()),
                "partition": pa.array([share.number] * rows, pa.int32()),
                "offset": pa.array(range(rows), pa.int64()),
                "timestamp": pa.array(range(rows), pa.timestamp("us", "UTC")),
                "timestampType": pa.array([0] * rows, pa.int32()),
            }
        )
        while left > 0:
            yield batch.slice(0, min(rows, left))
            left -= rows


class _ReadyReader(DataSourceReader):
    def __init__(self, records: int, partitions: int, rows: _ReadyRows) -> None:
        self._shares = [_Share(number, records // partitions) for number in range(partitions)]
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return self._shares

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Share)
        return self._rows.read(partition)


class _ReadyStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are counts of records, `limit` of them a micro-batch."""

    def __init__(self, records: int, partitions: int, rows: _ReadyRows, limit: int | None) -> None:
        self._records = records
        self._partitions = partitions
        self._rows = rows
        self._limit = limit

    def initialOffset(self) -> dict[str, int]:
        return {"records": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit) if self._limit else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._records
        return {"records": min(start["records"] + most, self._records)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        records = (end["records"] - start["records"]) // self._partitions
        return [_Share(number, records) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Share)
        return self._rows.read(partition)


@dataclass
class _Counted(WriterCommitMessage):
    rows: int


class CountOnly(DataSource):
    """A sink that keeps nothing."""

    @classmethod
    def name(cls) -> str:
        return "count_only"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _CountingStreamWriter()


class _CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class _CountingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
