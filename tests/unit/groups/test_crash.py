"""A commit or deletion of a group is atomic when its process is killed at any change of its files, or any request."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from builders.controlled import open_log_dir
from builders.metadata_roots import forget_images
from builders.root_places import RootPlace, client_address, forget, is_object_place, memory_root, store_of
from fakes.faulty_store import Fault, FaultyStore, MemoryBucket
from fakes.stopping_filesystem import Killed, StoppingFileSystem

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.groups.guarded_group import GuardedGroup
from pyspark_kafkalog.root import object_log as object_extents
from pyspark_kafkalog.storage.names import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
POINTS_MAX: Final = 200
CRASHES: Final = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_IN_FLIGHT)
#: Whether the change returned before its process was killed, and the root that it has worked on.
Attempt: TypeAlias = tuple[bool, RootPlace]


def offsets_of(root: RootPlace) -> dict[TopicPartition, int]:
    return {each: committed.offset for each, committed in LogDir.open(root).group("g").fetch().items()}


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    log_dir = LogDir.create(root_place)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "2"})
    log_dir.create_topic("orders", partitions=2)
    return root_place


def attempts(root: RootPlace, scratch: Path, act: Callable[[Group], None]) -> Iterator[Attempt]:
    """`act` on copies of the root, killed at one point after the other; the last attempt returns."""
    if is_object_place(root):
        yield from _killed_at_requests(str(root), act)
    else:
        yield from _killed_at_changes(Path(root), scratch, act)


def _killed_at_changes(root: Path, scratch: Path, act: Callable[[Group], None]) -> Iterator[Attempt]:
    for point in range(POINTS_MAX):
        copy = scratch / f"copy-{point}"
        shutil.copytree(root, copy)
        fs = StoppingFileSystem()
        group = open_log_dir(copy, fs=fs).group("g")
        fs.stops_at = point
        returned = _returns(act, group)
        yield returned, copy
        shutil.rmtree(copy)
        if returned:
            return


def _killed_at_requests(root: str, act: Callable[[Group], None]) -> Iterator[Attempt]:
    """Each crash at the first request, at the second, and so on; what is in flight lands among later requests."""
    objects = store_of(root).bucket.objects
    left = set(CRASHES)
    for point in range(POINTS_MAX):
        for crash in sorted(left, key=CRASHES.index):
            bucket = MemoryBucket(late_calls=3)
            bucket.objects.update(objects)
            forget_images()  # of other copies, which have the same ids
            object_extents._caches.cache_clear()
            copy = memory_root(FaultyStore(bucket))
            client = FaultyStore(bucket)
            group = LogDir.open(client_address(copy, client)).group("g")
            client.faults = {len(client.calls) + point: crash}
            if returned := _returns(act, group):
                left.remove(crash)
            yield returned, copy
            forget(copy)
        if not left:
            return


def _returns(act: Callable[[Group], None], group: Group | GuardedGroup) -> bool:
    try:
        act(group)
    except Killed:
        return False
    return True


@pytest.mark.parametrize(("change", "is_first"), [("commit", True), ("commit", False), ("delete", False)])
@pytest.mark.slow
def test_killed_change_of_group_takes_effect_whole_or_not_at_all(
    root: RootPlace, tmp_path: Path, change: str, is_first: bool
) -> None:
    before: dict[TopicPartition, int] = {}
    if not is_first:
        before = {P0: 1, P1: 1}
        LogDir.open(root).group("g").commit(before)
    after = {P0: 2, P1: 2} if change == "commit" else {}
    act: Callable[[Group], None] = (lambda group: group.commit({P0: 2, P1: 2})) if after else Group.delete
    outcomes = set()
    for returned, copy in attempts(root, tmp_path, act):
        found = offsets_of(copy)
        assert found in ([after] if returned else [before, after])
        outcomes.add((returned, found == after))
        LogDir.open(copy).group("g").commit({P0: 5})
        left = offsets_of(copy)
        # What a killed process had sent may arrive before this commit, with which it then has competed.
        assert left in ([{**found, P0: 5}] if returned else [{**before, P0: 5}, {**after, P0: 5}])
    assert outcomes >= {(False, False), (False, True), (True, True)}
