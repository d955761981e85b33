"""Tables that LogDir.append takes and those that it must refuse: columns, their types, sizes, room for indexes."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidConfigError, InvalidRecordError


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    return LogDir.create(tmp_path / "log")


@pytest.mark.parametrize("column", [pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")), pa.nulls(1)])
def test_timestamps_finer_than_a_microsecond_or_all_null_are_refused(log_dir: LogDir, column: pa.Array) -> None:
    log_dir.append("orders", pa.table({"value": ["x"], "timestamp": column}))
    (found,) = log_dir.read("orders")["timestamp"].cast(pa.int64()).to_pylist()
    assert column.null_count or found == 1_700_000_000_123_000


def test_numbers_as_timestamps_end_in_an_attribute_error(log_dir: LogDir) -> None:
    with pytest.raises(InvalidRecordError, match="of type int64"):
        log_dir.append("orders", pa.table({"value": ["x"], "timestamp": [1_700_000_000_123]}))


def test_bad_columns_are_written(log_dir: LogDir) -> None:
    with pytest.raises(InvalidRecordError, match="value"):
        log_dir.append("orders", pa.table({"key": [b"a"]}))
    with pytest.raises(InvalidRecordError, match="colour"):
        log_dir.append("orders", pa.table({"value": [b"a"], "colour": [1]}))
    log_dir.create_topic("compacted", partitions=1, configs={"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError, match="key"):
        log_dir.append("compacted", pa.table({"value": [b"a"]}))
    assert not list(log_dir.path.rglob("*.staged"))


def test_record_over_the_limit_is_written(log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=1, configs={"max.message.bytes": "1000"})
    with pytest.raises(InvalidRecordError, match="1000"):
        log_dir.append("orders", pa.table({"value": [os.urandom(2000)]}))
    log_dir.append("orders", pa.table({"value": [b"x" * 2000]}), compression_type="zstd")
    assert log_dir.read("orders")["value"].to_pylist() == [b"x" * 2000]


@pytest.mark.parametrize(("index_bytes", "entry"), [("4", r"\.index takes 8"), ("8", r"\.timeindex takes 12")])
def test_indexes_without_room_for_an_entry_end_in_an_error_that_names_no_setting(
    log_dir: LogDir, index_bytes: str, entry: str
) -> None:
    log_dir.create_topic("tiny", configs={"segment.index.bytes": index_bytes})
    with pytest.raises(InvalidConfigError, match=rf"segment\.index\.bytes is {index_bytes}, .*{entry} bytes"):
        log_dir.append("tiny", pa.table({"value": ["a"]}))
    log_dir.alter_topic("tiny", delete=["segment.index.bytes"])
    log_dir.append("tiny", pa.table({"value": ["a"]}))
    assert log_dir.read("tiny").num_rows == 1
