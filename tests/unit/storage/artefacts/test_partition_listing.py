"""The names in a partition directory are put in the right kind, and stored segments have their sizes and times."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, classify, has_log
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import parse_segment_file
from pyspark_kafkalog.storage.segment.stored import StoredSegment, closed_segments, stored_segments

_ZERO = "0" * 20
_FIVE = "0" * 19 + "5"


def _listing(*names: str) -> PartitionListing:
    return classify((name, inode) for inode, name in enumerate(names, start=1))


def test_each_kind_of_file_is_recognized() -> None:
    listing = _listing(
        f"{_ZERO}.log",
        f"{_ZERO}.index",
        f"{_ZERO}.timeindex",
        f"{_FIVE}.txnindex",
        f"{_FIVE}.snapshot",
        f"{_FIVE}.log",
        f"{_FIVE}.log.cleaned",
        f"{_ZERO}.log.swap",
        f"{_ZERO}.index.swap",
        f"{_FIVE}.snapshot.deleted",
        "write-0.staged",
        "leader-epoch-checkpoint.tmp",
        "leader-epoch-checkpoint",
        "5.log",
        "other.swap",
        "other.deleted",
    )
    assert listing.base_offsets == [0, 5]
    assert listing.snapshot_offsets == [5]
    assert listing.files[".log"] == {0: 1, 5: 6}
    assert [*listing.files[".index"], *listing.files[".timeindex"], *listing.files[".txnindex"]] == [0, 0, 5]
    assert [each.name for each in listing.cleaned] == [f"{_FIVE}.log.cleaned"]
    assert [(each.offset, each.suffix) for each in listing.swaps] == [(0, ".log"), (0, ".index")]
    assert listing.log_swaps == {0}
    assert [(each.offset, each.suffix) for each in listing.deleted] == [(5, ".snapshot")]
    assert listing.staged == {"write-0.staged": 11}
    assert listing.temporary == ("leader-epoch-checkpoint.tmp",)
    assert listing.others == ("leader-epoch-checkpoint", "5.log", "other.swap", "other.deleted")


@pytest.mark.parametrize(
    ("cleaned", "decided"),
    [((), [0, 5]), ((f"{_FIVE}.index.cleaned",), [0]), ((f"{_ZERO}.log.cleaned", f"{_FIVE}.log.cleaned"), [])],
)
def test_swaps_below_every_cleaned_file_are_decided(cleaned: tuple[str, ...], decided: list[int]) -> None:
    listing = _listing(f"{_FIVE}.log.swap", f"{_ZERO}.log.swap", *cleaned)
    assert [each.offset for each in listing.decided_swaps] == decided
    assert [each.offset for each in listing.undecided_swaps] == [each for each in (0, 5) if each not in decided]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        f"{_ZERO}",
        f"{_ZERO}.LOG",
        f"{_ZERO[1:]}.log",
        f"0{_ZERO}.log",
        f"-{_ZERO[1:]}.log",
        f" {_ZERO[1:]}.log",
        "\u0663" * 20 + ".log",
        "9" * 20 + ".log",
        f"{_ZERO}.log ",
        f"{_ZERO}.checkpoint",
    ],
)
def test_name_that_is_not_a_segments_file_has_no_offset(name: str) -> None:
    assert parse_segment_file(name) is None


def test_largest_offset_in_a_name_is_that_of_int64() -> None:
    assert parse_segment_file(f"{2**63 - 1:020d}.snapshot") == (2**63 - 1, ".snapshot")
    assert parse_segment_file(f"{2**63:020d}.snapshot") is None


def test_listing_for_a_commit_omits_closed_segments_except_their_logs(tmp_path: Path) -> None:
    for offset in (0, 5, 9):
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            (tmp_path / f"{offset:020d}{suffix}").touch()
    files = PartitionListing.read(tmp_path, only_logs_below=9).files
    assert sorted(files[".log"]) == [0, 5, 9]
    assert {*files[".index"], *files[".timeindex"], *files[".txnindex"], *files[".snapshot"]} == {9}
    assert files[".log"][5] == (tmp_path / f"{5:020d}.log").stat().st_ino


def test_directory_has_a_log_only_with_a_log_file(tmp_path: Path) -> None:
    assert not has_log(tmp_path / "missing")
    assert not has_log(tmp_path)
    (tmp_path / f"{_ZERO}.index").touch()
    (tmp_path / "notes.log").touch()
    assert not has_log(tmp_path)
    (tmp_path / f"{_ZERO}.log").touch()
    assert has_log(tmp_path)


def test_closed_segments_end_at_the_next_base_offset(tmp_path: Path) -> None:
    for offset, size in ((0, 10), (5, 20), (9, 30), (12, 40)):
        (tmp_path / f"{offset:020d}.log").write_bytes(bytes(size))
        os.utime(tmp_path / f"{offset:020d}.log", ns=(offset, 1_000_000 * offset))
    (tmp_path / f"{_ZERO}.index").write_bytes(bytes(8))
    (tmp_path / f"{_FIVE}.timeindex").write_bytes(bytes(12))
    assert closed_segments(tmp_path, 9, with_index_sizes=True) == [
        StoredSegment(0, 5, 10, 8, 0, 0),
        StoredSegment(5, 9, 20, 0, 12, 5_000_000),
    ]
    state = LogState(active_base_offset=9, active_size_bytes=25, log_end_offset=11)
    assert stored_segments(tmp_path, state) == [
        StoredSegment(0, 5, 10, 0, 0, 0),
        StoredSegment(5, 9, 20, 0, 0, 5_000_000),
        StoredSegment(9, 11, 25, 0, 0, 9_000_000),
    ]


def test_partition_without_directory_has_only_its_active_segment(tmp_path: Path) -> None:
    assert closed_segments(tmp_path / "missing", 9) == []
    state = LogState(active_base_offset=0, active_size_bytes=0, log_end_offset=0)
    assert stored_segments(tmp_path / "missing", state) == [StoredSegment(0, 0, 0, 0, 0, 0)]


def test_largest_timestamp_is_the_time_indexes_last_entry(tmp_path: Path) -> None:
    segment = StoredSegment(0, 5, 0, 0, 0, 7_000_000)
    (tmp_path / f"{_ZERO}.log").touch()
    assert segment.largest_timestamp_ms(tmp_path) == -1
    (tmp_path / f"{_ZERO}.timeindex").write_bytes(struct.pack(">qiqi", 40, 1, 50, 2))
    assert segment.largest_timestamp_ms(tmp_path) == 50
    assert segment.modified_ms == 7


@pytest.mark.parametrize("content", [bytes(12), struct.pack(">qi", 50, 2)[:-1], struct.pack(">qi", 50, -2)])
def test_without_a_valid_last_entry_the_largest_timestamp_is_read_from_the_log(tmp_path: Path, content: bytes) -> None:
    segment = StoredSegment(0, 5, 100, 0, 0, 0)
    (tmp_path / f"{_ZERO}.timeindex").write_bytes(content)
    (tmp_path / f"{_ZERO}.log").touch()
    assert segment.largest_timestamp_ms(tmp_path) == -1
    (tmp_path / f"{_ZERO}.log").write_bytes(bytes(100))
    with pytest.raises(CorruptRecordError):
        segment.largest_timestamp_ms(tmp_path)
