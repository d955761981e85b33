"""What a truncation cuts is in a file before its commit; cleanings and merges planned before it come to nothing."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from pathlib import Path

import pytest
from builders.followers import NOW_MS, TOPIC, FollowerRoot, log_bytes
from builders.leader_writers import T0, copied
from builders.object_roots import StoredRoot
from fakes.stopping_filesystem import Killed, StoppingFileSystem

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.swap import SwapTarget
from pyspark_kafkalog.root.file_root import on_file_system
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_offset_checkpoint, write_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition

OF = TopicPartition(TOPIC, 0)
DATA = b"".join(copied(offset) for offset in range(0, 30, 3))


@pytest.fixture
def follower(tmp_path: Path) -> FollowerRoot:
    follower = FollowerRoot.create(tmp_path / "follower")
    follower.make(follower.append(DATA, log_start_offset=4))
    return follower


def cut(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(path.glob("diverged-*"))}


def test_a_truncation_keeps_what_it_cuts_in_a_file_of_whole_batches(tmp_path: Path, follower: FollowerRoot) -> None:
    path = tmp_path / "follower"
    follower.make(follower.truncation(20))
    assert cut(path) == {f"diverged-a-0-18-30-{NOW_MS}.log": b"".join(copied(each) for each in range(18, 30, 3))}
    follower.make(follower.append(copied(18, epoch=1)))
    follower.make(follower.truncation(0))
    assert cut(path)[f"diverged-a-0-4-21-{NOW_MS}.log"] == b"".join(
        [*(copied(each) for each in range(3, 18, 3)), copied(18, epoch=1)]
    )
    follower.make(follower.append(copied(0)))
    follower.make(follower.start_at(40))
    follower.make(follower.truncation(60))  # there is nothing to cut
    assert len(cut(path)) == 2


def test_the_same_cut_again_has_a_file_of_its_own(tmp_path: Path, follower: FollowerRoot) -> None:
    for epoch in (1, 2):
        follower.make(follower.truncation(27))
        follower.make(follower.append(copied(27, epoch=epoch)))
    assert cut(tmp_path / "follower") == {
        f"diverged-a-0-27-30-{NOW_MS}.log": copied(27),
        f"diverged-a-0-27-30-{NOW_MS + 1}.log": copied(27, epoch=1),
    }


def test_a_truncation_that_waits_for_room_keeps_one_whole_file(tmp_path: Path) -> None:
    """Also where the commit fails after the file is written, again and again; a removed file is written again."""
    wanted = b"".join(copied(each) for each in range(15, 30, 3))
    for stops_at in range(100):
        path = tmp_path / str(stops_at)
        FollowerRoot.create(path).writer.close()
        fs = StoppingFileSystem(error=lambda: OSError(errno.ENOSPC, "No space left on device"), once=True)
        follower = FollowerRoot(path, fs=fs, flush="fsync")
        follower.make(follower.append(DATA))
        truncation = follower.truncation(15)
        for is_removed in (False, False, True):
            fs.stops_at, fs.changes = stops_at, 0
            with contextlib.suppress(OSError, KafkalogError):
                follower.commit(truncation)
            has_stopped, fs.stops_at = fs.has_stopped, None
            if follower.state().log_end_offset == 15:
                break
            for each in path.glob("diverged-*") if is_removed else ():
                each.unlink()
        follower.commit(truncation)
        assert follower.state().log_end_offset == 15
        assert list(cut(path).values()) == [wanted]
        follower.writer.close()
        if not has_stopped:
            break
    assert not has_stopped


def test_a_killed_truncation_has_cut_nothing_that_is_not_in_a_file(tmp_path: Path) -> None:
    wanted = b"".join(copied(each) for each in range(15, 30, 3))
    found = Counter[tuple[int, bool]]()
    for stops_at in range(100):
        path = tmp_path / str(stops_at)
        FollowerRoot.create(path).writer.close()
        fs = StoppingFileSystem(torn=True)
        follower = FollowerRoot(path, fs=fs, flush="fsync")
        follower.make(follower.append(DATA))
        fs.stops_at = stops_at
        with contextlib.suppress(Killed):
            follower.make(follower.truncation(15))
        has_stopped, fs.stops_at = fs.has_stopped, None
        follower.writer.close()
        end_offset = LogDir.open(path).partition(TOPIC, 0).high_watermark
        is_whole = list(cut(path).values()) == [wanted]
        found[end_offset, is_whole] += 1
        if not has_stopped:
            break
    assert found.keys() == {(30, False), (30, True), (15, True)}  # never (15, False)
    assert not has_stopped


def test_objects_keep_what_a_truncation_cuts_in_a_store() -> None:
    stored = StoredRoot()
    stored.place.clock.now_ms = T0
    follower = FollowerRoot(Path("unused"), root=stored.opened(), topic="orders")
    follower.make(follower.append(DATA))
    for epoch in (1, 2):
        follower.make(follower.truncation(28))
        follower.make(follower.append(copied(27, epoch=epoch)))
    bucket = stored.place.bucket
    found = {key: bucket.body(key) for key in bucket.keys("diverged")}
    assert found == {
        f"diverged/orders-0-27-30-{T0}.log": copied(27),
        f"diverged/orders-0-27-30-{T0 + 1}.log": copied(27, epoch=1),
    }


def test_segments_that_were_made_before_a_truncation_are_not_put_in_place(
    tmp_path: Path, follower: FollowerRoot
) -> None:
    root = on_file_system(follower.root)
    root.refresh()
    target = SwapTarget.of(root, OF, NOW_MS)
    follower.make(follower.truncation(9))
    follower.make(follower.append(copied(9, epoch=1)))
    before = log_bytes(tmp_path / "follower" / "a-0")
    with pytest.raises(InvalidRecordError, match="run this again"):
        target.swap(0, [0])
    assert log_bytes(tmp_path / "follower" / "a-0") == before


def test_a_log_in_which_a_killed_swap_is_pending_is_not_truncated(tmp_path: Path, follower: FollowerRoot) -> None:
    (tmp_path / "follower" / "a-0" / f"{0:020d}.log.swap").write_bytes(copied(0))
    (result,) = follower.commit(follower.truncation(9))
    assert isinstance(result, KafkalogError)
    assert "log-cleaner" in str(result)


def test_the_checkpoint_of_the_cleaner_follows_a_truncation(tmp_path: Path, follower: FollowerRoot) -> None:
    path = tmp_path / "follower" / "cleaner-offset-checkpoint"
    write_offset_checkpoint(path, {OF: 25, TopicPartition("b", 0): 25})
    follower.make(follower.truncation(9))
    assert read_offset_checkpoint(path) == {OF: 9, TopicPartition("b", 0): 25}
