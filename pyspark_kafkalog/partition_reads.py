"""Reading a range of one partition of a `LogDir`: where it ends by isolation level, and the checks of its offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.storage.descriptions import PartitionDescription

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.log_dir import IsolationLevel, LogDir


def readable_end(log_dir: LogDir, found: PartitionDescription, isolation: IsolationLevel) -> int:
    """The offset at which a reader of that isolation level ends: the last stable offset, or the high watermark."""
    if isolation == "read_committed":
        return log_dir.last_stable_offset(found.topic, found.partition)
    return found.high_watermark


def read_table(
    log_dir: LogDir,
    partitions: Iterable[PartitionDescription],
    start_offset: int | None,
    end_offset: int | None,
    isolation: IsolationLevel,
    columns: Sequence[str] | None,
) -> pa.Table:
    """Records of all the partitions in one table, with all columns or those named."""
    import pyarrow as pa

    from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA

    schema = KAFKA_SCHEMA if columns is None else pa.schema([KAFKA_SCHEMA.field(name) for name in columns])
    batches = [
        batch
        for each in partitions
        for batch in read_partition(log_dir, each, start_offset, end_offset, isolation, schema)
    ]
    return pa.Table.from_batches(batches, schema)


def read_partition(
    log_dir: LogDir,
    found: PartitionDescription,
    start_offset: int | None,
    end_offset: int | None,
    isolation: IsolationLevel,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Records of [start_offset, end_offset), by default all that can be read, as batches of `schema`.

    Raises OffsetOutOfRangeError, before the first batch, for a start outside [log start, readable end].
    """
    end_of_log = readable_end(log_dir, found, isolation)
    start = found.log_start_offset if start_offset is None else start_offset
    end = end_of_log if end_offset is None else min(end_offset, end_of_log)
    if not found.log_start_offset <= start <= end_of_log:
        raise OffsetOutOfRangeError(
            f"offset {start} of {found.topic}-{found.partition} is not in [{found.log_start_offset}, {end_of_log}]"
        )
    reader = log_dir.reader(found.topic, found.partition)
    if end == found.high_watermark > start:
        reader.check_end(end)
    return reader.read(start, end, schema=schema, committed=isolation == "read_committed")
