"""Commits of writes: once for each transaction, by its newest holder, whole or not at all, again after a failure."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidOptionError,
    ProducerFencedError,
    UnknownTopicError,
)
from pyspark_kafkalog.log_dir import LogDir, WriteTransaction
from pyspark_kafkalog.metadata import write_commit
from pyspark_kafkalog.metadata.bootstrap import METADATA_DIR
from pyspark_kafkalog.metadata.image import TransactionalIdImage
from pyspark_kafkalog.metadata.records import transactional_id_record
from pyspark_kafkalog.metadata.store import CommitOutcome, MetadataStore
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.plain import Record, encode_batch
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.flush_mode import UNFLUSHED_MARKER
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, TopicPartition
from pyspark_kafkalog.storage.staging import StagedFile, StagedFileWriter

COPIED, ADOPTED, ROLLED = 2, 30, 60
T0 = 1_700_000_000_000
#: A segment takes 5 kB, so that a staged file of ADOPTED batches becomes a segment by itself, and one of ROLLED batches
#: is copied and rolls inside.
SMALL_SEGMENTS = {"internal.segment.bytes": "5000", "index.interval.bytes": "300"}
ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    made = LogDir.create(tmp_path / "log")
    made.create_topic("orders", partitions=2, configs=SMALL_SEGMENTS)
    return made


def stage(
    root: Path, write_id: str, batches: int = COPIED, *, topic_partition: TopicPartition = ORDERS, task: int = 0
) -> StagedFile:
    """`batches` record batches of 5 records, whose values name the write."""
    writer = StagedFileWriter(root, topic_partition, write_id=write_id, task=task)
    for first in range(0, batches * 5, 5):
        values = [b"%s %d" % (write_id.encode(), number) for number in range(first, first + 5)]
        data = encode_batch(
            [
                Record(offset=first + at, timestamp_ms=T0 + first + at, key=b"k", value=value)
                for at, value in enumerate(values)
            ]
        )
        writer.append(data, scan_batches(data, file="staged").batches)
    return writer.finish(durable=False)


def written_by(log_dir: LogDir, topic: str = "orders", partition: int = 0) -> list[str]:
    """The write ids in the order of the partition's records, which must be whole: one run of numbers each."""
    log_dir.refresh()
    values = [value.decode().split() for value in log_dir.read(topic, partition=partition)["value"].to_pylist()]
    runs = []
    for write_id, run in itertools.groupby(values, key=lambda each: each[0]):
        numbers = [int(number) for _, number in run]
        while numbers:
            end = next((at for at in range(1, len(numbers)) if numbers[at] == 0), len(numbers))
            assert numbers[:end] == list(range(end))
            numbers = numbers[end:]
            runs.append(write_id)
    return runs


def check_files(log_dir: LogDir) -> None:
    """Every batch of every partition is valid, offsets have no gap, and nothing lies past the high watermark."""
    log_dir.refresh()
    for topic in log_dir.topics():
        for partition in log_dir.topic(topic).partitions:
            next_offset = 0
            for path in sorted(partition.directory.glob(f"*{LOG_SUFFIX}")):
                data = np.fromfile(path, dtype=np.uint8)
                scan = scan_batches(data, file=str(path))
                assert (scan.fault, scan.consumed_bytes) == (None, len(data))
                verify_crcs(data, scan.batches, data_position=0, file=str(path))
                for row in scan.batches:
                    assert int(row["base_offset"]) == next_offset
                    next_offset = int(row["last_offset"]) + 1
                    assert 0 <= int(row["leader_epoch"]) <= partition.leader_epoch
            assert next_offset == partition.high_watermark


def staged_left(log_dir: LogDir) -> list[str]:
    return sorted(path.name for path in log_dir.path.glob("*/*.staged"))


def known(log_dir: LogDir, transactional_id: str) -> TransactionalIdImage:
    return MetadataStore.open(log_dir.path).image.transactional_ids[transactional_id]


class Failing(FileSystem):
    """Fails every call that `when` says to, with `error`; a short write writes half before."""

    def __init__(self, when: Callable[[str, str], bool], error: int = errno.ENOSPC, *, is_short: bool = False) -> None:
        self.when = when
        self.error = error
        self.is_short = is_short

    def _maybe_fail(self, call: str, path: Path | str) -> None:
        if self.when(call, str(path)):
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        if flags & os.O_CREAT:
            self._maybe_fail("open", path)
        return super().open(path, flags, mode)

    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        try:
            self._maybe_fail("write", _path_of(fd))
        except OSError:
            if self.is_short:
                super().pwrite_all(fd, bytes(data)[: len(bytes(data)) // 2], position)
            raise
        super().pwrite_all(fd, data, position)

    def copy_range(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        try:
            self._maybe_fail("copy", _path_of(fd))
        except OSError:
            if self.is_short:
                super().copy_range(source_fd, source_position, fd, position, length // 2)
            raise
        super().copy_range(source_fd, source_position, fd, position, length)

    def truncate(self, fd: int, length: int) -> None:
        self._maybe_fail("truncate", _path_of(fd))
        super().truncate(fd, length)

    def fsync(self, fd: int) -> None:
        self._maybe_fail("fsync", _path_of(fd))
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self._maybe_fail("fsync_dir", directory)
        super().fsync_dir(directory)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe_fail("rename", target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._maybe_fail("link", target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._maybe_fail("unlink", path)
        super().unlink(path)


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def failing_dir(log_dir: LogDir, fs: FileSystem) -> LogDir:
    return LogDir.open(log_dir.path, fs=fs)


# Once


def test_a_replayed_version_is_committed_twice(log_dir: LogDir) -> None:
    transaction = WriteTransaction("query", 7, "run-1")
    first = log_dir.commit_staged([stage(log_dir.path, "a")], transaction=transaction)
    again = log_dir.commit_staged([stage(log_dir.path, "b")], transaction=transaction)
    assert not first.is_duplicate
    assert (again.is_duplicate, again.commit_offset, again.partitions) == (True, first.commit_offset, ())
    older = log_dir.commit_staged([stage(log_dir.path, "c")], transaction=WriteTransaction("query", 6, "run-1"))
    assert (older.is_duplicate, older.commit_offset) == (True, None)
    assert written_by(log_dir) == ["a"]
    assert staged_left(log_dir) == []


def test_append_with_a_version_is_made_twice(log_dir: LogDir) -> None:
    table = pa.table({"value": ["x 0"]})
    results = [
        log_dir.append("orders", table, partition=0, transactional_id="app", transaction_version=version)
        for version in (0, 0, 1, 0, 1)
    ]
    assert [each.is_duplicate for each in results] == [False, True, False, True, True]
    assert written_by(log_dir) == ["x", "x"]
    assert log_dir.last_version("app") == 1
    assert log_dir.last_version("other") is None
    with pytest.raises(InvalidOptionError, match="transaction_version"):
        log_dir.append("orders", table, transactional_id="app")


def test_records_of_a_version_that_is_there_are_staged_for_nothing(log_dir: LogDir) -> None:
    log_dir.append("orders", pa.table({"value": ["x 0"]}), transactional_id="app", transaction_version=0)
    cannot_be_staged = pa.table({"no value": [1]})
    again = log_dir.append("orders", cannot_be_staged, transactional_id="app", transaction_version=0)
    assert again.is_duplicate


def test_a_version_without_records_is_forgotten(log_dir: LogDir) -> None:
    transaction = WriteTransaction("query", 0, "run-1")
    assert log_dir.commit_staged([], transaction=transaction).commit_offset is not None
    assert log_dir.commit_staged([stage(log_dir.path, "a")], transaction=transaction).is_duplicate
    assert written_by(log_dir) == []


def test_versions_of_one_id_hide_those_of_another(log_dir: LogDir) -> None:
    for name in ("one", "two"):
        assert not log_dir.commit_staged(
            [stage(log_dir.path, name)], transaction=WriteTransaction(name, 3, "run")
        ).is_duplicate
    assert written_by(log_dir) == ["one", "two"]
    assert known(log_dir, "one").producer_id != known(log_dir, "two").producer_id


@pytest.mark.parametrize(("name", "version"), [("", 0), ("app", -1), ("app", 1 << 63)])
def test_a_version_that_cannot_be_kept_is_taken(log_dir: LogDir, name: str, version: int) -> None:
    with pytest.raises(InvalidOptionError, match="version"):
        log_dir.append("orders", pa.table({"value": ["x"]}), transactional_id=name, transaction_version=version)


# Zombies


def test_a_zombie_writes_after_its_successor(log_dir: LogDir) -> None:
    log_dir.commit_staged([stage(log_dir.path, "a")], transaction=WriteTransaction("query", 0, "run-1"))
    log_dir.commit_staged([stage(log_dir.path, "b")], transaction=WriteTransaction("query", 1, "run-2"))
    zombie = stage(log_dir.path, "zombie")
    with pytest.raises(ProducerFencedError, match=r"run-1 of transactional id 'query' is fenced.*run-2.*epoch 1"):
        log_dir.commit_staged([zombie], transaction=WriteTransaction("query", 2, "run-1"))
    assert log_dir.commit_staged([zombie], transaction=WriteTransaction("query", 1, "run-1")).is_duplicate
    log_dir.commit_staged([stage(log_dir.path, "c")], transaction=WriteTransaction("query", 2, "run-2"))
    assert written_by(log_dir) == ["a", "b", "c"]
    found = known(log_dir, "query")
    assert (found.producer_epoch, found.incarnation, found.fenced) == (1, "run-2", ("run-1",))


def test_a_registered_writer_lets_an_earlier_one_commit(log_dir: LogDir) -> None:
    log_dir.init_transaction("app", "job-1")
    log_dir.init_transaction("app", "job-2")
    log_dir.init_transaction("app", "job-2")
    with pytest.raises(ProducerFencedError, match="job-1"):
        log_dir.commit_staged([stage(log_dir.path, "a")], transaction=WriteTransaction("app", 0, "job-1"))
    with pytest.raises(ProducerFencedError, match="job-1"):
        log_dir.init_transaction("app", "job-1")
    log_dir.commit_staged([stage(log_dir.path, "b")], transaction=WriteTransaction("app", 0, "job-2"))
    log_dir.init_transaction("app", "job-3")
    assert log_dir.last_version("app") == 0
    assert log_dir.commit_staged([], transaction=WriteTransaction("app", 0, "job-3")).is_duplicate
    assert written_by(log_dir) == ["b"]
    assert known(log_dir, "app").producer_epoch == 2


def test_a_used_up_producer_epoch_goes_on_below_zero(log_dir: LogDir) -> None:
    def last_epoch(_: object) -> list[object]:
        return [transactional_id_record("app", producer_id=0, producer_epoch=32766, incarnation="old")]

    store = MetadataStore.open(log_dir.path)
    log_dir.commit_staged([], transaction=WriteTransaction("first", 0, "x"))
    store.commit(last_epoch, operation="test")  # type: ignore[arg-type]
    log_dir.commit_staged([], transaction=WriteTransaction("app", 0, "new"))
    assert (known(log_dir, "app").producer_id, known(log_dir, "app").producer_epoch) == (1, 0)
    assert known(log_dir, "app").fenced == ("old",)


# Whole


def test_a_topic_gone_leaves_the_others_written(log_dir: LogDir) -> None:
    log_dir.create_topic("other", partitions=1)
    staged = [stage(log_dir.path, "a"), stage(log_dir.path, "a", topic_partition=TopicPartition("other", 0))]
    log_dir.delete_topic("other")
    with pytest.raises(UnknownTopicError, match="other"):
        log_dir.commit_staged(staged)
    assert written_by(log_dir) == []
    log_dir.create_topic("other", partitions=1)
    with pytest.raises(UnknownTopicError, match="is gone"):
        log_dir.commit_staged(staged)
    check_files(log_dir)
    log_dir.commit_staged(staged[:1])
    assert written_by(log_dir) == ["a"]


def test_a_failed_append_keeps_the_room_it_took(log_dir: LogDir) -> None:
    before = {path: path.stat().st_size for path in log_dir.path.glob("orders-*/*.log")}
    staged = [stage(log_dir.path, "a", 90, topic_partition=TopicPartition("orders", at)) for at in (0, 1)]
    broken = failing_dir(log_dir, Failing(lambda call, path: call == "copy" and "orders-1" in path))
    with pytest.raises(OSError, match="No space"):
        broken.commit_staged(staged)
    logs = list(log_dir.path.glob("orders-*/*.log"))
    assert sum(path.stat().st_size for path in logs) == sum(before.values())
    log_dir.commit_staged(staged)
    assert (written_by(log_dir), written_by(log_dir, partition=1)) == (["a"], ["a"])


def test_a_wide_write_opens_more_files_than_a_process_may(log_dir: LogDir) -> None:
    log_dir.create_topic("wide", partitions=150)
    places = [TopicPartition("wide", at) for at in range(150)]
    staged = [stage(log_dir.path, "a", topic_partition=place) for place in places]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 230, hard))
    try:
        log_dir.commit_staged(staged)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(written_by(log_dir, "wide", at) == ["a"] for at in (0, 63, 64, 149))
    check_files(log_dir)


def test_the_directory_of_a_deleted_topic_takes_the_first_write(log_dir: LogDir) -> None:
    directory = log_dir.topic("orders").partitions[0].directory
    log_dir.commit_staged([stage(log_dir.path, "old")])
    shutil.copytree(directory, log_dir.path / "kept")
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=2)
    shutil.rmtree(directory)
    (log_dir.path / "kept").rename(directory)
    with pytest.raises(UnknownTopicError, match="is gone"):
        log_dir.commit_staged([stage(log_dir.path, "a")])
    log_dir.commit_staged([stage(log_dir.path, "b")])
    assert written_by(log_dir) == ["b"]
    log_dir.ensure_topic("orders")
    assert written_by(log_dir) == ["b"]


# Again after a failure


@pytest.mark.parametrize(
    ("before", "batches"), [(0, COPIED), (0, ADOPTED), (COPIED, ADOPTED), (ADOPTED, COPIED), (COPIED, ROLLED)]
)
def test_a_call_that_fails_loses_or_doubles_the_write(
    log_dir: LogDir, tmp_path: Path, before: int, batches: int
) -> None:
    """Each call of a commit fails in turn, half done: the same files can be committed then, at another offset too."""
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
        failing = LogDir.open(root, fs=Failing(lambda *_, at=point, calls=calls: next(calls) == at, is_short=True))
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
        other.commit_staged([stage(root, "last", ADOPTED)])
        assert written_by(other) == [*expected, "last"]
        check_files(other)
        shutil.rmtree(root)
        if next(calls) <= point:
            assert point > 15
            return


def test_a_committed_file_that_was_not_removed_is_patched_by_a_retry(log_dir: LogDir) -> None:
    staged = stage(log_dir.path, "a", ADOPTED)
    inode = staged.path(log_dir.path).stat().st_ino
    stuck = failing_dir(log_dir, Failing(lambda call, path: call == "unlink" and path.endswith(".staged")))
    assert stuck.commit_staged([staged]).partitions[0].records == ADOPTED * 5
    directory = log_dir.path / str(ORDERS)
    segment = directory / f"{0:020d}.log"
    assert staged.path(log_dir.path).stat().st_ino == segment.stat().st_ino == inode
    before = segment.read_bytes()
    with pytest.raises(UnknownTopicError, match="committed before"):
        log_dir.commit_staged([staged, stage(log_dir.path, "b")])
    assert not staged.path(log_dir.path).exists()
    log_dir.commit_staged([stage(log_dir.path, "c", ADOPTED)])
    assert segment.read_bytes() == before
    assert written_by(log_dir) == ["a", "c"]
    check_files(log_dir)


def test_a_file_linked_elsewhere_is_patched(log_dir: LogDir, tmp_path: Path) -> None:
    staged = stage(log_dir.path, "a", ADOPTED)
    backup = tmp_path / "backup"
    os.link(staged.path(log_dir.path), backup)
    before = backup.read_bytes()
    log_dir.commit_staged([stage(log_dir.path, "first")])
    log_dir.commit_staged([staged])
    assert backup.read_bytes() == before
    assert written_by(log_dir) == ["first", "a"]


def test_a_commit_of_unknown_state_is_made_twice(log_dir: LogDir) -> None:
    is_broken = [True]
    fs = Failing(lambda call, path: is_broken[0] and call == "fsync_dir" and path.endswith(METADATA_DIR), errno.EIO)
    broken = failing_dir(log_dir, fs)
    staged = [stage(log_dir.path, "a"), stage(log_dir.path, "a", ADOPTED, topic_partition=OTHER)]
    with pytest.raises(CommitStateUnknownError):
        broken.commit_staged(staged)
    assert len(staged_left(log_dir)) == 2
    is_broken[0] = False
    assert broken.commit_staged(staged).is_duplicate
    assert (written_by(log_dir), written_by(log_dir, partition=1)) == (["a"], ["a"])
    assert staged_left(log_dir) == []
    broken.commit_staged([stage(log_dir.path, "b"), stage(log_dir.path, "b", topic_partition=OTHER)])
    check_files(log_dir)


def test_a_link_that_fails_and_is_not_there_loses_the_write(log_dir: LogDir) -> None:
    left = [3]

    def fails(call: str, path: str) -> bool:
        if call == "link" and METADATA_DIR in path and left[0]:
            left[0] -= 1
            return True
        return False

    failing_dir(log_dir, Failing(fails, errno.EIO)).commit_staged([stage(log_dir.path, "a")])
    assert written_by(log_dir) == ["a"]


@contextlib.contextmanager
def no_lock(*_: object, **__: object) -> Iterator[None]:
    yield


def test_without_the_lock_two_commits_of_one_state_are_both_there(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_commit, "root_lock", no_lock)
    staged = stage(log_dir.path, "late", ADOPTED)
    other = LogDir.open(log_dir.path)
    publish = MetadataStore.commit

    def late(self: MetadataStore, *args: Any, **kwargs: Any) -> CommitOutcome:
        monkeypatch.setattr(MetadataStore, "commit", publish)
        other.commit_staged([stage(log_dir.path, "early", ADOPTED)])
        return publish(self, *args, **kwargs)

    monkeypatch.setattr(MetadataStore, "commit", late)
    with pytest.raises(CommitConflictError, match="orders-0 was changed"):
        log_dir.commit_staged([staged])
    assert written_by(log_dir) == ["early"]
    log_dir.commit_staged([staged])
    assert written_by(log_dir) == ["early", "late"]
    check_files(log_dir)


def test_without_the_lock_a_transaction_commits_beside_its_twin(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_commit, "root_lock", no_lock)
    twin = LogDir.open(log_dir.path)
    publish = MetadataStore.commit
    transaction = WriteTransaction("query", 0, "run")
    staged = stage(log_dir.path, "a")

    def late(self: MetadataStore, *args: Any, **kwargs: Any) -> CommitOutcome:
        monkeypatch.setattr(MetadataStore, "commit", publish)
        twin.commit_staged([stage(log_dir.path, "a", topic_partition=OTHER)], transaction=transaction)
        return publish(self, *args, **kwargs)

    monkeypatch.setattr(MetadataStore, "commit", late)
    with pytest.raises(CommitConflictError, match="'query' was used"):
        log_dir.commit_staged([staged], transaction=transaction)
    assert log_dir.commit_staged([staged], transaction=transaction).is_duplicate
    assert (written_by(log_dir), written_by(log_dir, partition=1)) == ([], ["a"])


# Recovery


def leave_tail(log_dir: LogDir, batches: int) -> None:
    """What a writer leaves that was killed just before its publish."""
    copy = log_dir.path.with_name(uuid.uuid4().hex)
    shutil.copytree(log_dir.path, copy)
    killed = LogDir.open(copy)
    killed.commit_staged([stage(copy, "killed", batches)])
    for path in (copy / str(ORDERS)).iterdir():
        shutil.copy(path, log_dir.path / str(ORDERS))
    shutil.rmtree(copy)


@pytest.mark.parametrize("batches", [COPIED, ADOPTED, 90])
def test_recovery_goes_unnoticed_in_leader_epochs(log_dir: LogDir, batches: int) -> None:
    log_dir.commit_staged([stage(log_dir.path, "a")])
    for crash in range(1, 4):
        leave_tail(log_dir, batches)
        if crash > 1:
            leave_tail(log_dir, 1)
        log_dir.commit_staged([stage(log_dir.path, "b")])
        log_dir.commit_staged([stage(log_dir.path, "c")])
        assert log_dir.partition("orders", 0).leader_epoch == crash
    lines = (log_dir.path / str(ORDERS) / LEADER_EPOCH_CHECKPOINT).read_text().splitlines()
    assert lines == ["0", "4", "0 0", "1 10", "2 30", "3 50"]
    check_files(log_dir)
    assert written_by(log_dir) == ["a", *["b", "c"] * 3]
    assert log_dir.partition("orders", 1).leader_epoch == 0


def test_an_epoch_of_a_writer_killed_in_recovery_stays(log_dir: LogDir) -> None:
    log_dir.commit_staged([stage(log_dir.path, "a")])
    leave_tail(log_dir, 2)
    broken = failing_dir(
        log_dir, Failing(lambda call, path: call == "open" and path.endswith(".tmp") and METADATA_DIR in path)
    )
    with pytest.raises(OSError, match="No space"):
        broken.commit_staged([stage(log_dir.path, "b")])
    checkpoint = log_dir.path / str(ORDERS) / LEADER_EPOCH_CHECKPOINT
    assert checkpoint.read_text().splitlines() == ["0", "1", "0 0"]
    checkpoint.write_text("0\n2\n0 0\n1 10\n")
    log_dir.commit_staged([stage(log_dir.path, "c")])
    assert checkpoint.read_text().splitlines() == ["0", "1", "0 0"]
    assert log_dir.partition("orders", 0).leader_epoch == 0


# Flush


class CountingSyncs(FileSystem):
    def __init__(self) -> None:
        self.count = 0

    def fsync(self, fd: int) -> None:
        self.count += 1
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self.count += 1
        super().fsync_dir(directory)


def test_flush_os_waits_for_the_disk(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = CountingSyncs()
    counted = LogDir.open(log_dir.path, fs=fs)
    syncs: list[int] = []
    monkeypatch.setattr(os, "sync", lambda: syncs.append(1))
    for version in range(3):
        counted.commit_staged(
            [stage(log_dir.path, "a", 90)], transaction=WriteTransaction("q", version, "r"), flush="os"
        )
        counted.append("orders", pa.table({"value": ["b 0"]}), partition=0, flush="os")
    assert (fs.count, syncs) == (0, [])
    assert (log_dir.path / UNFLUSHED_MARKER).exists()
    assert counted.partition("orders", 0).high_watermark == 3 * 451
    with pytest.raises(InvalidOptionError, match="fsync, os"):
        counted.commit_staged([], flush="never")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda log_dir: log_dir.commit_staged([stage(log_dir.path, "b")]),
        lambda log_dir: log_dir.create_topic("other"),
        lambda log_dir: log_dir.init_transaction("t", "r"),
        lambda log_dir: log_dir.alter_broker_configs(add={"num.partitions": "2"}),
    ],
    ids=["write", "topic", "transaction", "configs"],
)
def test_a_durable_commit_follows_one_that_is_not(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch, change: Callable[[LogDir], object]
) -> None:
    """A power failure would leave a hole in the commit log."""
    syncs: list[int] = []
    monkeypatch.setattr(os, "sync", lambda: syncs.append(1))
    log_dir.commit_staged([stage(log_dir.path, "a")], flush="os")
    assert syncs == []
    change(log_dir)
    log_dir.commit_staged([stage(log_dir.path, "c")])
    assert syncs == [1]
    assert not (log_dir.path / UNFLUSHED_MARKER).exists()


# Abandoned files


def age(path: Path, at_ms: int) -> None:
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def test_abandoned_files_stay_or_those_of_a_live_write_go(tmp_path: Path) -> None:
    now = [T0]
    log_dir = LogDir.create(tmp_path / "log", clock=lambda: now[0])
    log_dir.create_topic("orders", partitions=2)
    log_dir.create_topic("other", partitions=1)
    log_dir.alter_broker_configs(add={"staging.retention.ms": "1000"})
    places = [ORDERS, OTHER, TopicPartition("other", 0)]
    dead = [
        stage(log_dir.path, "dead", topic_partition=place, task=at).path(log_dir.path)
        for at, place in enumerate(places)
    ]
    live = [
        stage(log_dir.path, "live", topic_partition=place, task=at).path(log_dir.path)
        for at, place in enumerate(places)
    ]
    for path in (*dead, *live):
        age(path, T0)
    now[0] = T0 + 999
    log_dir.commit_staged([stage(log_dir.path, "a")])
    assert len(staged_left(log_dir)) == 6
    age(live[2], T0 + 1)
    now[0] = T0 + 1000
    log_dir.commit_staged([stage(log_dir.path, "b")])
    assert staged_left(log_dir) == ["live-0.staged", "live-1.staged", "live-2.staged"]
    assert {path.stat().st_mtime_ns for path in live} == {(T0 + 1) * 1_000_000}
    now[0] = T0 + 1001
    log_dir.commit_staged([stage(log_dir.path, "c")])
    assert staged_left(log_dir) == []
    assert written_by(log_dir) == ["a", "b", "c"]


def test_clean_up_fails_the_commit(log_dir: LogDir) -> None:
    log_dir.alter_broker_configs(add={"staging.retention.ms": "0"})
    stage(log_dir.path, "dead")
    stuck = failing_dir(log_dir, Failing(lambda call, path: call == "unlink" and path.endswith(".staged")))
    stuck.commit_staged([stage(log_dir.path, "a")])
    assert written_by(log_dir) == ["a"]
