"""One task of a micro-batch: ranges of partitions.

Each task costs Spark about ten milliseconds, however little it reads. So small ranges share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.spark.read.ranges import check_end_if_kept
from pyspark_kafkalog.spark.read.task import OffsetRangePartition, read_offset_range, read_same_topic
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_SHARED_TASK_BYTES: Final = 256 << 10


@dataclass(frozen=True)
class StreamRange(OffsetRangePartition):
    """A range to read.

    `is_at_high_watermark`: it ends at the high watermark of the plan; the log must contain the batch that ends there.
    """

    advice: ClassVar[str] = ""

    is_at_high_watermark: bool


@dataclass(frozen=True)
class StreamTask(InputPartition):
    """The ranges that one task reads, in order."""

    ranges: tuple[StreamRange, ...]


def share_tasks(ranges: Iterable[tuple[StreamRange, int | None]]) -> list[StreamTask]:
    """Group ranges into tasks; small neighbours share one. Each comes with a bound on its bytes, None for many."""
    tasks: list[list[StreamRange]] = []
    room_bytes = 0
    for each, size_bytes in ranges:
        if size_bytes is None or size_bytes > room_bytes:
            tasks.append([])
            room_bytes = _SHARED_TASK_BYTES
        tasks[-1].append(each)
        room_bytes = 0 if size_bytes is None else room_bytes - size_bytes
    return [StreamTask(tuple(each)) for each in tasks]


def read_stream_range(each: StreamRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of `schema` with the records of one range. Raises DataLossError as `read_same_topic`."""
    yield from read_same_topic(each, _read_to_end(each, schema))


def _read_to_end(each: StreamRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    _check_end(each)
    yield from read_offset_range(each, schema)


def _check_end(each: StreamRange) -> None:
    from pyspark_kafkalog.storage.log.reader import LogReader

    if each.is_at_high_watermark:
        reader = LogReader(Path(each.directory), TopicPartition(each.topic, each.partition))
        check_end_if_kept(reader, each.end_offset)
