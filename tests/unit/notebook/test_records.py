"""Slices of logs hold the records that LogDir.read gives for the same offsets, for every partition of every fixture."""

from __future__ import annotations

import datetime
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders.engine_fixtures import FixturePartition, partitions
from builders.root_places import RootPlace

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidOptionError,
    InvalidRecordError,
    MissingPackageError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from pyspark_kafkalog.notebook import tables
from pyspark_kafkalog.notebook.tables import iso_text
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA

#: Its tail is damaged, so it is an error to read that.
DAMAGED = "unclean-badcrc"
READABLE = [each for each in partitions() if each.topic not in ("__cluster_metadata", DAMAGED)]
UTC = datetime.timezone.utc


@pytest.fixture
def own(root_place: RootPlace) -> LogDir:
    """A log directory of ours: topic t with one partition, 40 records, one a second."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("t", partitions=1)
    times = pa.array([1_700_000_000_000 + 1000 * number for number in range(40)], pa.timestamp("ms", "UTC"))
    values = [f"v{number}" for number in range(40)]
    log_dir.append("t", pa.table({"key": [f"k{n % 7}" for n in range(40)], "value": values, "timestamp": times}))
    log_dir.refresh()
    return log_dir


@pytest.mark.parametrize("where", READABLE, ids=str)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_slice_equals_read(where: FixturePartition, isolation: str) -> None:
    log_dir = LogDir.open(where.root)
    log = log_dir[where.topic, where.partition]
    if isolation == "read_committed":
        log = log.committed()
    whole = log_dir.read(where.topic, partition=where.partition, isolation=isolation)
    assert log.to_arrow().equals(whole)
    assert len(log) == whole.num_rows
    assert pa.table(log).equals(whole)
    assert pa.Table.from_batches(log.to_batches(), whole.schema).equals(whole)
    rng = random.Random(str(where))
    low, high = log.start_offset, log.end_offset
    offsets = whole["offset"].to_pylist()
    for _ in range(6):
        start, end = sorted(rng.choices(range(low, high + 1), k=2))
        part = log[start:end]
        assert part.to_arrow()["offset"].to_pylist() == [each for each in offsets if start <= each < end]
        assert (part.start_offset, part.end_offset) == (start, end)
        assert len(part) == part.to_arrow().num_rows
        assert bool(part) == (start < end)


@pytest.mark.parametrize("where", READABLE, ids=str)
def test_time_slice_spans_first_records_at_or_after_its_bounds(where: FixturePartition) -> None:
    log_dir = LogDir.open(where.root)
    log = log_dir[where.topic, where.partition]
    reader = log_dir.reader(where.topic, where.partition)
    whole = log.to_arrow()
    times = whole["timestamp"].cast("int64").to_pylist()
    for start_ms, end_ms in zip(times[::37], times[5::37], strict=False):
        start, end = (
            datetime.datetime.fromtimestamp(0, UTC) + datetime.timedelta(milliseconds=each)
            for each in (start_ms, end_ms)
        )
        found = log[start:end]
        first = reader.offset_for_timestamp(start_ms, log.start_offset, log.end_offset)
        after = reader.offset_for_timestamp(end_ms, log.start_offset, log.end_offset)
        assert first is not None
        assert after is not None
        assert (found.start_offset, found.end_offset) == (first.offset, max(first.offset, after.offset))


def test_time_slice_with_out_of_order_timestamps_is_as_documented(own: LogDir) -> None:
    own.create_topic("late", partitions=1)
    seconds = [10, 11, 30, 12, 31, 13, 40]
    times = pa.array([1_700_000_000_000 + 1000 * each for each in seconds], pa.timestamp("ms", "UTC"))
    own.append("late", pa.table({"value": [str(each) for each in seconds], "timestamp": times}))
    log = own.root.native() and own["late", 0].refresh()
    start, end = (iso_text(1_700_000_000_000 + 1000 * each) for each in (11, 31))
    # From the first at or after :11 up to the first at or after :31: 30 and 12 lie between, 13 comes too late.
    assert log[start:end].to_arrow(["value"], text=True)["value"].to_pylist() == ["11", "30", "12"]
    assert log[:start].to_arrow(["value"], text=True)["value"].to_pylist() == ["10"]


def test_negative_offsets_count_from_end(own: LogDir) -> None:
    log = own["t", 0]
    assert log[-10:].to_arrow()["offset"].to_pylist() == list(range(30, 40))
    assert log[-10:-5].to_arrow()["offset"].to_pylist() == list(range(30, 35))
    assert log[10:20][-3:].to_arrow()["offset"].to_pylist() == [17, 18, 19]
    assert log[-1]["value"] == b"v39"
    assert log[10:20][-1]["offset"] == 19


def test_numpy_offsets_are_accepted_and_bool_is_refused(own: LogDir) -> None:
    log, offset = own["t", np.int64(0)], np.int64(7)  # type: ignore[index]
    assert log[offset]["offset"] == 7
    assert log[offset : np.int32(9)].to_arrow()["offset"].to_pylist() == [7, 8]
    assert log.at(offset).offset == 7
    with pytest.raises(InvalidOptionError):
        log[True:]


def test_slice_beyond_log_is_cut(own: LogDir) -> None:
    log = own["t", 0]
    assert (log[-1000:5].start_offset, log[35:1000].end_offset) == (0, 40)
    assert not log[50:60]
    assert not log[20:10]
    assert len(log[10:20][:15]) == 5
    assert len(log[10:20][0:100]) == 10


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        (slice(35, 1000), "PartitionLog(t-0, offsets [35, 40), 1000 is past the end)"),
        (slice(50, None), "PartitionLog(t-0, offsets [40, 40), 50 is past the end)"),
        (slice(35, 40), "PartitionLog(t-0, offsets [35, 40))"),
        (slice("2100-01-01", None), "PartitionLog(t-0, offsets [40, 40))"),
    ],
)
def test_display_of_slice_past_the_end_says_so(own: LogDir, bounds: slice, shown: str) -> None:
    log = own["t", 0][bounds]
    assert repr(log) == shown
    assert ("past the end" in log._repr_html_()) == ("past the end" in shown)


def test_damaged_record_fails_read_and_slice_before_it_works(kafka_fixtures: Path) -> None:
    log = LogDir.open(kafka_fixtures / "unclean")[DAMAGED, 0]
    for look in (log.to_arrow, log.count, log.batches):
        with pytest.raises(CorruptRecordError):
            look()
    assert len(log[:340]) == 340


def test_invalid_index_is_refused(own: LogDir) -> None:
    log = own["t", 0]
    with pytest.raises(InvalidOptionError, match="step"):
        log[::2]
    with pytest.raises(InvalidOptionError, match="no point in time"):
        log["yesterday":]
    with pytest.raises(InvalidOptionError, match="neither an offset nor a point"):
        log[1.5:]  # type: ignore[misc]
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 40 of t-0 is not in \[0, 40\)"):
        log[40]
    with pytest.raises(OffsetOutOfRangeError):
        log[-41]
    with pytest.raises(UnknownTopicError, match="no partition 1"):
        own["t", 1]
    with pytest.raises(UnknownTopicError, match="existing topics: t"):
        own["u"]
    with pytest.raises(InvalidOptionError, match="sliced by points in time"):
        own["t"][10:20]
    with pytest.raises(InvalidOptionError, match="expected one of key"):
        log.to_arrow(["keys"])


def test_offset_in_gap_has_no_record() -> None:
    log_dir = LogDir.open(READABLE[0].root.parent / "compacted-2-cleaned")
    log = log_dir["compacted-plain", 0]
    offsets = log.to_arrow(["offset"])["offset"].to_pylist()
    gap = next(offset for offset in range(log.start_offset, log.end_offset) if offset not in offsets)
    with pytest.raises(OffsetOutOfRangeError, match=f"offset {gap} .* has no record"):
        log[gap]
    assert len(log[gap : gap + 1]) == 0
    assert log[offsets[3]]["offset"] == offsets[3]
    assert len(log) == len(offsets) < log.end_offset - log.start_offset
    assert [record["offset"] for record in log] == offsets


def test_time_without_zone_is_utc(own: LogDir) -> None:
    log = own["t", 0]
    assert log["2023-11-14T22:13:30":].start_offset == 10
    assert log["2023-11-14 22:13:30Z":].start_offset == 10
    assert log["2023-11-14T23:13:30+01:00":].start_offset == 10
    assert log[datetime.datetime(2023, 11, 14, 22, 13, 30) :].start_offset == 10
    assert log[datetime.datetime(2023, 11, 14, 22, 13, 30, 1) :].start_offset == 11  # a part of a ms later
    assert log["2023-11-14":].start_offset == 0
    assert log[: datetime.date(2023, 11, 14)].end_offset == 0
    assert not log["2023-11-15":]
    assert log["2023-11-14T22:13:30":20].to_arrow().num_rows == 10
    assert log.offset_at("2023-11-15") is None
    assert log.offset_at("2023-11-14T22:13:29.001") == 10


def test_topic_slices_all_its_partitions(own: LogDir) -> None:
    own.create_topic("two", partitions=2)
    for partition in (0, 1):
        times = pa.array([1_700_000_000_000 + 1000 * number for number in range(10)], pa.timestamp("ms", "UTC"))
        own.append(
            "two", pa.table({"value": [f"{partition} {n}" for n in range(10)], "timestamp": times}), partition=partition
        )
    topic = own["two"].refresh()
    assert (len(topic), topic.count(), topic.partitions) == (2, 20, (0, 1))
    late = topic["2023-11-14T22:13:27":]
    assert late.to_arrow(["value"], text=True)["value"].to_pylist() == ["0 7", "0 8", "0 9", "1 7", "1 8", "1 9"]
    assert pa.table(topic).equals(own.read("two"))


def test_log_grows_with_refresh_and_slice_does_not(own: LogDir) -> None:
    log, part = own["t", 0], own["t", 0][30:]
    LogDir.open(own.path).append("t", pa.table({"value": ["more"]}))
    assert len(log) == 40
    log.refresh()
    assert (len(log), len(part)) == (41, 10)


def test_log_dir_is_container_of_topics(own: LogDir, tmp_path: Path) -> None:
    assert "t" in own
    assert "u" not in own
    assert list(own) == ["t"]
    assert len(own) == 1
    empty = LogDir.create(tmp_path / "empty")
    assert (len(empty), bool(empty)) == (0, True)


def test_topic_iterates_over_its_partitions_and_log_over_its_records_as_they_are_indexed(own: LogDir) -> None:
    own.create_topic("two", partitions=2)
    own.append("two", pa.table({"value": ["a", "b"]}), partition=1)
    topic = own["two"].refresh()
    assert [repr(log) for log in topic] == [repr(topic[number]) for number in range(len(topic))]
    log = own["t", 0][5:15]
    assert list(log) == [log[offset] for offset in range(5, 15)]
    assert len(list(log)) == len(log)


def test_neither_topic_nor_log_is_reversed_by_position(own: LogDir) -> None:
    for each in (own["t"], own["t", 0]):
        with pytest.raises(TypeError, match="not reversible"):
            reversed(each)
    assert own._ipython_key_completions_() == ["t"]


def test_frames_hold_every_row(own: LogDir) -> None:
    log = own["t", 0][5:15]
    expected = [f"v{number}" for number in range(5, 15)]
    assert log.to_pandas(text=True)["value"].tolist() == expected
    assert log.to_polars(text=True)["value"].to_list() == expected
    relation = log.to_duckdb(["key", "value"], text=True)
    assert [row[1] for row in relation.fetchall()] == expected
    assert list(own["t"].to_pandas(["offset"]).columns) == ["offset"]


def test_missing_package_is_named(own: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(package: str) -> None:
        raise ImportError(package)

    monkeypatch.setattr(tables.importlib, "import_module", fail)
    for name in ("pandas", "polars", "duckdb"):
        with pytest.raises(MissingPackageError, match=f"pip install {name}"):
            getattr(own["t", 0], f"to_{name}")()


def test_text_replaces_invalid_bytes(own: LogDir) -> None:
    own.append("bytes", pa.table({"key": [b"\xff\x00", None], "value": [b"ok", b"\xc3"]}), partition=0)
    table = own["bytes"].refresh().to_arrow(["key", "value"], text=True)
    assert table.to_pylist() == [{"key": "\ufffd\x00", "value": "ok"}, {"key": None, "value": "\ufffd"}]


FAR_TIMES_MS = [0, 1, 1_700_000_000_000, 1_700_000_000_000_000_000, (1 << 63) - 1]


@pytest.fixture
def far(root_place: RootPlace) -> LogDir:
    """A log directory of ours whose records have FAR_TIMES_MS, as of producers that count nanoseconds."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("t", partitions=1, configs={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    times = pa.array(FAR_TIMES_MS, pa.timestamp("ms", "UTC"))
    log_dir.append("t", pa.table({"value": [str(each) for each in FAR_TIMES_MS], "timestamp": times}))
    log_dir.refresh()
    return log_dir


def test_timestamps_of_64_bits_are_read_as_the_milliseconds_that_they_are(far: LogDir) -> None:
    log = far["t", 0]
    for found in (far.read("t"), log.to_arrow(), pa.table(log), pa.Table.from_batches(log.to_batches())):
        assert found["timestamp"].cast(pa.int64()).to_pylist() == FAR_TIMES_MS
    assert [log[offset]["timestamp"] for offset in (3, 4)] == FAR_TIMES_MS[3:]
    assert list(log) == [log[offset] for offset in range(5)]
    assert log[2]["timestamp"] == datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert str(FAR_TIMES_MS[3]) in str(log.seek("2024-01-01"))
    assert log.offset_at("2024-01-01") == 3
    for drawing in (log, far["t"], far, log.seek("2024-01-01")):
        assert drawing._repr_html_()  # type: ignore[attr-defined]


def test_timestamp_beyond_microseconds_is_an_error_with_its_offset_and_a_schema_that_helps(far: LogDir) -> None:
    advice = r"the record at offset 3 of t-0 has timestamp 1700000000000000000 ms.*timestamp BIGINT.*leave out"
    with pytest.raises(InvalidRecordError, match=advice):
        list(far.reader("t", 0).read(0, 5, schema=KAFKA_SCHEMA.empty_table().select(["value", "timestamp"]).schema))
    numbers = pa.schema([pa.field("timestamp", pa.int64())])
    read = pa.Table.from_batches(far.reader("t", 0).read(0, 5, schema=numbers))
    assert read["timestamp"].to_pylist() == FAR_TIMES_MS
    assert far.read("t", columns=["value"]).num_rows == len(FAR_TIMES_MS)
