"""Stages an Arrow table for one topic: the complete write of a single process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.partitioner import Partitioner
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.staging.row_buffer import RowBuffer, Rows
from pyspark_kafkalog.storage.staging.staged_file import StagedFile
from pyspark_kafkalog.storage.staging.stager import StagingTask, TopicStager

_COLUMNS = ("key", "value", "headers", "timestamp")
_BUFFER_BYTES = 32 << 20


def stage_table(
    task: StagingTask,
    topic: str,
    records: pa.Table | pa.RecordBatch,
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
    _check_columns(records.schema)
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
    batches = [records] if isinstance(records, pa.RecordBatch) else records.to_batches()
    buffer = RowBuffer(_BUFFER_BYTES)
    try:
        for batch in batches:
            for joined in buffer.add(batch):
                _stage(stager, Rows(joined, clock_ms()), partition)
        for joined in buffer.flush():
            _stage(stager, Rows(joined, clock_ms()), partition)
        return stager.finish()
    except BaseException:
        stager.discard()
        raise


def _stage(stager: TopicStager, rows: Rows, partition: int | None) -> None:
    given = None if partition is None else np.full(rows.columns.count, partition, np.int32)
    stager.add(rows.columns, None, given)


def _check_columns(schema: pa.Schema) -> None:
    unknown = sorted(set(schema.names) - set(_COLUMNS))
    if unknown or "value" not in schema.names:
        raise InvalidRecordError(
            f"records to append have the columns {', '.join(schema.names)}: "
            f"value must be there, and of others only {', '.join(name for name in _COLUMNS if name != 'value')}"
        )
