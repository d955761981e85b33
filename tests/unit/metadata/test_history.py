"""The history of a log directory that a server and a follower write to."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.following_roots import copy_once
from builders.leader_writers import Served, append, batch
from builders.root_places import RootPlace, memory_root

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.history import HistoryEntry
from pyspark_kafkalog.report.history import write_history

SIZE = len(batch([b"0"] * 3))


@pytest.fixture
def served(root_place: RootPlace) -> LogDir:
    """A root with two commits of a server: three batches to two partitions, and one batch."""
    LogDir.open_or_create(root_place).create_topic("a", 2)
    served = Served(root_place)
    data = batch([b"0"] * 3)
    served.append(append(data), append(data), append(data, partition=1))
    served.append(append(data))
    return LogDir.open(root_place)


def written(entry: HistoryEntry) -> list[tuple[str, int, int, int, int]]:
    return [(each.topic, each.partition, each.first_offset, each.records, each.bytes) for each in entry.partitions]


def test_commits_of_a_server_have_first_offsets_records_and_bytes(served: LogDir) -> None:
    last, first = [entry for entry in served.history() if entry.operation == "append"]
    assert written(first) == [("a", 0, 0, 6, 2 * SIZE), ("a", 1, 0, 3, SIZE)]
    assert written(last) == [("a", 0, 6, 3, SIZE)]


def test_commits_of_a_follower_have_first_offsets_records_and_bytes(served: LogDir, tmp_path: Path) -> None:
    for copy in (memory_root(), tmp_path / "copy"):
        copy_once(served.path, copy)
        appended = [entry for entry in LogDir.open(copy).history() if entry.records]
        assert {entry.operation for entry in appended} == {"follow"}
        assert sum(entry.records for entry in appended) == 12
        assert sum(entry.bytes for entry in appended) == 4 * SIZE
        assert min(each.first_offset for entry in appended for each in entry.partitions) == 0


def test_records_of_a_server_are_in_the_chart_of_the_report(served: LogDir) -> None:
    series = write_history(served.root).series
    assert series is not None
    assert sum(map(sum, series.records)) == 12
