"""The commit log: one file per commit, created only if absent, damaged files reported by name."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.commit_log import MAX_COMMIT_BYTES, CommitLogTail, LoadedImage
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.local.log import COMMIT_FILE_BYTES, LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import FeatureLevelRecord, MetadataRecord
from pyspark_kafkalog.metadata.messages.records import encode_record
from pyspark_kafkalog.metadata.root_format import FIRST_FORMAT_VERSION, FORMAT_VERSION, HEAD_FILE, RootFormat
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.filesystem import FileSystem


def feature(level: int) -> MetadataRecord:
    return FeatureLevelRecord(name="a", feature_level=level)


@pytest.fixture
def log(tmp_path: Path) -> LocalCommitLog:
    return LocalCommitLog(tmp_path)


def names(log: LocalCommitLog) -> list[str]:
    return sorted(path.name for path in log.directory.iterdir() if path.name != HEAD_FILE)


def test_commits_are_read_back_from_one_file_each(log: LocalCommitLog) -> None:
    first = log.publish(0, [feature(1), feature(2)], timestamp_ms=10)
    second = log.publish(first.next_offset, [feature(3)], timestamp_ms=20)
    assert names(log) == ["00000000000000000000.log", "00000000000000000002.log"]
    assert list(log.read_from(0)) == [first, second]
    assert list(log.replay()) == [first, second]
    assert (second.base_offset, second.next_offset, second.timestamp_ms) == (2, 3, 20)
    assert log.read(3) is None
    assert list(log.read_from(2)) == [second]


def test_commit_is_the_batch_that_the_reference_encodes(log: LocalCommitLog) -> None:
    records = [feature(1), *[FeatureLevelRecord(name="n" * size, feature_level=2) for size in (1, 60, 70, 9000)] * 40]
    log.publish(1000, records, timestamp_ms=1_700_000_000_000)
    expected = encode_batch(
        [
            Record(offset=1000 + at, timestamp_ms=1_700_000_000_000, key=None, value=encode_record(each))
            for at, each in enumerate(records)
        ],
        leader_epoch=0,
    )
    assert log.path(1000).read_bytes() == expected


def test_exactly_one_of_racing_writers_wins(log: LocalCommitLog) -> None:
    writers = 8
    start = threading.Barrier(writers)
    won: list[int] = []
    lost: list[int] = []

    def race(level: int) -> None:
        start.wait()
        try:
            log.publish(0, [feature(level)], timestamp_ms=1)
            won.append(level)
        except CommitConflictError:
            lost.append(level)

    threads = [threading.Thread(target=race, args=(level,)) for level in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == writers - 1
    commit = log.read(0)
    assert commit is not None
    assert commit.records[0].feature_level == won[0]
    assert names(log) == ["00000000000000000000.log"]


class RepeatedLinkFileSystem(FileSystem):
    """A network file system that lost the answer to a link and asked again."""

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        super().link(source, target)


def test_repeated_link_of_own_commit_counts_as_success(tmp_path: Path) -> None:
    log = LocalCommitLog(tmp_path, fs=RepeatedLinkFileSystem())
    commit = log.publish(0, [feature(1)], timestamp_ms=1)
    assert list(log.replay()) == [commit]
    with pytest.raises(CommitConflictError):
        LocalCommitLog(tmp_path).publish(0, [feature(2)], timestamp_ms=2)
    assert names(log) == ["00000000000000000000.log"]


class FailingCalls(FileSystem):
    """Fails the named call, before or after it took effect."""

    def __init__(self, call: str, *, after: bool) -> None:
        self._call = call
        self._after = after

    def _fail(self, call: str, *, after: bool) -> None:
        if call == self._call and after == self._after:
            raise OSError(errno.EIO, "injected")

    def pwrite_all(self, fd: int, data: object, position: int) -> None:
        self._fail("pwrite", after=False)
        super().pwrite_all(fd, data, position)

    def fsync(self, fd: int) -> None:
        self._fail("fsync", after=False)
        super().fsync(fd)

    def link(self, source: Path, target: Path) -> None:
        self._fail("link", after=False)
        super().link(source, target)
        self._fail("link", after=True)

    def unlink(self, path: Path) -> None:
        self._fail("unlink", after=False)
        super().unlink(path)

    def fsync_dir(self, directory: Path) -> None:
        self._fail("fsync_dir", after=False)
        super().fsync_dir(directory)


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_failure_before_link_leaves_no_commit_and_no_temporary_file(tmp_path: Path, call: str) -> None:
    log = LocalCommitLog(tmp_path, fs=FailingCalls(call, after=False))
    with pytest.raises(OSError, match="injected"):
        log.publish(0, [feature(1)], timestamp_ms=1)
    assert names(log) == []


@pytest.mark.parametrize(
    ("call", "after", "there"),
    [("link", False, False), ("link", True, True), ("unlink", False, True), ("fsync_dir", False, True)],
)
def test_failure_at_or_after_link_raises_commit_state_unknown(
    tmp_path: Path, call: str, after: bool, there: bool
) -> None:
    log = LocalCommitLog(tmp_path, fs=FailingCalls(call, after=after))
    with pytest.raises(CommitStateUnknownError, match=r"00000000000000000000\.log"):
        log.publish(0, [feature(1)], timestamp_ms=1)
    assert (log.read(0) is not None) == there


def test_leftover_temporary_file_is_never_read(log: LocalCommitLog) -> None:
    log.publish(0, [feature(1)], timestamp_ms=1)
    (log.directory / "00000000000000000001.log.0123456789abcdef.tmp").write_bytes(b"half a commit")
    assert len(list(log.replay())) == 1
    assert log.read(1) is None


def test_flipped_byte_anywhere_is_reported_with_file_name(log: LocalCommitLog) -> None:
    log.publish(0, [feature(1), feature(2)], timestamp_ms=1)
    path = log.path(0)
    good = path.read_bytes()
    for at in range(len(good)):
        if 12 <= at < 16:
            continue  # the leader epoch is outside the CRC and means nothing here
        bad = bytearray(good)
        bad[at] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises((CorruptRecordError, UnsupportedFormatError), match=r"00000000000000000000\.log"):
            log.read(0)


def test_truncated_file_is_reported_at_every_length(log: LocalCommitLog) -> None:
    log.publish(0, [feature(1)], timestamp_ms=1)
    good = log.path(0).read_bytes()
    for length in range(len(good)):
        log.path(0).write_bytes(good[:length])
        with pytest.raises(CorruptRecordError):
            log.read(0)


def test_commit_file_under_name_of_another_is_refused(log: LocalCommitLog) -> None:
    log.publish(0, [feature(1)], timestamp_ms=1)
    os.rename(log.path(0), log.path(7))
    with pytest.raises(CorruptRecordError, match="expected offsets from 7 on"):
        log.read(7)


def test_batch_that_does_not_follow_the_one_before_it_is_refused(log: LocalCommitLog) -> None:
    log.publish(0, [feature(1)], timestamp_ms=1)
    log.path(0).write_bytes(log.path(0).read_bytes() * 2)
    with pytest.raises(CorruptRecordError, match="offsets from 1 on, found offsets 0 to 0"):
        list(log.read_from(0))


def test_null_value_and_control_batch_are_refused(log: LocalCommitLog) -> None:
    null = Record(offset=0, timestamp_ms=1, key=None, value=None)
    log.path(0).write_bytes(encode_batch([null]))
    with pytest.raises(CorruptRecordError, match="found null"):
        log.read(0)
    control = Record(offset=0, timestamp_ms=1, key=b"\0\0\0\2", value=b"")
    log.path(0).write_bytes(encode_batch([control], is_control=True))
    with pytest.raises(CorruptRecordError, match="control batch"):
        log.read(0)


def test_file_above_maximum_commit_size_is_refused(log: LocalCommitLog) -> None:
    with log.path(0).open("wb") as file:
        file.truncate(COMMIT_FILE_BYTES + MAX_COMMIT_BYTES + 1)
    with pytest.raises(CorruptRecordError, match="at most"):
        log.read(0)


def test_missing_commit_in_the_middle_is_reported_by_name(log: LocalCommitLog) -> None:
    for offset in range(3):
        log.publish(offset, [feature(1)], timestamp_ms=1)
    log.path(1).unlink()
    with pytest.raises(CorruptRecordError, match=r"00000000000000000001\.log.*the log has reached 2"):
        list(log.replay())


def test_commit_without_records_is_refused(log: LocalCommitLog) -> None:
    with pytest.raises(InvalidRecordError, match="at least one record"):
        log.publish(0, [], timestamp_ms=1)


@pytest.mark.parametrize("version", [FIRST_FORMAT_VERSION, FORMAT_VERSION])
def test_reader_at_log_end_opens_the_last_file_if_it_may_grow_and_one_name(
    log: LocalCommitLog, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = LoadedImage(MetadataImage(format=RootFormat(version)), CommitLogTail(""))
    for offset in range(20):
        commit = log.publish(offset, [feature(1)], timestamp_ms=1)
        image = replace(loaded.image, next_offset=commit.next_offset)
        loaded = LoadedImage(image, loaded.tail.after_commit(commit, log.file_of(commit)))
    opened = []
    real = os.open

    def count(path: object, *rest: object, **more: object) -> int:
        opened.append(path)
        return real(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", count)
    assert list(log.read_after(loaded)) == []
    last = [log.path(19)] if version == FORMAT_VERSION else []
    assert opened == [part for path in (*last, log.path(20)) for part in (str(path.parent), path.name)]
