"""Failed commits write nothing, or all, and the same staged files can be committed again."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from pathlib import Path

import pytest
from builders.controlled import open_log_dir
from builders.staged_writes import (
    COPIED,
    ORDERS,
    OTHER,
    ROLLED,
    SPLICED,
    Failing,
    check_files,
    failing_dir,
    make_log_dir,
    stage,
    staged_left,
    written_by,
)
from open_files import open_files_left

from pyspark_kafkalog.errors import CommitStateUnknownError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.storage.names import TopicPartition


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    return make_log_dir(tmp_path / "log")


# Whole


def test_commit_with_deleted_topic_writes_nothing(log_dir: LogDir) -> None:
    log_dir.create_topic("other", partitions=1)
    staged = [stage(log_dir.path, "a"), stage(log_dir.path, "a", topic_partition=TopicPartition("other", 0))]
    log_dir.delete_topic("other")
    with pytest.raises(UnknownTopicError, match="other"):
        log_dir.commit_staged(staged)
    assert written_by(log_dir) == []
    log_dir.create_topic("other", partitions=1)
    with pytest.raises(UnknownTopicError, match="expected the staged file"):
        log_dir.commit_staged(staged)
    check_files(log_dir)
    log_dir.commit_staged(staged[:1])
    assert written_by(log_dir) == ["a"]


def test_write_to_topic_recreated_with_fewer_partitions_fails_and_frees_space(log_dir: LogDir) -> None:
    log_dir.create_topic("gone", partitions=2)
    gone = TopicPartition("gone", 1)
    log_dir.create_topic("zebra", partitions=1)
    places = [TopicPartition("a-topic", 0), gone, TopicPartition("zebra", 0)]
    log_dir.create_topic("a-topic", partitions=1)
    staged = [stage(log_dir.path, "w", 40, topic_partition=place) for place in places]
    log_dir.delete_topic("gone")
    log_dir.create_topic("gone", partitions=1)
    for order in (staged, staged[::-1]):
        with pytest.raises(UnknownTopicError, match="gone"):
            log_dir.commit_staged(order)
        logs = [path for topic in ("a-topic", "zebra") for path in (log_dir.path / f"{topic}-0").glob("*.log")]
        assert sum(path.stat().st_size for path in logs) == 0
    log_dir.commit_staged([staged[0], staged[2]])
    assert [written_by(log_dir, topic) for topic in ("a-topic", "gone", "zebra")] == [["w"], [], ["w"]]


def test_failed_append_frees_its_space(log_dir: LogDir) -> None:
    before = {path: path.stat().st_size for path in log_dir.path.glob("orders-*/*.log")}
    staged = [stage(log_dir.path, "a", 90, topic_partition=TopicPartition("orders", at)) for at in (0, 1)]
    broken = failing_dir(log_dir, Failing(lambda call, path: call == "copy" and "orders-1" in path))
    with pytest.raises(OSError, match="No space"):
        broken.commit_staged(staged)
    logs = list(log_dir.path.glob("orders-*/*.log"))
    assert sum(path.stat().st_size for path in logs) == sum(before.values())
    log_dir.commit_staged(staged)
    assert (written_by(log_dir), written_by(log_dir, partition=1)) == (["a"], ["a"])


def test_wide_write_stays_within_limit_of_open_files(log_dir: LogDir) -> None:
    log_dir.create_topic("wide", partitions=150)
    places = [TopicPartition("wide", at) for at in range(150)]
    staged = [stage(log_dir.path, "a", topic_partition=place) for place in places]
    with open_files_left(230):
        log_dir.commit_staged(staged)
    assert all(written_by(log_dir, "wide", at) == ["a"] for at in (0, 63, 64, 149))
    check_files(log_dir)


def test_restored_directory_of_deleted_topic_is_replaced_before_write(log_dir: LogDir) -> None:
    directory = log_dir.topic("orders").partitions[0].directory
    log_dir.commit_staged([stage(log_dir.path, "old")])
    shutil.copytree(directory, log_dir.path / "kept")
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=2)
    shutil.rmtree(directory)
    (log_dir.path / "kept").rename(directory)
    with pytest.raises(UnknownTopicError, match="expected the staged file"):
        log_dir.commit_staged([stage(log_dir.path, "a")])
    log_dir.commit_staged([stage(log_dir.path, "b")])
    assert written_by(log_dir) == ["b"]
    log_dir.ensure_topic("orders")
    assert written_by(log_dir) == ["b"]


# Again after a failure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "batches", "begins_file"),
    [
        (0, COPIED, False),
        (0, SPLICED, True),
        (COPIED, SPLICED, False),
        (SPLICED, COPIED, True),
        pytest.param(COPIED, ROLLED, False, marks=pytest.mark.full),
    ],
)
def test_commit_that_fails_at_any_call_is_written_once_on_retry(
    log_dir: LogDir, tmp_path: Path, before: int, batches: int, begins_file: bool, request: pytest.FixtureRequest
) -> None:
    """Each call of a commit fails in turn, half done; the same files are then committed, also at another offset."""
    if begins_file:
        request.getfixturevalue("one_commit_a_file")
    if before:
        log_dir.commit_staged([stage(log_dir.path, "before", before)])
    template = tmp_path / "template"
    log_dir.path.rename(template)
    for point in itertools.count():
        root = tmp_path / f"try-{point}"
        shutil.copytree(template, root)
        expected = ["before"] if before else []
        calls = itertools.count()
        staged = stage(root, "w", batches)
        other = LogDir.open(root)
        failing = open_log_dir(root, fs=Failing(lambda *_, at=point, calls=calls: next(calls) == at, is_short=True))
        try:
            failing.commit_staged([staged])
        except OSError:
            assert written_by(other) == expected
            if point % 2:
                other.commit_staged([stage(root, "between")])
                expected.append("between")
            assert not failing.commit_staged([staged]).is_duplicate
        expected.append("w")
        assert written_by(other) == expected
        other.commit_staged([stage(root, "last", SPLICED)])
        assert written_by(other) == [*expected, "last"]
        check_files(other)
        shutil.rmtree(root)
        if next(calls) <= point:
            assert point > 9
            return


def test_retry_of_committed_staged_file_leaves_segment_unchanged(log_dir: LogDir) -> None:
    staged = stage(log_dir.path, "a", SPLICED)
    inode = staged.path(log_dir.path).stat().st_ino
    stuck = failing_dir(log_dir, Failing(lambda call, path: call == "unlink" and path.endswith(".staged")))
    assert stuck.commit_staged([staged]).partitions[0].records == SPLICED * 5
    directory = log_dir.path / str(ORDERS)
    segment = directory / f"{0:020d}.log"
    assert staged.path(log_dir.path).stat().st_ino == segment.stat().st_ino == inode
    before = segment.read_bytes()
    with pytest.raises(UnknownTopicError, match="already committed"):
        log_dir.commit_staged([staged, stage(log_dir.path, "b")])
    assert not staged.path(log_dir.path).exists()
    log_dir.commit_staged([stage(log_dir.path, "c", SPLICED)])
    assert segment.read_bytes() == before
    assert written_by(log_dir) == ["a", "c"]
    check_files(log_dir)


def test_staged_file_with_another_hard_link_is_not_changed(log_dir: LogDir, tmp_path: Path) -> None:
    staged = stage(log_dir.path, "a", SPLICED)
    backup = tmp_path / "backup"
    os.link(staged.path(log_dir.path), backup)
    before = backup.read_bytes()
    log_dir.commit_staged([stage(log_dir.path, "first")])
    log_dir.commit_staged([staged])
    assert backup.read_bytes() == before
    assert written_by(log_dir) == ["first", "a"]


@pytest.mark.parametrize("begins_file", [False, True])
def test_commit_of_unknown_state_is_duplicate_on_retry(
    log_dir: LogDir, begins_file: bool, request: pytest.FixtureRequest
) -> None:
    if begins_file:
        request.getfixturevalue("one_commit_a_file")
    is_broken = [True]
    last_call = "fsync_dir" if begins_file else "fsync"
    fs = Failing(lambda call, path: is_broken[0] and call == last_call and METADATA_DIR in path, errno.EIO)
    broken = failing_dir(log_dir, fs)
    staged = [stage(log_dir.path, "a"), stage(log_dir.path, "a", SPLICED, topic_partition=OTHER)]
    with pytest.raises(CommitStateUnknownError):
        broken.commit_staged(staged)
    assert len(staged_left(log_dir)) == 2
    is_broken[0] = False
    assert broken.commit_staged(staged).is_duplicate
    assert (written_by(log_dir), written_by(log_dir, partition=1)) == (["a"], ["a"])
    assert staged_left(log_dir) == []
    broken.commit_staged([stage(log_dir.path, "b"), stage(log_dir.path, "b", topic_partition=OTHER)])
    check_files(log_dir)


def test_failed_link_of_commit_file_is_retried(log_dir: LogDir) -> None:
    left = [3]

    def fails(call: str, path: str) -> bool:
        if call == "link" and METADATA_DIR in path and left[0]:
            left[0] -= 1
            return True
        return False

    failing_dir(log_dir, Failing(fails, errno.EIO)).commit_staged([stage(log_dir.path, "a")])
    assert written_by(log_dir) == ["a"]
