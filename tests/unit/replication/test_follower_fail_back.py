"""Promotion and fail-back, and following with maintenance at both sides, of all combinations of roots."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from builders.following_roots import batches_of, check_equal, copy_once, ends, following, has_all
from builders.root_places import RootPlace, forget, memory_root, store_of
from patience import wait_until

from pyspark_kafkalog.errors import FollowingEndedError, FollowingRootError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.native import promote
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

ORDERS = TopicPartition("orders", 0)


def rows(first: int, count: int, *, keys: int = 50) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"key": [f"key {each % keys}" for each in numbers], "value": [f"value {each}" for each in numbers]})


@pytest.fixture(params=["file", pytest.param("object", marks=pytest.mark.full)])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RootPlace]:
    """Where the follower's root is."""
    if request.param == "file":
        yield tmp_path / "copy"
        return
    place = memory_root()
    yield place
    forget(place)


def cut_files(place: RootPlace) -> dict[str, bytes]:
    """The files of cut records, by name."""
    if isinstance(place, Path):
        return {each.name: each.read_bytes() for each in place.glob("diverged-*.log")}
    store = store_of(place)
    return {key: stored.body for key, stored in store.bucket.objects.items() if key.startswith("diverged/")}


def test_former_leader_follows_the_promoted_root_and_is_cut_back(root_place: RootPlace, copy: RootPlace) -> None:
    former = LogDir.create(root_place)
    former.create_topic("orders", 2)
    for number in range(3):
        former.append("orders", rows(10 * number, 10), partition=0)
    copy_once(root_place, copy)
    with pytest.raises(FollowingRootError):
        LogDir.open(copy).append("orders", rows(0, 1), partition=0)
    for number in range(2):
        former.append("orders", rows(100 + 10 * number, 10), partition=0)
    lost = b"".join(batches_of(former, ORDERS)[3:])

    promoted = LogDir.open(copy)
    promote(promoted.root.native())
    promoted.refresh()
    promoted.append("orders", rows(500, 7), partition=0)
    promoted.append("orders", rows(600, 7), partition=1)

    stopped = copy_once(copy, root_place)
    assert [(each.first_offset, each.end_offset) for each in stopped if each.kind is EventKind.DIVERGED] == [(30, 50)]
    assert ends(former)[ORDERS] == 50
    events = copy_once(copy, root_place, may_cut=True)
    cuts = [each for each in events if each.kind is EventKind.CUT]
    assert [(each.topic, each.partition, each.first_offset, each.end_offset) for each in cuts] == [
        ("orders", 0, 30, 50)
    ]
    check_equal(copy, root_place)
    assert list(cut_files(root_place).values()) == [lost]


@pytest.mark.full
def test_running_follower_ends_when_its_root_is_promoted(root_place: RootPlace, copy: RootPlace) -> None:
    leader_dir = LogDir.create(root_place)
    leader_dir.append("orders", rows(0, 10), partition=0)

    def promote_while_it_follows() -> None:
        with following(RootLeader(open_root(root_place)), copy) as running:
            wait_until(lambda: has_all(leader_dir, copy))
            promote(LogDir.open(copy).root.native())
            leader_dir.append("orders", rows(10, 10), partition=0)
            wait_until(lambda: running.error is not None)

    with pytest.raises(FollowingEndedError):
        promote_while_it_follows()
    assert ends(LogDir.open(copy))[ORDERS] == 10


@pytest.mark.full
def test_follower_beside_maintenance_at_both_sides_has_all_records(root_place: RootPlace, copy: RootPlace) -> None:
    leader_dir = LogDir.create(root_place)
    leader_dir.create_topic("orders", 2, {"segment.bytes": "1048576"})
    leader_dir.create_topic("table", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    ended = threading.Event()
    codes: list[int] = []

    def maintain() -> None:
        while not ended.is_set():
            for place in (root_place, copy):
                for command in ("merge-segments", "log-cleaner", "retention"):
                    codes.append(main([command, "--path", str(place), "--local"]))

    thread = threading.Thread(target=maintain)
    with following(RootLeader(open_root(root_place)), copy) as running:
        leader_dir.append("orders", rows(0, 10), partition=0)
        wait_until(lambda: has_all(leader_dir, copy))
        thread.start()
        for number in range(60):
            leader_dir.append("orders", rows(1000 * number, 1000), partition=number % 2)
            leader_dir.append("table", rows(100 * number, 100, keys=20), partition=0)
        wait_until(lambda: has_all(leader_dir, copy))
        ended.set()
        thread.join()
    assert set(codes) == {0}
    assert not {EventKind.CUT, EventKind.GAP, EventKind.DIVERGED, EventKind.PARTITION_STOPPED} & running.kinds()
    ours, theirs = LogDir.open(copy), LogDir.open(root_place)
    for partition in range(2):
        name = TopicPartition("orders", partition)
        assert batches_of(ours, name) == batches_of(theirs, name)
    latest = [
        dict(zip(*(table[name].to_pylist() for name in ("key", "value")), strict=True))
        for table in (each.read("table") for each in (ours, theirs))
    ]
    assert latest[0] == latest[1]
    assert len(latest[0]) == 20
