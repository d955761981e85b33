"""What Spark's Python data source API itself can move: nothing written in Python on top of it is faster.

`ReadyBatches` yields Arrow batches that are there already, with the seven columns of Spark's Kafka source; `CountOnly`
takes Arrow batches and counts their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

BATCH_ROWS = 40_000
SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"


class ReadyBatches(DataSource):
    """Options: `records`, `partitions`, `keyBytes`, `valueBytes`."""

    @classmethod
    def name(cls) -> str:
        return "ready_batches"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(*(int(self.options[name]) for name in ("records", "partitions", "keyBytes", "valueBytes")))


class _ReadyReader(DataSourceReader):
    def __init__(self, records: int, partitions: int, key_bytes: int, value_bytes: int) -> None:
        self._records_per_partition = records // partitions
        self._partitions = partitions
        self._key = b"k" * key_bytes
        self._value = b"v" * value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        left = self._records_per_partition
        rows = min(BATCH_ROWS, left)
        batch = pa.record_batch(
            {
                "key": pa.array([self._key] * rows, pa.binary()),
                "value": pa.array([self._value] * rows, pa.binary()),
                "topic": pa.array(["orders"] * rows, pa.string()),
                "partition": pa.array([partition.value] * rows, pa.int32()),
                "offset": pa.array(range(rows), pa.int64()),
                "timestamp": pa.array(range(rows), pa.timestamp("us", "UTC")),
                "timestampType": pa.array([0] * rows, pa.int32()),
            }
        )
        while left > 0:
            yield batch.slice(0, min(rows, left))
            left -= rows


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


class _CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass
