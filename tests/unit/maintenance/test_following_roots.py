"""Maintenance goes on in a root that follows: verify, merges, retention, clean-up, export; readers see the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.followers import FollowerRoot, LeaderRoot, StoredBatch
from builders.leader_writers import T0
from builders.object_roots import StoredRoot

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.export.export import export_to
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.verify.findings import Severity
from pyspark_kafkalog.maintenance.verify.verify import verify, verify_root
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.object_root import ObjectRoot

NOW_MS = T0 + 60_000
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "300", "retention.ms": "-1"}


@pytest.fixture(params=["files", "objects"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FollowerRoot, list[StoredBatch]]:
    """A root that has copied a compacted leader: from inside of a batch on, with gaps, three epochs, a truncation."""
    rng = random.Random(7)
    leader = LeaderRoot(tmp_path / "leader", rng)
    for _ in range(3):
        leader.write(40)
        leader.elect()
    batches = [each for each in leader.batches() if rng.random() > 0.1 or each.data[22] & 0x20]
    first = next(at for at, each in enumerate(batches) if each.next_offset - each.base_offset > 1 and at > 5)
    batches = batches[first:]
    if request.param == "files":
        follower = FollowerRoot.create(tmp_path / "follower", configs=SMALL)
    else:
        stored = StoredRoot(SMALL)
        stored.place.clock.now_ms = NOW_MS
        follower = FollowerRoot(Path("unused"), root=stored.opened(), topic="orders")
    follower.make(follower.start_at(batches[0].base_offset + 1))
    for at in range(0, 60, 6):
        follower.make(follower.append(batches[at : at + 6]))
    follower.make(follower.truncation(batches[40].base_offset))
    follower.make(follower.append(batches[40:70]))
    return follower, batches[:70]


def contents(root: NativeRoot, topic: str) -> tuple[list[int], list[int]]:
    """The offsets of all records, and of those that are committed."""
    log_dir = LogDir(root)
    log_dir.refresh()
    return (
        log_dir.read(topic)["offset"].to_pylist(),
        log_dir.read(topic, isolation="read_committed")["offset"].to_pylist(),
    )


def merged(root: NativeRoot) -> None:
    assert [each.error for each in merge_segments(root, now_ms=NOW_MS)] == [None] * len(root.partitions())


def retained(root: NativeRoot) -> None:
    assert all(each.error is None for each in apply_retention(root, now_ms=NOW_MS))


def cleaned_up(root: NativeRoot) -> None:
    assert isinstance(root, (FileRoot, ObjectRoot))
    clean_up_root(root, now_ms=NOW_MS)


@pytest.mark.parametrize("job", [merged, retained, cleaned_up])
def test_jobs_leave_the_records_as_they_are_and_the_follower_goes_on(
    followed: tuple[FollowerRoot, list[StoredBatch]], job: Callable[[NativeRoot], None]
) -> None:
    follower, batches = followed
    before = contents(follower.root, follower.topic)
    assert before[0][0] == batches[0].base_offset + 1
    assert before[1]
    job(follower.root)
    assert contents(follower.root, follower.topic) == before
    (state,) = follower.make(follower.truncation(batches[50].base_offset))
    (state,) = follower.make(follower.append(batches[50:]))
    assert state.log_end_offset == batches[-1].next_offset
    assert contents(follower.root, follower.topic) == before
    assert_sound(follower.root)


def assert_sound(root: NativeRoot) -> None:
    root.refresh()
    found = [*verify_root(root), *verify(root, are_records_checked=True).findings]
    assert [str(each) for each in found if each.severity is not Severity.INFO] == []


def test_a_root_that_follows_is_sound_and_its_copy_has_all_records(
    followed: tuple[FollowerRoot, list[StoredBatch]], tmp_path: Path
) -> None:
    follower, _ = followed
    assert_sound(follower.root)
    assert isinstance(follower.root, (FileRoot, ObjectRoot))
    export_to(follower.root, tmp_path / "copy")
    copy = LogDir.open(tmp_path / "copy")
    assert contents(copy.root.native(), follower.topic) == contents(follower.root, follower.topic)
