"""Small files of real brokers: read as Kafka's dump tool prints them, and written again byte for byte."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders.indexes import add_entry
from repository import FIXTURES

from pyspark_kafkalog.config.properties_file import parse_properties
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LeaderEpochCheckpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.artefacts.marker_files import (
    read_meta_properties,
    read_topic_id,
    was_clean_shutdown,
    write_meta_properties,
    write_topic_id,
)
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry, read_snapshot, write_snapshot
from pyspark_kafkalog.storage.artefacts.transaction_index import TransactionIndex
from pyspark_kafkalog.storage.names import TopicPartition

_NUMBER = r"(-?\d+)"


def _files(pattern: str) -> list[Path]:
    found = sorted(FIXTURES.glob(f"*/{pattern}"))
    assert found, f"no fixture has {pattern}"
    return found


def _file_id(path: Path) -> str:
    return str(path.relative_to(FIXTURES))


def _dump_lines(path: Path, *args: str) -> list[str] | None:
    """What the dump tool printed for the file, its first line left out; None when the fixtures do not have it."""
    fixture = FIXTURES / path.relative_to(FIXTURES).parts[0]
    manifest = json.loads((fixture / "expected" / "manifest.json").read_text())
    for run in manifest["dumps"].get(str(path.relative_to(fixture)), ()):
        if run["args"] == list(args):
            return (fixture / run["stdout"]).read_text().splitlines()
    return None


def _numbers(lines: list[str], pattern: str) -> list[tuple[int, ...]]:
    matches = (re.fullmatch(pattern, line) for line in lines)
    return [tuple(int(number) for number in match.groups()) for match in matches if match]


def _sanity(path: Path) -> str | None:
    """The sanity check's lines about this very file."""
    lines = _dump_lines(path, "--index-sanity-check") or []
    name = path.name
    about = [line for line in lines if name in line and not line.startswith("Dumping")]
    return about[0] if about else None


def _base_offset(path: Path) -> int:
    return int(path.name[:20])


@pytest.mark.parametrize("path", _files("*/*.index"), ids=_file_id)
def test_offset_index_reads_as_dump_tool_prints_and_is_rewritten_equal(path: Path, tmp_path: Path) -> None:
    base_offset = _base_offset(path)
    with OffsetIndex.open(path, base_offset, max_index_bytes=1024) as index:
        entries = [tuple(entry) for entry in index.entries_array().tolist()]
        lines = _dump_lines(path)
        if lines is not None:
            printed = _numbers(lines, rf"offset: {_NUMBER} position: {_NUMBER}")
            assert (entries == [] and printed in ([], [(base_offset, 0)])) or entries == printed
        length_bytes = index.length_bytes
        assert "EXCEPTION" not in (_sanity(path) or "")
        assert all(position < path.with_suffix(".log").stat().st_size for _, position in entries)
    again = tmp_path / path.name
    with OffsetIndex.open(again, base_offset, max_index_bytes=max(length_bytes, 8), writable=True) as copy:
        for offset, position in entries:
            add_entry(copy, offset, position)
        copy.resize(length_bytes)
        copy.close_handler()
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", _files("*/*.timeindex"), ids=_file_id)
def test_time_index_reads_as_dump_tool_prints_and_is_rewritten_equal(path: Path, tmp_path: Path) -> None:
    base_offset = _base_offset(path)
    with TimeIndex.open(path, base_offset, max_index_bytes=1024) as index:
        entries = [tuple(entry) for entry in index.entries_array().tolist()]
        lines = _dump_lines(path)
        if lines is not None:
            printed = _numbers(lines, rf"timestamp: {_NUMBER} offset: {_NUMBER}")
            assert (entries == [] and printed in ([], [(0, base_offset)])) or entries == printed
        length_bytes = index.length_bytes
        if length_bytes % 12:
            return  # a damaged file: there is nothing to write again
    again = tmp_path / path.name
    with TimeIndex.open(again, base_offset, max_index_bytes=max(length_bytes, 12), writable=True) as copy:
        for timestamp_ms, offset in entries:
            copy.maybe_append(timestamp_ms, offset, skip_full_check=True)
        copy.resize(length_bytes)
        copy.close_handler()
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", _files("*/*.txnindex"), ids=_file_id)
def test_transaction_index_reads_as_dump_tool_prints_and_is_rewritten_equal(path: Path, tmp_path: Path) -> None:
    with TransactionIndex.open(path, _base_offset(path)) as index:
        entries = list(index)
        index.sanity_check()
    printed = _numbers(
        _dump_lines(path) or [],
        rf"version: 0 producerId: {_NUMBER} firstOffset: {_NUMBER} lastOffset: {_NUMBER} lastStableOffset: {_NUMBER}",
    )
    fields = [(one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in entries]
    assert fields == printed
    again = tmp_path / path.name
    with TransactionIndex.open(again, _base_offset(path), writable=True) as copy:
        for entry in entries:
            copy.append(entry)
    assert again.read_bytes() == path.read_bytes()


def _snapshot_line(entry: ProducerStateEntry) -> str:
    first_offset = entry.current_txn_first_offset
    txn = "OptionalLong.empty" if first_offset < 0 else f"OptionalLong[{first_offset}]"
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
        f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: {txn} "
        f"lastTimestamp: {entry.last_timestamp_ms} "
    )
    if entry.last_offset < 0:
        return line
    return (
        f"{line}firstSequence: {entry.last_sequence - entry.offset_delta} lastSequence: {entry.last_sequence} "
        f"lastOffset: {entry.last_offset} offsetDelta: {entry.offset_delta} timestamp: {entry.last_timestamp_ms}"
    )


@pytest.mark.parametrize("path", _files("*/*.snapshot"), ids=_file_id)
def test_producer_snapshot_reads_as_dump_tool_prints_and_is_rewritten_equal(path: Path, tmp_path: Path) -> None:
    entries = read_snapshot(path)
    lines = _dump_lines(path)
    if lines is not None:
        assert [_snapshot_line(entry) for entry in entries] == lines[1:]
    again = tmp_path / path.name
    write_snapshot(again, entries)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", _files("*/leader-epoch-checkpoint"), ids=_file_id)
def test_leader_epoch_checkpoint_is_rewritten_byte_for_byte(path: Path, tmp_path: Path) -> None:
    entries = LeaderEpochCheckpoint.open(path).entries
    again = tmp_path / path.name
    if LeaderEpochCheckpoint.open(again).assign_many(entries):
        assert again.read_bytes() == path.read_bytes()
    else:
        assert path.read_bytes() in (b"", b"0\n0\n")


@pytest.mark.parametrize("path", _files("*-offset-checkpoint"), ids=_file_id)
def test_offset_checkpoint_names_existing_partitions_and_is_rewritten_equal(path: Path, tmp_path: Path) -> None:
    offsets = read_offset_checkpoint(path)
    for where in offsets:
        assert (path.parent / str(where)).is_dir()
    again = tmp_path / path.name
    write_offset_checkpoint(again, offsets)
    assert sorted(again.read_text().splitlines()) == sorted((path.read_text() or "0\n0\n").splitlines())


@pytest.mark.parametrize("manifest", _files("expected/manifest.json"), ids=_file_id)
def test_high_watermark_after_clean_shutdown_is_latest_offset_of_broker(manifest: Path) -> None:
    root = manifest.parents[1]
    if not was_clean_shutdown(root):
        return
    offsets = read_offset_checkpoint(root / "replication-offset-checkpoint")
    for topic, partitions in json.loads(manifest.read_text()).get("offsets", {}).items():
        for one in partitions:
            where = TopicPartition(topic, one["partition"])
            if where in offsets:
                assert offsets[where] == one["latest"]


@pytest.mark.parametrize("path", _files("*/partition.metadata"), ids=_file_id)
def test_partition_metadata_is_rewritten_byte_for_byte(path: Path, tmp_path: Path) -> None:
    topic_id = read_topic_id(path)
    write_topic_id(tmp_path / path.name, topic_id)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", _files("meta.properties"), ids=_file_id)
def test_meta_properties_are_rewritten_with_equal_content(path: Path, tmp_path: Path) -> None:
    properties = read_meta_properties(path)
    assert (properties.version, properties.node_id) == (1, 1)
    again = tmp_path / path.name
    write_meta_properties(again, properties)
    assert parse_properties(again.read_bytes(), file="") == parse_properties(path.read_bytes(), file="")
    comments = [
        re.sub(r"\d+", "0", re.sub("[A-Z][a-z]{2}", "Xyz", line)) for line in again.read_text().splitlines()[:2]
    ]
    assert comments == ["#", "#Xyz Xyz 0 0:0:0 UTC 0"]
