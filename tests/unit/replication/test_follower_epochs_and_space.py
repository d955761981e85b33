"""A follower whose leader begins an epoch behind what it shows, and one that begins on a full disk."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders.followers import TOPIC, LeaderRoot
from builders.following_roots import copy_once, following, has_all, has_offsets
from patience import wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication import follower as follower_module
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.replication.leader import FetchPosition, LeaderAnswer
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.native import NativeRoot, begin_following
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.names import TopicPartition

ORDERS = TopicPartition(TOPIC, 0)


class LaggingLeader(RootLeader):
    """A leader whose high watermark is `high_watermark`, while there are more records."""

    high_watermark = 1 << 40

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        found = super().fetch(source, positions, wait_ms=20, max_bytes=max_bytes, partition_bytes=partition_bytes)
        shown = self.high_watermark
        offsets = {each.topic_partition: each.offset for each in positions}
        return [
            replace(each, data=b"", high_watermark=shown) if offsets[each.topic_partition] >= shown else each
            for each in found
        ]


def test_epoch_without_records_begins_once_all_older_records_are_copied(tmp_path: Path) -> None:
    """The new leader shows its high watermark late: what it has above is of the epoch before."""
    leader_root = LeaderRoot(tmp_path / "leader", random.Random(1))
    leader_root.write(5)
    leader = LaggingLeader(open_root(tmp_path / "leader"))
    copy = tmp_path / "copy"
    leader.high_watermark = LogDir.open(tmp_path / "leader").partition(TOPIC, 0).high_watermark
    with following(leader, copy) as running:
        wait_until(lambda: has_offsets(copy, {ORDERS: leader.high_watermark}))
        leader_root.write(5)
        leader_root.elect()
        wait_until(lambda: bool(running.of_kind(EventKind.LEADER_CHANGED)))
        leader.high_watermark = 1 << 40
        wait_until(lambda: has_all(LogDir.open(tmp_path / "leader"), copy))
        wait_until(lambda: epoch_of(copy) == epoch_of(tmp_path / "leader") > 0)


def epoch_of(root: Path) -> int:
    return LogDir.open(root).partition(TOPIC, 0).leader_epoch


def test_follower_that_begins_on_a_full_disk_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LeaderRoot(tmp_path / "leader", random.Random(1)).write(3)
    failures = [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded")]

    def begin(root: NativeRoot, *, leader: str, cluster_id: str, topics: str) -> str:
        if failures:
            raise failures.pop()
        return begin_following(root, leader=leader, cluster_id=cluster_id, topics=topics)

    monkeypatch.setattr(follower_module, "begin_following", begin)
    events = copy_once(tmp_path / "leader", tmp_path / "copy")
    assert [each.detail for each in events if each.kind is EventKind.COMMIT_ERROR] == [
        "[Errno 122] Disk quota exceeded"
    ]
    assert has_all(LogDir.open(tmp_path / "leader"), tmp_path / "copy")
    assert not failures


def test_follower_that_may_not_write_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LeaderRoot(tmp_path / "leader", random.Random(1)).write(3)

    def begin(root: NativeRoot, **_: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(follower_module, "begin_following", begin)
    with pytest.raises(PermissionError):
        copy_once(tmp_path / "leader", tmp_path / "copy")
