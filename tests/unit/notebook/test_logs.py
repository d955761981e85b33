"""Segments, batch headers and explained searches agree with the files, Kafka's dump and the readers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.engine_fixtures import FixturePartition, partitions

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.notebook.tables import iso_text

READABLE = [each for each in partitions() if each.topic not in ("__cluster_metadata", "unclean-badcrc")]


@pytest.mark.parametrize("where", READABLE, ids=str)
def test_segments_equal_those_in_directory(where: FixturePartition) -> None:
    log = LogDir.open(where.root)[where.topic, where.partition]
    table = log.segments()
    bases = [base for base in where.base_offsets if base <= log.end_offset]
    assert table["base_offset"].to_pylist() == bases
    assert table["size_bytes"].to_pylist() == [(where.directory / f"{base:020d}.log").stat().st_size for base in bases]
    assert table["end_offset"].to_pylist()[:-1] == bases[1:]
    batches = log.batches().to_pandas()
    for row in table.to_pandas().itertuples():
        inside = batches[batches["file"] == row.file]
        if len(inside):
            assert row.max_timestamp is None or row.max_timestamp == inside["max_timestamp"].max()
            assert row.size_bytes >= inside["size_bytes"].sum()
    assert table["state"].to_pylist()[-1] == "active"


def test_batches_equal_kafkas_dump(kafka_fixtures: Path) -> None:
    root = kafka_fixtures / "transactions"
    table = LogDir.open(root)["transactions", 0].batches()
    rows = iter(table.to_pylist())
    expected = 0
    for dump in sorted((root / "expected" / "dump" / "transactions-0").glob("*.log.txt")):
        text = dump.read_text()
        for found in re.finditer(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*? producerId: (-?\d+)", text):
            row = next(rows)
            numbers = (row["base_offset"], row["last_offset"], row["records_count"], row["producer_id"])
            assert numbers == tuple(map(int, found.groups()))
            expected += 1
    assert expected == table.num_rows
    assert set(table["kind"].to_pylist()) == {"data", "commit", "abort"}


def test_segment_states_distinguish_clean_and_dirty_parts(kafka_fixtures: Path) -> None:
    # Nothing here tells that the topic is compacted until the cleaner has been there.
    states = {
        name: LogDir.open(kafka_fixtures / name)["compacted-plain", 0].segments()["state"].to_pylist()
        for name in ("compacted-1-dirty", "compacted-2-cleaned", "compacted-3-dirty")
    }
    assert set(states["compacted-1-dirty"]) == {"closed", "active"}
    assert set(states["compacted-2-cleaned"]) == {"clean", "active"}
    assert set(states["compacted-3-dirty"]) == {"clean", "dirty", "active"}


@pytest.mark.parametrize("where", READABLE, ids=str)
@pytest.mark.slow
def test_explained_search_finds_same_record_as_reader(where: FixturePartition) -> None:
    log_dir = LogDir.open(where.root)
    log = log_dir[where.topic, where.partition]
    whole = log.to_arrow(["offset", "timestamp"])
    offsets = whole["offset"].to_pylist()
    for offset in range(log.start_offset, log.end_offset, max((log.end_offset - log.start_offset) // 20, 1)):
        seek = log.at(offset)
        following = [each for each in offsets if each >= offset]
        if seek.record is not None:
            assert seek.record.offset == following[0]
        elif offset in offsets:
            pytest.fail(f"offset {offset} is there and is not found")
        assert len(repr(seek).splitlines()) == 5
    reader = log_dir.reader(where.topic, where.partition)
    times = whole["timestamp"].cast("int64").to_pylist()
    for ms in {each + delta for each in times[::23] for delta in (-1, 0, 1)} | {0, 4_000_000_000_000}:
        found = reader.offset_for_timestamp(ms, log.start_offset, log.end_offset)
        assert log.seek(iso_text(ms)).offset == (None if found is None else found.offset)


def test_search_without_match_has_no_record(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("t", partitions=1)
    log = log_dir["t", 0]
    assert log.seek("2024-01-01").offset is None
    with pytest.raises(OffsetOutOfRangeError):
        log.at(0)
    assert (log.batches().num_rows, log.to_arrow().num_rows) == (0, 0)
    log_dir.append("t", pa.table({"value": ["a"]}))
    log.refresh()
    assert "no record" in log.seek("2100-01-01")._repr_html_()
    assert log.at(-1).record is not None


def test_search_without_indexes_scans_from_segment_start(tmp_path: Path, kafka_fixtures: Path) -> None:
    root = tmp_path / "cars"
    shutil.copytree(kafka_fixtures / "cars", root)
    for index in root.glob("cars-0/*index"):
        index.unlink()
    log = LogDir.open(root)["cars", 0]
    assert log.at(150).scan.position == 0
    assert log.at(150).record is not None
    assert log.seek("2023-11-14T22:13:40").offset == 145
    assert len(log.at(213)._repr_html_()) < 20_000
