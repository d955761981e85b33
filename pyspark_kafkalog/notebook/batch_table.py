"""The headers of a log's record batches as an Arrow table, one row per batch, without their records.

    base_offset, last_offset    of the batch, as it was written; records_count may be less after compaction
    file, position, size_bytes  its location
    codec                       none, gzip, snappy, lz4, zstd
    max_timestamp               the largest of its records; timestamp_type: create or append
    base_timestamp              of its first record; null if a delete horizon takes its place, see delete_horizon
    kind                        data, or the type of a control batch: commit, abort, leader_change, …
    is_transactional, producer_id, producer_epoch, base_sequence      -1 without a producer
    leader_epoch, crc

CRCs are checked while the table is built, so a table also proves that its batches are intact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES
from pyspark_kafkalog.record.control import parse_control_type
from pyspark_kafkalog.record.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.segment.reader import BatchRun

_TIMESTAMP: Final = pa.timestamp("ms", "UTC")
_CODECS: Final = np.array([*CODEC_NAMES, *["unknown"] * (COMPRESSION_MASK + 1 - len(CODEC_NAMES))])

BATCHES_SCHEMA: Final = pa.schema(
    [
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("records_count", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("codec", pa.string()),
        pa.field("base_timestamp", _TIMESTAMP),
        pa.field("max_timestamp", _TIMESTAMP),
        pa.field("timestamp_type", pa.string()),
        pa.field("delete_horizon", _TIMESTAMP),
        pa.field("is_transactional", pa.bool_()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("base_sequence", pa.int32()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("crc", pa.uint32()),
        pa.field("file", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("size_bytes", pa.int64()),
    ]
)


def batch_table(reader: LogReader, start_offset: int, end_offset: int) -> pa.Table:
    """The batches that overlap [start_offset, end_offset), with the columns of BATCHES_SCHEMA; CRCs are checked.

    Raises CorruptRecordError for damage in the range, OffsetOutOfRangeError below the first segment.
    """
    if start_offset >= end_offset:
        return BATCHES_SCHEMA.empty_table()
    tables = [_rows(run) for run in reader.runs(start_offset, end_offset)]
    return pa.concat_tables(tables) if tables else BATCHES_SCHEMA.empty_table()


def _rows(run: BatchRun) -> pa.Table:
    batches = run.batches
    attributes = batches["attributes"]
    has_horizon = (attributes & DELETE_HORIZON_MASK) != 0
    base_timestamps = batches["base_timestamp_ms"]
    is_appended = (attributes & TIMESTAMP_TYPE_MASK) != 0
    columns: dict[str, Any] = {
        **{name: batches[name] for name in ("base_offset", "last_offset", "records_count")},
        "kind": _kinds(run),
        "codec": _CODECS[attributes & COMPRESSION_MASK],
        "base_timestamp": _times(base_timestamps, ~has_horizon & (base_timestamps >= 0)),
        "max_timestamp": _times(batches["max_timestamp_ms"], batches["max_timestamp_ms"] >= 0),
        "timestamp_type": np.where(is_appended, "append", "create"),
        "delete_horizon": _times(base_timestamps, has_horizon),
        "is_transactional": (attributes & TRANSACTIONAL_MASK) != 0,
        **{
            name: batches[name]
            for name in (
                "producer_id",
                "producer_epoch",
                "base_sequence",
                "leader_epoch",
                "crc",
                "position",
                "size_bytes",
            )
        },
        "file": [Path(run.file).name] * len(batches),
    }
    arrays = [
        each.cast(field.type) if isinstance(each, pa.Array) else pa.array(each, field.type)
        for field, each in ((field, columns[field.name]) for field in BATCHES_SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=BATCHES_SCHEMA)


def _times(timestamps_ms: NDArray[np.int64], known: NDArray[np.bool_]) -> pa.Array:
    return pa.array(np.ascontiguousarray(timestamps_ms), pa.int64(), mask=~known).cast(_TIMESTAMP)


def _kinds(run: BatchRun) -> list[str]:
    """The kind of each batch; control batches, which are few, are decoded."""
    kinds = ["data"] * len(run.batches)
    for row in np.flatnonzero(run.batches["attributes"] & CONTROL_MASK).tolist():
        kinds[row] = _marker(run, row)
    return kinds


def _marker(run: BatchRun, row: int) -> str:
    position = int(run.batches["position"][row])
    try:
        records = decode_batch(run.data, position - run.position, file=run.file, file_position=position).records
        key = records[0].key if records else None
        return parse_control_type(key, file=run.file, file_position=position).name.lower()
    except DiskFormatError:
        return "control"
