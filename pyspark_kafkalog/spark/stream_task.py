"""One task of a micro-batch: a range of one partition, of the topic that the plan saw and no other of its name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, DiskFormatError, OffsetOutOfRangeError
from pyspark_kafkalog.spark.batch_reader import OffsetRangePartition, read_offset_range
from pyspark_kafkalog.storage.names import PARTITION_METADATA, TopicPartition
from pyspark_kafkalog.storage.partition_metadata import read_topic_id

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamRange(OffsetRangePartition):
    """What one task reads. `topic_id` None: a broker's directory tells none.

    `is_at_high_watermark`: it ends where the log ended when it was planned, and the log must have the batch that does.
    """

    topic_id: str | None
    is_at_high_watermark: bool


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
