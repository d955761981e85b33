"""Readers of a copy that is just being created: at no time do they see fewer records than were committed before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.following_roots import make_follower
from fakes.stopping_filesystem import WatchedFileSystem

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.store import _CACHE
from pyspark_kafkalog.replication.events import Event
from pyspark_kafkalog.replication.follower import Follower
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.security.open import open_or_create_root, open_root

RECORDS = 40
#: The first ones stay open until the end, as those of a process that began too early.
_KEPT_OPEN = 2


class Readers:
    """Opens the root ahead of each change, and looks again with everything that was opened before."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._opened: list[LogDir] = []
        self._is_looking = False
        self.seen: list[int] = []

    def look(self) -> None:
        if self._is_looking:
            return  # a reader changes nothing, so this is its own first look
        self._is_looking = True
        _CACHE._images.clear()  # each of them is a process of its own
        try:
            opened = LogDir.open(self._place)
            self._opened = [*self._opened[:_KEPT_OPEN], opened]
        except LogDirError:
            assert not self.seen, "there was a root before"
        for each in self._opened:
            each.refresh()
            assert not each.root.is_broker_directory
            self.seen.append(_records(each))
        self._is_looking = False


def _records(log_dir: LogDir) -> int:
    """The records of all partitions, which are all that the high watermarks promise."""
    if "orders" not in log_dir.topics():
        return 0
    table = log_dir.read("orders")
    assert table.num_rows == sum(each.high_watermark for each in log_dir.topic("orders").partitions)
    return int(table.num_rows)


def test_readers_that_open_a_copy_at_any_time_see_what_is_committed(tmp_path: Path) -> None:
    leader_dir = LogDir.create(tmp_path / "leader")
    leader_dir.create_topic("orders", 2)
    for number in range(4):
        leader_dir.append("orders", pa.table({"value": ["x"] * 10}), partition=number % 2)
    readers = Readers(tmp_path / "copy")
    fs = WatchedFileSystem(readers.look)
    leader = RootLeader(open_root(tmp_path / "leader"))
    root = open_or_create_root(tmp_path / "copy", fs=fs).native()
    events: list[Event] = []
    model = make_follower(leader, tmp_path / "copy", events, is_once=True)
    Follower(leader, root, model._settings, on_event=events.append).run()
    readers.look()
    assert readers.seen == sorted(readers.seen)
    assert (readers.seen[0], readers.seen[-1]) == (0, RECORDS)


@pytest.mark.parametrize("name", ["", "__cluster_metadata-0", "dbus-1"])
def test_place_where_a_root_begins_is_no_brokers_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "copy" / name).mkdir(parents=True)
    (tmp_path / "copy" / ".lock").touch()
    with pytest.raises(LogDirError, match="is not a log directory"):
        LogDir.open(tmp_path / "copy")


def test_brokers_directory_that_became_native_is_not_read_beyond_its_commits(tmp_path: Path) -> None:
    (tmp_path / "log" / "orders-0").mkdir(parents=True)
    (tmp_path / "log" / "orders-0" / f"{0:020}.log").touch()
    opened = LogDir.open(tmp_path / "log")
    assert opened.root.is_broker_directory
    shutil.rmtree(tmp_path / "log" / "orders-0")
    LogDir.create(tmp_path / "log").create_topic("orders", 1)
    with pytest.raises(LogDirError, match="open it again"):
        opened.refresh()
