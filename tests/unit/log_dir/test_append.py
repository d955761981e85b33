"""`LogDir.append` accepts tables with valid columns and rejects others: types, sizes, room in indexes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from builders.root_places import RootPlace

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidConfigError, InvalidRecordError
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    return LogDir.create(root_place)


@pytest.mark.parametrize("column", [pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")), pa.nulls(1)])
def test_nanosecond_and_null_timestamps_are_written(log_dir: LogDir, column: pa.Array) -> None:
    log_dir.append("orders", pa.table({"value": ["x"], "timestamp": column}))
    (found,) = log_dir.read("orders")["timestamp"].cast(pa.int64()).to_pylist()
    assert column.null_count or found == 1_700_000_000_123


def test_integer_timestamps_are_rejected(log_dir: LogDir) -> None:
    with pytest.raises(InvalidRecordError, match="of type int64"):
        log_dir.append("orders", pa.table({"value": ["x"], "timestamp": [1_700_000_000_123]}))


def test_missing_and_unknown_columns_are_rejected(log_dir: LogDir) -> None:
    with pytest.raises(InvalidRecordError, match="value"):
        log_dir.append("orders", pa.table({"key": [b"a"]}))
    with pytest.raises(InvalidRecordError, match="colour"):
        log_dir.append("orders", pa.table({"value": [b"a"], "colour": [1]}))
    log_dir.create_topic("compacted", partitions=1, configs={"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError, match="key"):
        log_dir.append("compacted", pa.table({"value": [b"a"]}))
    assert not isinstance(log_dir.path, Path) or not list(log_dir.path.rglob("*.staged"))


def test_record_over_max_decompressed_message_bytes_is_rejected_in_compressed_batches(log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=1, configs={"max.decompressed.message.bytes": "1005"})
    fitting, larger = pa.table({"value": ["v" * 998] * 60}), pa.table({"value": [*["v"] * 5, "v" * 999]})
    for codec in CODEC_NAMES:
        log_dir.append("orders", fitting, compression_type=codec)
        if codec == "none":
            log_dir.append("orders", larger, compression_type=codec)
        else:
            with pytest.raises(InvalidRecordError, match=r"row 5 .*max\.decompressed\.message\.bytes = 1005"):
                log_dir.append("orders", larger, compression_type=codec)


def test_record_over_max_message_bytes_after_compression_is_rejected(log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=1, configs={"max.message.bytes": "1000"})
    with pytest.raises(InvalidRecordError, match="1000"):
        log_dir.append("orders", pa.table({"value": [os.urandom(2000)]}))
    log_dir.append("orders", pa.table({"value": [b"x" * 2000]}), compression_type="zstd")
    assert log_dir.read("orders")["value"].to_pylist() == [b"x" * 2000]


@pytest.mark.file_roots
@pytest.mark.parametrize(("index_bytes", "entry"), [("4", r"\.index takes 8"), ("8", r"\.timeindex takes 12")])
def test_index_too_small_for_an_entry_is_rejected_with_name_of_setting(
    log_dir: LogDir, index_bytes: str, entry: str
) -> None:
    log_dir.create_topic("tiny", configs={"segment.index.bytes": index_bytes})
    with pytest.raises(InvalidConfigError, match=rf"segment\.index\.bytes is {index_bytes}, .*{entry} bytes"):
        log_dir.append("tiny", pa.table({"value": ["a"]}))
    log_dir.alter_topic("tiny", delete=["segment.index.bytes"])
    log_dir.append("tiny", pa.table({"value": ["a"]}))
    assert log_dir.read("tiny").num_rows == 1


def test_rows_and_frames_are_read_back_as_they_were_appended(log_dir: LogDir) -> None:
    log_dir.append("orders", [{"key": "ann", "value": "1", "headers": {"from": "a"}}, {"value": None}])
    log_dir.append("orders", pl.DataFrame({"key": ["bob", None], "value": ["2", "3"]}))
    log_dir.append("orders", pd.DataFrame({"key": ["bob", None], "value": ["2", "3"]}).astype("category"))
    log_dir.append("orders", [])
    found = log_dir.read("orders", columns=["key", "value", "headers"]).to_pylist()
    assert [each["key"] for each in found] == [b"ann", None, b"bob", None, b"bob", None]
    assert [each["value"] for each in found] == [b"1", None, b"2", b"3", b"2", b"3"]
    assert found[0]["headers"] == [{"key": "from", "value": b"a"}]


def test_reader_is_read_batch_by_batch_and_leaves_nothing_when_it_fails(log_dir: LogDir) -> None:
    schema = pa.schema([("value", pa.large_string())])
    batch = pa.record_batch([["a", "b"]], schema=schema)
    log_dir.append("orders", pa.RecordBatchReader.from_batches(schema, iter([batch, batch])))

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        log_dir.append("orders", pa.RecordBatchReader.from_batches(schema, failing()))
    assert log_dir.read("orders")["value"].to_pylist() == [b"a", b"b"] * 2


def test_reader_is_written_to_topic_that_another_process_created_anew(root_place: RootPlace, log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=1)
    other = LogDir.open(root_place)
    other.delete_topic("orders")
    other.create_topic("orders", partitions=1)
    log_dir.append("orders", pa.table({"value": ["a"]}).to_reader())
    other.refresh()
    assert other.read("orders")["value"].to_pylist() == [b"a"]
