"""One task of a micro-batch: ranges of partitions, of the topics that the plan saw and no others of their names.

A task costs Spark some ten milliseconds, whatever it reads. So small ranges share one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, DiskFormatError, OffsetOutOfRangeError
from pyspark_kafkalog.spark.batch_reader import OffsetRangePartition, read_offset_range
from pyspark_kafkalog.storage.names import PARTITION_METADATA, TopicPartition
from pyspark_kafkalog.storage.partition_metadata import read_topic_id

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)
_SHARED_TASK_BYTES: Final = 256 << 10


@dataclass(frozen=True)
class StreamRange(OffsetRangePartition):
    """A range to read. `topic_id` None: a broker's directory tells none.

    `is_at_high_watermark`: it ends where the log ended when it was planned, and the log must have the batch that does.
    """

    topic_id: str | None
    is_at_high_watermark: bool


@dataclass(frozen=True)
class StreamTask(InputPartition):
    """What one task reads, one after the other."""

    ranges: tuple[StreamRange, ...]


def share_tasks(ranges: Iterable[tuple[StreamRange, int | None]]) -> list[StreamTask]:
    """Ranges with the bytes they may have, None for many, as tasks: small neighbours in one."""
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
    """Batches of `schema` with the records of one range.

    A topic that was deleted, or deleted and made anew, since the plan is data loss: DataLossError, or a warning when
    failOnDataLoss is false. Raises DataLossError in any case when records of another topic may have been among those
    that went out: Spark then drops them all.
    """
    if not _is_same_topic(each):
        _tell(each)
        return
    try:
        _check_end(each)
        yield from read_offset_range(each, schema)
    except (FileNotFoundError, CorruptRecordError):
        if _is_same_topic(each):
            raise
        _tell(each)
        return
    if not _is_same_topic(each):
        raise DataLossError(_lost(each))


def _check_end(each: StreamRange) -> None:
    from pyspark_kafkalog.storage.log_reader import LogReader

    if each.is_at_high_watermark:
        reader = LogReader(Path(each.directory), TopicPartition(each.topic, each.partition))
        with contextlib.suppress(OffsetOutOfRangeError):  # Retention has been here: reading tells of it.
            reader.check_end(each.end_offset)


def _is_same_topic(each: StreamRange) -> bool:
    directory = Path(each.directory)
    if each.topic_id is None:
        return directory.is_dir()
    try:
        return read_topic_id(directory / PARTITION_METADATA) == each.topic_id
    except FileNotFoundError:
        return directory.is_dir()
    except DiskFormatError:
        return True  # Damage to this file says nothing of the records.


def _tell(each: StreamRange) -> None:
    if each.fail_on_data_loss:
        raise DataLossError(f"{_lost(each)}. Set failOnDataLoss to false to go on with what is there")
    _LOG.warning(_lost(each))


def _lost(each: StreamRange) -> str:
    return (
        f"{TopicPartition(each.topic, each.partition)}: offsets {each.start_offset} to {each.end_offset} were asked "
        f"for, but the topic was deleted, or deleted and made anew, since the micro-batch was planned"
    )
