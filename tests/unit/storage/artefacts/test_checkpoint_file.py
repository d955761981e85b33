"""Checkpoint files of leader epochs, offsets and topic ids: read as Kafka reads them, damage reported with its line."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, LogDirError
from pyspark_kafkalog.metadata.root_format import FORMAT_MARKER, check_marker
from pyspark_kafkalog.storage.artefacts import checkpoint_file
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    EpochEntry,
    LeaderEpochCheckpoint,
    cleaned_offsets,
    parse_checkpoint,
    read_epochs,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import read_topic_id, write_topic_id
from pyspark_kafkalog.storage.names import TopicPartition

_UUID = "UU043bJQTDCZbZ9gozZPMQ"


@pytest.mark.parametrize("content", [b"", b"0", b"0\n", b"0\n0", b"0\n0\n", b"+0\n-0\n", b"0\r\n0\r\n"])
def test_checkpoint_without_entries_reads_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    assert read_offset_checkpoint(path) == {}
    assert LeaderEpochCheckpoint.open(path).entries == ()


def test_absent_checkpoint_reads_as_empty_and_is_not_created(tmp_path: Path) -> None:
    assert read_offset_checkpoint(tmp_path / "checkpoint") == {}
    assert LeaderEpochCheckpoint.open(tmp_path / "leader-epoch-checkpoint").entries == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"0\n1\na 0 5", b"0\n1\na 0 5\n", b"0\r\n1\r\na\t0  5 \r\n", b"0\r1\ra 0 +5"])
def test_blanks_and_line_ends_that_kafka_accepts_are_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    assert read_offset_checkpoint(path) == {TopicPartition("a", 0): 5}


@pytest.mark.parametrize(
    ("content", "expected", "position"),
    [
        (b"\n", "the version on line 1", 0),
        (b"x\n", "the version on line 1", 0),
        (b" 0\n0\n", "the version on line 1", 0),
        (b"1\n0\n", "checkpoint version 0", 0),
        (b"99999999999\n0\n", "the version on line 1", 0),
        (b"0\n\n", "the number of entries on line 2", 2),
        (b"0\nmany\n", "the number of entries on line 2", 2),
        (b"0\n1\n", "1 entries", 4),
        (b"0\n2\na 0 5\n", "2 entries", 10),
        (b"0\n0\na 0 5\n", "0 entries", 10),
        (b"0\n-1\n", "-1 entries", 5),
        (b"0\n1\n\n", "on line 3", 4),
        (b"0\n1\n a 0 5\n", "on line 3", 4),
        (b"0\n1\na 0\n", "on line 3", 4),
        (b"0\n1\na 0 5 6\n", "on line 3", 4),
        (b"0\n1\n../a 0 5\n", "a topic of a valid name", 4),
        (b"0\n1\n/a/b 0 5\n", "a topic of a valid name", 4),
        (b"0\n1\na -1 5\n", "a partition of 0 or more", 4),
        (b"0\n2\na 0 5\nb zero 5\n", "on line 4", 10),
        (b"0\n1\na 2147483648 5\n", "on line 3", 4),
        (b"0\n1\na 0 9223372036854775808\n", "on line 3", 4),
        (b"0\n1\na 0 " + b"9" * 5000 + b"\n", "on line 3", 4),
        (b"0\n1\n\xff 0 5\n", "text in UTF-8", 4),
    ],
)
def test_damaged_offset_checkpoint_is_reported_with_its_line(
    tmp_path: Path, content: bytes, expected: str, position: int
) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(content)
    with pytest.raises(CorruptIndexError, match="recovery-point-offset-checkpoint") as caught:
        read_offset_checkpoint(path)
    assert expected in caught.value.expected
    assert caught.value.position == position


@pytest.mark.parametrize("length_bytes", [3, 5, 6, 7, 8, 9, 10, 14])
def test_truncated_offset_checkpoint_is_reported_as_corrupt(tmp_path: Path, length_bytes: int) -> None:
    path = tmp_path / "checkpoint"
    write_offset_checkpoint(path, {TopicPartition("a", 0): 15, TopicPartition("b", 1): 20})
    path.write_bytes(path.read_bytes()[:length_bytes])
    with pytest.raises(CorruptIndexError):
        read_offset_checkpoint(path)


def test_huge_checkpoint_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(CorruptIndexError, match="at most"):
        read_offset_checkpoint(path)


def test_offsets_are_written_in_order_of_topic_and_partition(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_offset_checkpoint(path, {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 9): 3})
    assert path.read_text() == "0\n3\na 9 3\na 10 2\nb 0 1\n"
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_reported_as_corrupt(data: bytes) -> None:
    for candidate in (data, b"0\n1\n" + data):
        with contextlib.suppress(CorruptIndexError):
            assert isinstance(parse_checkpoint(candidate, tuple, file="f"), list)


def _epochs(path: Path, *entries: tuple[int, int]) -> LeaderEpochCheckpoint:
    epochs = LeaderEpochCheckpoint.open(path / "leader-epoch-checkpoint")
    epochs.assign_many(EpochEntry(*entry) for entry in entries)
    return epochs


@pytest.mark.parametrize(
    ("assigned", "entries"),
    [
        ((6, 40), [(2, 0), (3, 10), (5, 30), (6, 40)]),
        ((6, 30), [(2, 0), (3, 10), (6, 30)]),
        ((6, 5), [(2, 0), (6, 5)]),
        ((6, 0), [(6, 0)]),
        ((4, 40), [(2, 0), (3, 10), (4, 40)]),
        ((3, 40), [(2, 0), (3, 40)]),
        ((5, 30), [(2, 0), (3, 10), (5, 30)]),
        ((5, 35), [(2, 0), (3, 10), (5, 30)]),
        ((5, 20), [(2, 0), (3, 10), (5, 20)]),
        ((5, 10), [(2, 0), (5, 10)]),
        ((0, 100), [(0, 100)]),
    ],
)
def test_assigned_epoch_drops_entries_that_contradict_it(
    tmp_path: Path, assigned: tuple[int, int], entries: list[tuple[int, int]]
) -> None:
    epochs = _epochs(tmp_path, (2, 0), (3, 10), (5, 30))
    assert epochs.assign(*assigned) == (entries != [(2, 0), (3, 10), (5, 30)])
    assert list(epochs.entries) == entries
    lines = "".join(f"{epoch} {start}\n" for epoch, start in entries)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == f"0\n{len(entries)}\n{lines}"
    assert list(LeaderEpochCheckpoint.open(tmp_path / "leader-epoch-checkpoint").entries) == entries


def test_noted_epoch_is_written_by_the_flush_or_with_the_next_change(tmp_path: Path) -> None:
    file = tmp_path / "leader-epoch-checkpoint"
    epochs = _epochs(tmp_path, (2, 0))
    epochs.note(2, 5)
    assert not epochs.is_changed
    epochs.note(3, 10)
    assert epochs.is_changed
    assert (epochs.latest, read_epochs(file)) == ((3, 10), ((2, 0),))
    epochs.flush()
    assert not epochs.is_changed
    assert read_epochs(file) == ((2, 0), (3, 10))
    epochs.note(5, 30)
    epochs.assign(6, 40)
    assert not epochs.is_changed
    assert read_epochs(file) == ((2, 0), (3, 10), (5, 30), (6, 40))


def test_negative_epochs_and_offsets_are_refused(tmp_path: Path) -> None:
    epochs = _epochs(tmp_path)
    for entry in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="negative"):
            epochs.assign(*entry)
    assert not list(tmp_path.iterdir())


def test_epoch_for_offset_is_the_last_that_starts_at_or_below_it(tmp_path: Path) -> None:
    epochs = _epochs(tmp_path, (2, 5), (3, 10), (5, 30))
    assert [epochs.epoch_for_offset(offset) for offset in (0, 4, 5, 9, 10, 29, 30, 10**12)] == [
        None,
        None,
        2,
        2,
        3,
        3,
        5,
        5,
    ]


@pytest.mark.parametrize(
    ("end_offset", "entries"),
    [
        (31, [(2, 5), (3, 10), (5, 30)]),
        (30, [(2, 5), (3, 10)]),
        (11, [(2, 5), (3, 10)]),
        (10, [(2, 5)]),
        (0, []),
        (-1, [(2, 5), (3, 10), (5, 30)]),
    ],
)
def test_truncation_from_end_drops_epochs_at_or_above_offset(
    tmp_path: Path, end_offset: int, entries: list[tuple[int, int]]
) -> None:
    epochs = _epochs(tmp_path, (2, 5), (3, 10), (5, 30))
    epochs.truncate_from_end(end_offset)
    assert list(epochs.entries) == entries
    assert list(LeaderEpochCheckpoint.open(tmp_path / "leader-epoch-checkpoint").entries) == entries


@pytest.mark.parametrize(
    ("start_offset", "entries"),
    [
        (0, [(2, 5), (3, 10), (5, 30)]),
        (5, [(2, 5), (3, 10), (5, 30)]),
        (7, [(2, 7), (3, 10), (5, 30)]),
        (10, [(3, 10), (5, 30)]),
        (29, [(3, 29), (5, 30)]),
        (100, [(5, 100)]),
    ],
)
def test_truncation_from_start_moves_first_epoch_to_offset(
    tmp_path: Path, start_offset: int, entries: list[tuple[int, int]]
) -> None:
    epochs = _epochs(tmp_path, (2, 5), (3, 10), (5, 30))
    epochs.truncate_from_start(start_offset)
    assert list(epochs.entries) == entries
    assert list(LeaderEpochCheckpoint.open(tmp_path / "leader-epoch-checkpoint").entries) == entries


def test_clear_leaves_checkpoint_without_entries(tmp_path: Path) -> None:
    epochs = _epochs(tmp_path, (2, 5))
    assert (epochs.earliest, epochs.latest) == ((2, 5), (2, 5))
    epochs.clear()
    assert (epochs.earliest, epochs.latest) == (None, None)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n0\n"


def test_stored_epoch_below_its_predecessors_replaces_them(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n3\n1 0\n5 50\n3 20\n")
    assert list(LeaderEpochCheckpoint.open(path).entries) == [(1, 0), (3, 20)]


@pytest.mark.parametrize("line", ["1", "1 2 3", "a 0", "0 a", "-1 0", "0 -1", "2147483648 0", ""])
def test_damaged_leader_epoch_checkpoint_is_reported_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(f"0\n2\n0 0\n{line}\n")
    with pytest.raises(CorruptIndexError, match="leader-epoch-checkpoint at byte 8: expected on line 4"):
        LeaderEpochCheckpoint.open(path)


@pytest.mark.parametrize("length_bytes", [3, 5, 7])
def test_truncated_leader_epoch_checkpoint_is_reported_as_corrupt(tmp_path: Path, length_bytes: int) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n2\n0 0\n1 10\n"[:length_bytes])
    with pytest.raises(CorruptIndexError):
        LeaderEpochCheckpoint.open(path)


def test_topic_id_is_written_without_trailing_newline(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    write_topic_id(path, _UUID)
    assert path.read_bytes() == b"version: 0\ntopic_id: UU043bJQTDCZbZ9gozZPMQ"
    assert read_topic_id(path) == _UUID


@pytest.mark.parametrize("content", [f"version: 3\ntopic_id: {_UUID}\nmore: 1\n", f"v:  0\r\nt:\t{_UUID}"])
def test_partition_metadata_that_kafka_accepts_is_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "partition.metadata"
    path.write_bytes(content.encode())
    assert read_topic_id(path) == _UUID


def test_directory_in_place_of_checkpoint_is_named_and_its_descriptor_closed(tmp_path: Path) -> None:
    free = os.dup(0)
    os.close(free)
    with pytest.raises(LogDirError, match=re.escape(f"{tmp_path} is a directory")):
        read_offset_checkpoint(tmp_path)
    now_free = os.dup(0)
    os.close(now_free)
    assert now_free == free


@pytest.mark.parametrize(
    ("content", "expected", "position"),
    [
        ("", "'version: <value>' on line 1", 0),
        ("version: 0", "'topic_id: <value>' on line 2", 11),
        ("version: 0\n", "'topic_id: <value>' on line 2", 11),
        ("version: 0\ntopic_id: ", "'topic_id: <value>' on line 2", 11),
        (f"version: 0\ntopic_id: {_UUID[:20]}", "a Uuid on line 2", 11),
        (f"version: 0\ntopic_id: {_UUID[:-1]}", "a Uuid on line 2", 11),
        (f"version: 0\ntopic_id: {'A' * 22}", "other than zero", 11),
        (f"version: -1\ntopic_id: {_UUID}", "a version of 0 or more", 0),
        (f"version: x\ntopic_id: {_UUID}", "a version of 0 or more", 0),
        ("\x00" * 3, "'version: <value>' on line 1", 0),
    ],
)
def test_damaged_partition_metadata_is_reported_with_its_line(
    tmp_path: Path, content: str, expected: str, position: int
) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text(content)
    with pytest.raises(DiskFormatError, match=r"partition\.metadata") as caught:
        read_topic_id(path)
    assert expected in caught.value.expected
    assert caught.value.position == position


def test_huge_partition_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    path.write_bytes(b" " * 5000)
    with pytest.raises(DiskFormatError, match="at most 4096"):
        read_topic_id(path)


def test_offsets_that_are_clean_are_read_once_until_the_checkpoint_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = TopicPartition("orders", 0)
    assert cleaned_offsets(tmp_path) == {}
    write_offset_checkpoint(tmp_path / CLEANER_OFFSET_CHECKPOINT, {partition: 5})
    assert cleaned_offsets(tmp_path) == {partition: 5}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file, "read_offset_checkpoint", pytest.fail)
        assert cleaned_offsets(tmp_path) == {partition: 5}
    write_offset_checkpoint(tmp_path / CLEANER_OFFSET_CHECKPOINT, {partition: 7})
    assert cleaned_offsets(tmp_path) == {partition: 7}
    (tmp_path / CLEANER_OFFSET_CHECKPOINT).unlink()
    assert cleaned_offsets(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("log-start-offset-checkpoint", read_offset_checkpoint),
        ("leader-epoch-checkpoint", read_epochs),
        ("partition.metadata", read_topic_id),
        (FORMAT_MARKER, lambda path: check_marker(path.parent)),
    ],
)
def test_file_of_nul_bytes_is_refused_with_their_number(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    (tmp_path / name).write_bytes(bytes(43))
    with pytest.raises(DiskFormatError, match="found 43 NUL bytes") as caught:
        read(tmp_path / name)
    assert "x00" not in str(caught.value)
