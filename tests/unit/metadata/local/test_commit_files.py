"""Files of several commits: how they take commits, and what readers and writers make of a part or of damage."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders.metadata_roots import (
    add_topic,
    as_first_format,
    commit_files,
    forget_images,
    settings_of,
    snapshot_files,
    write_to,
)
from fakes.clock import Clock

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptRecordError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.commit_log import Commit, CommitPlace, encode_commit
from pyspark_kafkalog.metadata.local import log as log_module
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.local.log import End, LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import FeatureLevelRecord, MetadataRecord
from pyspark_kafkalog.metadata.root_format import HEAD_FILE, OffsetHint, metadata_dir
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.filesystem import LOCAL, UNFLUSHED_MARKER, FileSystem

DAY_MS = 86_400_000


def feature(level: int) -> MetadataRecord:
    return FeatureLevelRecord(name="a", feature_level=level)


def end_after(commit: Commit, *, is_full: bool = False) -> End:
    assert commit.place is not None
    return End(CommitPlace(commit.place.file_offset, commit.place.position + commit.size_bytes), is_full)


def publish(log: LocalCommitLog, count: int) -> list[Commit]:
    """Commits of one and two records, in one file."""
    commits: list[Commit] = []
    offset = 0
    for number in range(count):
        end = end_after(commits[-1]) if commits else None
        records = [feature(number + 1)] * (1 + number % 2)
        commits.append(log.publish(offset, records, timestamp_ms=number, end=end))
        offset = commits[-1].next_offset
    return commits


@pytest.fixture
def log(tmp_path: Path) -> LocalCommitLog:
    return LocalCommitLog(tmp_path)


def names(log: LocalCommitLog) -> list[str]:
    return sorted(path.name for path in log.directory.glob("*.log*"))


def test_commits_of_one_file_are_read_from_any_of_them(log: LocalCommitLog) -> None:
    commits = publish(log, 5)
    assert names(log) == ["00000000000000000000.log"]
    for at, commit in enumerate(commits):
        assert LocalCommitLog(log.directory).read(commit.base_offset) == commit
        assert list(LocalCommitLog(log.directory).read_from(commit.base_offset)) == commits[at:]
        assert list(log.oldest_first(commit.base_offset)) == commits[at:]
    assert list(log.newest_first()) == commits[::-1]
    assert list(log.replay()) == commits
    assert log.read(commits[2].base_offset + 7) is None
    assert [each.place for each in log.replay()] == [each.place for each in commits]


def test_full_file_is_followed_by_one_named_by_its_first_offset(
    log: LocalCommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = publish(log, 2)
    monkeypatch.setattr(log_module, "COMMIT_FILE_BYTES", sum(each.size_bytes for each in first) + 1)
    second = log.publish(first[-1].next_offset, [feature(9)], timestamp_ms=5, end=end_after(first[-1]))
    assert names(log) == ["00000000000000000000.log", f"{second.base_offset:020d}.log"]
    third = log.publish(second.next_offset, [feature(9)], timestamp_ms=5, end=end_after(second, is_full=True))
    assert names(log)[-1] == f"{third.base_offset:020d}.log"
    assert list(log.read_from(first[1].base_offset)) == [first[1], second, third]


def race(tasks: list[Callable[[], Commit]]) -> list[Commit]:
    """Those that were made; the others lost."""
    start = threading.Barrier(len(tasks))
    made: list[Commit] = []
    lost: list[CommitConflictError] = []

    def run(task: Callable[[], Commit]) -> None:
        start.wait()
        try:
            made.append(task())
        except CommitConflictError as error:
            lost.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) + len(lost) == len(tasks)
    return made


def test_one_of_racing_writers_gets_the_place_whether_it_begins_a_file_or_not(log: LocalCommitLog) -> None:
    last = publish(log, 1)[0]
    for _ in range(10):
        ends = [end_after(last, is_full=number % 2 == 1) for number in range(8)]
        writers = [LocalCommitLog(log.directory) for _ in ends]
        made = race(
            [
                lambda writer=writer, end=end, number=number, last=last: writer.publish(
                    last.next_offset, [feature(number + 1)], timestamp_ms=1, end=end
                )
                for number, (writer, end) in enumerate(zip(writers, ends, strict=True))
            ]
        )
        assert len(made) == 1
        assert list(log.read_from(last.next_offset)) == made
        last = made[0]


def test_part_of_a_commit_is_no_commit_and_is_cut_off_by_the_next_writer(log: LocalCommitLog) -> None:
    first, second = publish(log, 2)
    path = log.path(0)
    whole = path.read_bytes()
    batch = encode_commit(second.next_offset, [feature(3)], 7)
    for length in range(len(batch)):
        path.write_bytes(whole + batch[:length])
        assert list(LocalCommitLog(log.directory).read_from(0)) == [first, second]
        third = log.publish(second.next_offset, [feature(4)], timestamp_ms=8, end=end_after(second))
        assert list(LocalCommitLog(log.directory).read_from(0)) == [first, second, third]
        path.write_bytes(whole + batch[:length])
        fourth = log.publish(second.next_offset, [feature(4)], timestamp_ms=8, end=end_after(second, is_full=True))
        assert path.read_bytes() == whole
        assert list(LocalCommitLog(log.directory).read_from(0)) == [first, second, fourth]
        log.path(fourth.base_offset).unlink()


@pytest.mark.parametrize("number", [1, 2])
def test_flipped_byte_is_reported_with_the_file(log: LocalCommitLog, number: int) -> None:
    """In the last commit and in one before it, whatever the head says."""
    commits = publish(log, 3)
    damaged = commits[number]
    assert damaged.place is not None
    path = log.path(0)
    good = path.read_bytes()
    for at in range(damaged.place.position, damaged.place.position + damaged.size_bytes):
        if 12 <= at - damaged.place.position < 16:
            continue  # the leader epoch is outside the CRC and means nothing here
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            path.write_bytes(bad)
            with pytest.raises((CorruptRecordError, UnsupportedFormatError), match=path.name):
                list(LocalCommitLog(log.directory).read_from(0))
            end = End(damaged.place, is_full=False)
            with pytest.raises((CorruptRecordError, UnsupportedFormatError, CommitConflictError)):
                log.publish(damaged.base_offset, [feature(1)], timestamp_ms=1, end=end)
            assert path.read_bytes() == bad


def reopened(store: LocalMetadataStore) -> LocalMetadataStore:
    """As by a new process."""
    forget_images()
    return LocalMetadataStore.open(store.root)


@pytest.mark.parametrize("lost_count", [1, 2])
@pytest.mark.parametrize("left", ["zeros", "other bytes"])
def test_what_a_power_failure_leaves_above_the_head_is_cut_off(tmp_path: Path, left: str, lost_count: int) -> None:
    store = create_root(tmp_path / "root")
    for name in "abc":
        add_topic(store, name)
    lost = list(store.log.replay())[-lost_count]
    assert lost.place is not None
    path = commit_files(store.root)[0]
    data = bytearray(path.read_bytes())
    at = lost.place.position + (0 if left == "zeros" else 70)
    data[at:] = bytes(len(data) - at)
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=path.name):
        reopened(store)  # the head says that it was on disk
    OffsetHint(metadata_dir(store.root) / HEAD_FILE, LOCAL).write(lost.base_offset)
    (store.root / UNFLUSHED_MARKER).touch()
    with pytest.raises(CorruptRecordError, match=path.name):
        reopened(store)  # the head says nothing of commits that do not wait for the disk
    (store.root / UNFLUSHED_MARKER).unlink()
    again = reopened(store)
    assert set(again.image.topics) == set("abc"[:-lost_count])
    add_topic(again, "d")
    assert reopened(store).image == again.image
    assert len(commit_files(store.root)) == 1


def test_commit_that_was_written_whole_is_never_cut_off(tmp_path: Path) -> None:
    """Its records cannot be read, but its CRC is right: a later version of the package may have made it."""
    store = create_root(tmp_path / "root")
    add_topic(store, "a")
    offset = store.image.next_offset
    with commit_files(store.root)[0].open("ab") as file:
        file.write(encode_batch([Record(offset=offset, timestamp_ms=1, key=None, value=None)], leader_epoch=0))
    for action in (store.refresh, lambda: add_topic(store, "b")):
        with pytest.raises(CorruptRecordError, match="found null"):
            action()


def test_file_that_became_shorter_is_reported(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root")
    add_topic(store, "a")
    other = LocalMetadataStore.open(store.root)
    path = commit_files(store.root)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError, match=f"{path.name}.*bytes at least"):
        other.refresh()
    with pytest.raises(CorruptRecordError, match=f"{path.name}.*bytes at least"):
        add_topic(store, "b")
    forget_images()
    with pytest.raises(CorruptRecordError, match="has reached"):
        LocalMetadataStore.open(store.root)


class FailingAtEnd(FileSystem):
    """Fails a call on a commit file that exists, once; a write half way through."""

    def __init__(self, call: str, error: int) -> None:
        self._call: str | None = call
        self._error = error

    def _fail(self, call: str, fd: int) -> None:
        if call == self._call and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            self._call = None
            raise OSError(self._error, os.strerror(self._error))

    def pwrite_all(self, fd: int, data: bytes, position: int) -> None:
        try:
            self._fail("pwrite", fd)
        except OSError:
            super().pwrite_all(fd, data[: len(data) // 2], position)
            raise
        super().pwrite_all(fd, data, position)

    def fsync(self, fd: int) -> None:
        self._fail("fsync", fd)
        super().fsync(fd)


def test_write_that_fails_leaves_no_commit(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root")
    path = commit_files(store.root)[0]
    before = path.read_bytes()
    failing = LocalMetadataStore.open(store.root, fs=FailingAtEnd("pwrite", errno.EIO))
    with pytest.raises(OSError, match=r"Input/output error") as caught:
        add_topic(failing, "a")
    assert not isinstance(caught.value, CommitStateUnknownError)
    assert path.read_bytes() == before
    add_topic(failing, "b")
    assert set(store.refresh().topics) == {"b"}


def test_commit_whose_flush_fails_is_found_by_its_id_and_made_once(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root")
    failing = LocalMetadataStore.open(store.root, fs=FailingAtEnd("fsync", errno.EIO))
    add_topic(failing, "a")
    assert set(store.refresh().topics) == {"a"}
    assert len(list(store.log.replay())) == 2


def test_commit_that_finds_no_room_at_the_end_uses_the_reserve_if_it_frees_space(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root")
    add_topic(store, "orders")  # makes the reserve
    full = LocalMetadataStore.open(store.root, fs=FailingAtEnd("pwrite", errno.ENOSPC))
    full.commit(lambda image: [feature(1)], operation="test", frees_space=True)
    assert [path.name for path in commit_files(store.root)[1:]] == [f"{store.image.next_offset:020d}.log"]
    assert store.refresh() == full.image
    full = LocalMetadataStore.open(store.root, fs=FailingAtEnd("pwrite", errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        add_topic(full, "a")


def test_file_that_a_snapshot_reaches_into_takes_no_further_commits(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root", clock=(clock := Clock(1_000)))
    settings_of(store, {"metadata.log.max.snapshot.interval.ms": "1000"})
    assert len(commit_files(store.root)) == 1
    clock.now_ms += 2_000
    add_topic(store, "a")
    (snapshot,) = snapshot_files(store.root)
    add_topic(store, "b")
    add_topic(store, "c")
    assert [path.stem for path in commit_files(store.root)] == [f"{0:020d}", snapshot.name[:20]]
    forget_images()
    assert LocalMetadataStore.open(store.root).image == store.image


def test_root_opens_from_a_snapshot_within_a_file(tmp_path: Path) -> None:
    """As after a commit of a process that does not know the snapshot of another one yet."""
    clock = Clock(1_000)
    store = create_root(tmp_path / "root", clock=clock)
    settings_of(store, {"metadata.log.max.snapshot.interval.ms": "1000"})
    other = LocalMetadataStore.open(store.root, clock=Clock(1_000))
    clock.now_ms += 2_000
    add_topic(store, "a")
    add_topic(other, "b")
    (snapshot,) = snapshot_files(store.root)
    assert len(commit_files(store.root)) == 1
    forget_images()
    again = LocalMetadataStore.open(store.root, clock=Clock(1_000))
    assert again.image == other.image == store.refresh()
    assert snapshot.name < f"{again.image.next_offset:020d}"
    add_topic(again, "c")
    assert store.refresh() == other.refresh() == again.image


def test_file_is_removed_when_all_its_commits_may_be_and_snapshots_in_it_before(tmp_path: Path) -> None:
    clock = Clock(1_000)
    store = create_root(tmp_path / "root", clock=clock)
    topic_id = add_topic(store, "orders", 1)
    settings_of(store, {"metadata.log.max.snapshot.interval.ms": "1", "metadata.max.retention.ms": str(DAY_MS)})
    other = LocalMetadataStore.open(store.root, clock=clock)
    write_to(store, topic_id, 1)  # looks for the oldest file, which still grows
    clock.now_ms += DAY_MS + 1
    write_to(other, topic_id, 2)  # into the same file, as it does not know the snapshot
    assert len(commit_files(store.root)) == 1
    write_to(store, topic_id, 3)
    write_to(store, topic_id, 4)
    assert commit_files(store.root)[0].stem == f"{0:020d}"  # its last commit is young, and there is a later file
    assert len(commit_files(store.root)) > 1
    within = [path.name[:20] for path in snapshot_files(store.root)]
    assert within[0] < commit_files(store.root)[1].stem
    clock.now_ms += DAY_MS + 1
    write_to(store, topic_id, 5)
    write_to(store, topic_id, 6)
    oldest = commit_files(store.root)[0].stem
    assert oldest > f"{0:020d}"
    assert all(path.name[:20] >= oldest for path in snapshot_files(store.root))
    assert other.refresh() == store.image
    forget_images()
    assert LocalMetadataStore.open(store.root, clock=clock).image == store.image


def test_root_of_the_first_format_keeps_a_file_for_each_commit(tmp_path: Path) -> None:
    create_root(tmp_path / "root")
    as_first_format(tmp_path / "root")
    store = LocalMetadataStore.open(tmp_path / "root")
    for name in "abc":
        add_topic(store, name)
    assert [path.stem for path in commit_files(store.root)] == [
        f"{each.base_offset:020d}" for each in store.log.replay()
    ]
    assert len(commit_files(store.root)) == 4
    forget_images()
    assert LocalMetadataStore.open(store.root).image == store.image


def test_writer_that_does_not_know_where_the_log_ends_finds_it(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root")
    for name in "abc":
        add_topic(store, name)
    loaded = store._loaded
    store._loaded = replace(loaded, tail=replace(loaded.tail, end=None))
    add_topic(store, "d")
    assert len(commit_files(store.root)) == 1
    forget_images()
    assert set(LocalMetadataStore.open(store.root).image.topics) == {*"abcd"}
