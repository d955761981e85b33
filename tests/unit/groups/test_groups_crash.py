"""A commit or deletion of a group is atomic when its process is killed at any call that changes the file system."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
CHANGES = ("open", "pwrite_all", "copy_range", "truncate", "rename", "link", "unlink", "mkdir", "fsync", "fsync_dir")
POINTS_MAX = 200


class Killed(BaseException):
    """The process is gone."""


class DyingFileSystem(FileSystem):
    """Makes `left` changes, then none any more."""

    left = 10**9


def _dying(name: str) -> Callable[..., Any]:
    original = getattr(FileSystem, name)

    def method(self: DyingFileSystem, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return original(self, *arguments, **named)

    return method


for _name in CHANGES:
    setattr(DyingFileSystem, _name, _dying(_name))


def offsets_of(root: Path) -> dict[TopicPartition, int]:
    return {each: committed.offset for each, committed in LogDir.open(root).group("g").fetch().items()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "2"})
    log_dir.create_topic("orders", partitions=2)
    return log_dir.path


@pytest.mark.parametrize(("change", "is_first"), [("commit", True), ("commit", False), ("delete", False)])
@pytest.mark.slow
def test_killed_change_of_group_takes_effect_whole_or_not_at_all(
    root: Path, tmp_path: Path, change: str, is_first: bool
) -> None:
    before: dict[TopicPartition, int] = {}
    if not is_first:
        before = {P0: 1, P1: 1}
        LogDir.open(root).group("g").commit(before)
    after = {P0: 2, P1: 2} if change == "commit" else {}
    act: Callable[[Group], None] = (lambda group: group.commit({P0: 2, P1: 2})) if after else Group.delete
    outcomes = set()
    for point in range(POINTS_MAX):
        copy = tmp_path / f"copy-{point}"
        shutil.copytree(root, copy)
        fs = DyingFileSystem()
        group = LogDir.open(copy, fs=fs).group("g")
        fs.left = point
        try:
            act(group)
            returned = True
        except Killed:
            returned = False
        found = offsets_of(copy)
        assert found in ([after] if returned else [before, after])
        outcomes.add((returned, found == after))
        LogDir.open(copy).group("g").commit({P0: 5})
        assert offsets_of(copy) == {**found, P0: 5}
        shutil.rmtree(copy)
        if returned:
            break
    assert outcomes >= {(False, False), (False, True), (True, True)}
