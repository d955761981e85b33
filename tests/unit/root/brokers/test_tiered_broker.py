"""In a tiering broker's directory, earlier offsets are known as remote, and reads of them fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders.broker_disks import TIERED_STARTS, tiered

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.log import producer_replay
from pyspark_kafkalog.storage.names import parse_partition_dir

__all__ = ["tiered"]


def starts(root: Path) -> dict[str, tuple[int, int]]:
    log_dir = LogDir.open(root)
    return {
        f"{each.topic}-{each.partition}": (each.local_log_start_offset, each.log_start_offset)
        for topic in log_dir.topics()
        for each in log_dir.topic(topic).partitions
    }


def test_log_starts_match_broker(tiered: Path) -> None:
    assert starts(tiered) == TIERED_STARTS


def test_remote_offsets_follow_from_checkpoint_and_epochs_without_metadata_log(tiered: Path) -> None:
    shutil.rmtree(tiered / "__cluster_metadata-0")
    assert starts(tiered) == TIERED_STARTS


def test_stale_checkpoint_of_topic_without_tiering_makes_nothing_remote(tiered: Path) -> None:
    """After delete-records, retention deletes a segment, and the broker is killed before its next checkpoint."""
    (tiered / ".kafka_cleanshutdown").unlink()
    checkpoint = tiered / "log-start-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    checkpoint.write_text("\n".join([lines[0], str(int(lines[1]) + 1), *lines[2:], "local-only 0 5"]) + "\n")
    bases = sorted(path.name for path in (tiered / "local-only-0").glob("*.log"))
    for path in (tiered / "local-only-0").glob(f"{bases[0].partition('.')[0]}.*"):
        path.unlink()
    first = int(bases[1].partition(".")[0])
    assert starts(tiered) == {**TIERED_STARTS, "local-only-0": (first, first)}


def test_log_start_missing_from_checkpoint_is_start_of_first_epoch(tiered: Path) -> None:
    """The broker was killed before its first checkpoint of log starts."""
    (tiered / ".kafka_cleanshutdown").unlink()
    (tiered / "log-start-offset-checkpoint").write_text("0\n0\n")
    assert {name: start for name, start in starts(tiered).items() if start[1] < start[0]} == {
        name: start for name, start in TIERED_STARTS.items() if start[1] < start[0]
    }


def test_read_from_earliest_fails_unless_local_only(tiered: Path) -> None:
    log_dir = LogDir.open(tiered)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 551 of tiered-0 are in remote storage"):
        log_dir.read("tiered", partition=0)
    with pytest.raises(OffsetOutOfRangeError, match="remote storage"):
        log_dir.read("tiered")
    with pytest.raises(OffsetOutOfRangeError, match="remote storage"):
        log_dir["tiered", 0].to_arrow()
    assert log_dir.read("tiered", partition=0, local_only=True).num_rows == 138
    assert log_dir.read("tiered", local_only=True).num_rows == log_dir["tiered", 0][552:].count() + 31


def test_read_from_local_log_start_or_above_works(tiered: Path) -> None:
    log_dir = LogDir.open(tiered)
    for start in (552, 600):
        table = log_dir.read("tiered", partition=0, start_offset=start)
        assert table.column("offset").to_pylist() == list(range(start, 690))
    assert log_dir["tiered", 0][-3:].count() == 3


def test_offset_below_log_start_is_not_called_remote(tiered: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 318 of tiered-delete-records-0 is not in \[319, 690\]"):
        LogDir.open(tiered).read("tiered-delete-records", partition=0, start_offset=318)


def test_directory_is_shown_with_its_local_offsets(tiered: Path) -> None:
    log_dir = LogDir.open(tiered)
    assert "local log start" in log_dir["tiered", 0]._repr_html_()
    names = {path.name for path in tiered.iterdir() if parse_partition_dir(path.name)}
    assert names >= TIERED_STARTS.keys()


def test_segment_deleted_while_transactions_are_looked_up_is_no_error(
    tiered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running broker deletes what it tiered between a listing of its segments and their reading."""
    directory = tiered / "tiered-overlap-0"
    for path in directory.glob("*.snapshot"):
        path.unlink()
    first, second, *_ = sorted(directory.glob("*.log"))
    expected = LogDir.open(tiered).last_stable_offset("tiered-overlap", 0)

    def listed_before_deletion(of: Path) -> list[int]:
        bases = list_base_offsets(of)
        if of == directory:
            for path in directory.glob(f"{first.stem}.*"):
                path.unlink()
        return bases

    found = LogDir.open(tiered).partition("tiered-overlap", 0)
    monkeypatch.setattr(producer_replay, "list_base_offsets", listed_before_deletion)
    assert found.last_stable_offset == expected == 690
    assert LogDir.open(tiered).partition("tiered-overlap", 0).local_log_start_offset == int(second.stem)
