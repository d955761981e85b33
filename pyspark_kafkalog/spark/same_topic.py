"""What a task reads is of the topic that the plan saw, and of no other that was made under its name since."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, DiskFormatError
from pyspark_kafkalog.storage.names import LOG_SUFFIX, PARTITION_METADATA, TopicPartition
from pyspark_kafkalog.storage.partition_metadata import read_topic_id

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.spark.batch_reader import OffsetRangePartition

_LOG: Final = logging.getLogger(__name__)


def read_same_topic(each: OffsetRangePartition, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`batches`, which are to be read of the range `each` when they are asked for.

    A topic that was deleted, or deleted and made anew, since the plan is data loss: DataLossError, or a warning when
    failOnDataLoss is false. Raises DataLossError in any case when records of another topic may have been among those
    that went out: Spark then drops them all.
    """
    if not _is_same_topic(each):
        _tell(each)
        return
    try:
        yield from batches
    except (FileNotFoundError, CorruptRecordError):
        if _is_same_topic(each):
            raise
        _tell(each)
        return
    if not _is_same_topic(each):
        raise DataLossError(_lost(each))


def _is_same_topic(each: OffsetRangePartition) -> bool:
    directory = Path(each.directory)
    if each.topic_id is None:
        return directory.is_dir()
    try:
        return read_topic_id(directory / PARTITION_METADATA) == each.topic_id
    except FileNotFoundError:
        return any(directory.glob(f"*{LOG_SUFFIX}"))  # A directory that is being made anew gets its id first.
    except DiskFormatError:
        return True  # Damage to this file says nothing of the records.


def _tell(each: OffsetRangePartition) -> None:
    if each.fail_on_data_loss:
        raise DataLossError(f"{_lost(each)}. Set failOnDataLoss to false to go on with what is there")
    _LOG.warning(_lost(each))


def _lost(each: OffsetRangePartition) -> str:
    return (
        f"{TopicPartition(each.topic, each.partition)}: offsets {each.start_offset} to {each.end_offset} were asked "
        f"for, but the topic was deleted, or deleted and made anew, since the read was planned"
    )
