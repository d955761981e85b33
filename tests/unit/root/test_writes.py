"""Versions of transactional ids are committed once, by the newest incarnation, also beside a twin."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from builders.root_places import RootPlace
from builders.staged_writes import (
    OTHER,
    SPLICED,
    check_files,
    known,
    make_log_dir,
    stage,
    stage_in,
    staged_left,
    written_by,
)

from pyspark_kafkalog.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    LowerVersionError,
    ProducerFencedError,
)
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import TransactionalIdRecord
from pyspark_kafkalog.metadata.store import CommitOutcome, MetadataStore
from pyspark_kafkalog.root.commit.open_logs import FileCommits
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction, expired_ids
from pyspark_kafkalog.spark.write.plan import MicroBatch
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.units import DAY_MS


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    return make_log_dir(root_place)


# Once


def test_replayed_version_is_committed_once(log_dir: LogDir) -> None:
    transaction = WriteTransaction("query", 7, "run-1")
    first = log_dir.commit_staged([stage_in(log_dir, "a")], transaction=transaction)
    again = log_dir.commit_staged([stage_in(log_dir, "b")], transaction=transaction)
    assert not first.is_duplicate
    assert (again.is_duplicate, again.commit_offset, again.partitions) == (True, first.commit_offset, ())
    assert written_by(log_dir) == ["a"]
    assert staged_left(log_dir) == []


def test_skipped_replay_is_logged_in_one_line(log_dir: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    table = pa.table({"value": ["x 0"]})
    first = log_dir.append("orders", table, transactional_id="app", transaction_version=7)
    assert not caplog.messages
    log_dir.append("orders", table, transactional_id="app", transaction_version=7)
    assert caplog.messages == [
        f"version 7 of transactional id 'app' was committed at {committed_at(log_dir, first)} (commit "
        f"{first.commit_offset}): this write is a replay and was skipped"
    ]


def test_lower_version_fails_and_names_the_last_committed_version_and_its_time(log_dir: LogDir) -> None:
    last = log_dir.commit_staged([stage_in(log_dir, "a")], transaction=WriteTransaction("app", 7, "run-1"))
    log_dir.init_transaction("app", "run-2")  # later than the commit
    expected = r"version 6 of transactional id 'app' is below the last committed version 7, committed at "
    expected += rf"{re.escape(committed_at(log_dir, last))} \(commit {last.commit_offset}\)"
    lower = stage_in(log_dir, "b")
    with pytest.raises(LowerVersionError, match=expected):
        log_dir.commit_staged([lower], transaction=WriteTransaction("app", 6, "run-2"))
    with pytest.raises(LowerVersionError, match=expected):
        log_dir.append("orders", pa.table({"value": ["x 0"]}), transactional_id="app", transaction_version=6)
    with pytest.raises(LowerVersionError, match=expected):
        log_dir.has_committed(WriteTransaction("app", 6, "run-2"))
    assert written_by(log_dir) == ["a"]
    assert known(log_dir, "app").incarnation == "run-2"


def test_lower_version_is_skipped_if_the_writer_says_so(log_dir: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    log_dir.commit_staged([stage_in(log_dir, "a")], transaction=WriteTransaction("app", 7, "run-1"))
    lower = log_dir.append(
        "orders", pa.table({"value": ["b 0"]}), transactional_id="app", transaction_version=6, lower_version="skip"
    )
    assert (lower.is_duplicate, lower.commit_offset) == (True, None)
    assert [message for message in caplog.messages if "below the last committed version 7" in message]
    assert written_by(log_dir) == ["a"]
    with pytest.raises(InvalidOptionError, match="lower_version is 'write': expected one of fail, skip"):
        WriteTransaction("app", 8, "run-1", "write")  # type: ignore[arg-type]


def test_fenced_writer_of_a_lower_version_is_told_that_it_is_fenced(log_dir: LogDir) -> None:
    log_dir.commit_staged([stage_in(log_dir, "a")], transaction=WriteTransaction("query", 1, "run-1"))
    log_dir.commit_staged([stage_in(log_dir, "b")], transaction=WriteTransaction("query", 3, "run-2"))
    with pytest.raises(ProducerFencedError, match=r"incarnation run-1 .* is fenced"):
        log_dir.commit_staged([stage_in(log_dir, "c")], transaction=WriteTransaction("query", 2, "run-1"))
    assert written_by(log_dir) == ["a", "b"]


def committed_at(log_dir: LogDir, result: CommitResult) -> str:
    """The time of the commit, as messages show it."""
    (entry,) = (each for each in log_dir.history() if each.offset == result.commit_offset)
    return datetime.fromtimestamp(entry.timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def test_repeated_append_with_version_is_committed_once(log_dir: LogDir) -> None:
    table = pa.table({"value": ["x 0"]})
    results = [
        log_dir.append("orders", table, partition=0, transactional_id="app", transaction_version=version)
        for version in (0, 0, 1, 1)
    ]
    assert [each.is_duplicate for each in results] == [False, True, False, True]
    assert written_by(log_dir) == ["x", "x"]
    assert log_dir.last_version("app") == 1
    assert log_dir.last_version("other") is None
    with pytest.raises(InvalidOptionError, match="transaction_version"):
        log_dir.append("orders", table, transactional_id="app")


def test_records_of_committed_version_are_not_staged(log_dir: LogDir) -> None:
    log_dir.append("orders", pa.table({"value": ["x 0"]}), transactional_id="app", transaction_version=0)
    cannot_be_staged = pa.table({"no value": [1]})
    again = log_dir.append("orders", cannot_be_staged, transactional_id="app", transaction_version=0)
    assert again.is_duplicate


def test_version_without_records_is_committed(log_dir: LogDir) -> None:
    transaction = WriteTransaction("query", 0, "run-1")
    assert log_dir.commit_staged([], transaction=transaction).commit_offset is not None
    assert log_dir.commit_staged([stage_in(log_dir, "a")], transaction=transaction).is_duplicate
    assert written_by(log_dir) == []


def test_versions_of_transactional_ids_are_independent(log_dir: LogDir) -> None:
    for name in ("one", "two"):
        assert not log_dir.commit_staged(
            [stage_in(log_dir, name)], transaction=WriteTransaction(name, 3, "run")
        ).is_duplicate
    assert written_by(log_dir) == ["one", "two"]
    assert known(log_dir, "one").producer_id != known(log_dir, "two").producer_id


@pytest.mark.parametrize(("name", "version"), [("", 0), ("app", -1), ("app", 1 << 63)])
def test_invalid_transactional_id_or_version_is_rejected(log_dir: LogDir, name: str, version: int) -> None:
    with pytest.raises(InvalidOptionError, match="version"):
        log_dir.append("orders", pa.table({"value": ["x"]}), transactional_id=name, transaction_version=version)


# Zombies


def test_zombie_is_fenced_by_its_successor(log_dir: LogDir) -> None:
    log_dir.commit_staged([stage_in(log_dir, "a")], transaction=WriteTransaction("query", 0, "run-1"))
    log_dir.commit_staged([stage_in(log_dir, "b")], transaction=WriteTransaction("query", 1, "run-2"))
    zombie = stage_in(log_dir, "zombie")
    with pytest.raises(ProducerFencedError, match=r"run-1 of transactional id 'query' is fenced.*run-2.*epoch 1"):
        log_dir.commit_staged([zombie], transaction=WriteTransaction("query", 2, "run-1"))
    assert log_dir.commit_staged([zombie], transaction=WriteTransaction("query", 1, "run-1")).is_duplicate
    log_dir.commit_staged([stage_in(log_dir, "c")], transaction=WriteTransaction("query", 2, "run-2"))
    assert written_by(log_dir) == ["a", "b", "c"]
    found = known(log_dir, "query")
    assert (found.producer_epoch, found.incarnation, found.fenced) == (1, "run-2", ("run-1",))


def test_init_transaction_fences_earlier_incarnation(log_dir: LogDir) -> None:
    log_dir.init_transaction("app", "job-1")
    log_dir.init_transaction("app", "job-2")
    log_dir.init_transaction("app", "job-2")
    with pytest.raises(ProducerFencedError, match="job-1"):
        log_dir.commit_staged([stage_in(log_dir, "a")], transaction=WriteTransaction("app", 0, "job-1"))
    with pytest.raises(ProducerFencedError, match="job-1"):
        log_dir.init_transaction("app", "job-1")
    log_dir.commit_staged([stage_in(log_dir, "b")], transaction=WriteTransaction("app", 0, "job-2"))
    log_dir.init_transaction("app", "job-3")
    assert log_dir.last_version("app") == 0
    assert log_dir.commit_staged([], transaction=WriteTransaction("app", 0, "job-3")).is_duplicate
    assert written_by(log_dir) == ["b"]
    assert known(log_dir, "app").producer_epoch == 2


def test_exhausted_producer_epoch_gets_new_producer_id(log_dir: LogDir) -> None:
    def last_epoch(_: object) -> list[object]:
        return [TransactionalIdRecord(transactional_id="app", producer_id=0, producer_epoch=32766, incarnation="old")]

    assert isinstance(log_dir.root, NativeRoot)
    store = log_dir.root.store
    log_dir.commit_staged([], transaction=WriteTransaction("first", 0, "x"))
    store.commit(last_epoch, operation="test")  # type: ignore[arg-type]
    log_dir.commit_staged([], transaction=WriteTransaction("app", 0, "new"))
    assert (known(log_dir, "app").producer_id, known(log_dir, "app").producer_epoch) == (1, 0)
    assert known(log_dir, "app").fenced == ("old",)


# Twins


@contextlib.contextmanager
def no_lock(*_: object, **__: object) -> Iterator[None]:
    yield


@pytest.mark.file_roots
def test_without_lock_second_commit_on_same_state_conflicts(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileCommits, "locked", no_lock)
    staged = stage(log_dir.path, "late", SPLICED)
    other = LogDir.open(log_dir.path)
    publish = MetadataStore.make

    def late(self: MetadataStore, *args: Any, **kwargs: Any) -> CommitOutcome:
        monkeypatch.setattr(MetadataStore, "make", publish)
        other.commit_staged([stage(log_dir.path, "early", SPLICED)])
        return publish(self, *args, **kwargs)

    monkeypatch.setattr(MetadataStore, "make", late)
    with pytest.raises(CommitConflictError, match="orders-0: another writer changed"):
        log_dir.commit_staged([staged])
    assert written_by(log_dir) == ["early"]
    log_dir.commit_staged([staged])
    assert written_by(log_dir) == ["early", "late"]
    check_files(log_dir)


@pytest.mark.file_roots
def test_without_lock_transaction_conflicts_with_its_twin(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileCommits, "locked", no_lock)
    twin = LogDir.open(log_dir.path)
    publish = MetadataStore.make
    transaction = WriteTransaction("query", 0, "run")
    staged = stage(log_dir.path, "a")

    def late(self: MetadataStore, *args: Any, **kwargs: Any) -> CommitOutcome:
        monkeypatch.setattr(MetadataStore, "make", publish)
        twin.commit_staged([stage(log_dir.path, "a", topic_partition=OTHER)], transaction=transaction)
        return publish(self, *args, **kwargs)

    monkeypatch.setattr(MetadataStore, "make", late)
    with pytest.raises(CommitConflictError, match="'query': another writer used"):
        log_dir.commit_staged([staged], transaction=transaction)
    assert log_dir.commit_staged([staged], transaction=transaction).is_duplicate
    assert (written_by(log_dir), written_by(log_dir, partition=1)) == ([], ["a"])


# Ids that are not used any more


def _retain(log_dir: LogDir, *, days: float) -> None:
    apply_retention(log_dir.root, now_ms=time_ms() + int(days * DAY_MS))


def test_id_is_forgotten_when_it_was_not_used_for_long_and_refuses_lower_versions_until_then(log_dir: LogDir) -> None:
    table = pa.table({"value": ["x"]})
    log_dir.append("orders", table, transactional_id="app", transaction_version=7)
    _retain(log_dir, days=179)
    with pytest.raises(LowerVersionError):
        log_dir.append("orders", table, transactional_id="app", transaction_version=6)
    assert log_dir.append("orders", table, transactional_id="app", transaction_version=7).is_duplicate
    _retain(log_dir, days=181)
    assert log_dir.last_version("app") is None
    assert not log_dir.append("orders", table, transactional_id="app", transaction_version=6).is_duplicate
    assert log_dir.last_version("app") == 6


def test_forgotten_ids_stay_forgotten_in_snapshots_and_of_other_processes(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.root.native._IDS_A_COMMIT", 2)
    for number in range(5):
        log_dir.init_transaction(f"query-{number}", "run")
    _retain(log_dir, days=181)
    assert not log_dir.root.native().store.image.transactional_ids
    assert [each.operation for each in log_dir.history()].count("expire writers' ids") == 3
    forget_images()
    assert not LogDir.open(log_dir.root.path).root.native().store.image.transactional_ids


def test_expired_ids_are_looked_for_once_a_commit(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    images: list[int] = []

    def found(image: MetadataImage, *, unused_since_ms: int, most: int) -> list[TransactionalIdRecord]:
        images.append(image.next_offset)
        return expired_ids(image, unused_since_ms=unused_since_ms, most=most)

    monkeypatch.setattr("pyspark_kafkalog.root.native.expired_ids", found)
    monkeypatch.setattr("pyspark_kafkalog.root.native._IDS_A_COMMIT", 2)
    for number in range(5):
        log_dir.init_transaction(f"query-{number}", "run")
    assert log_dir.root.native().expire_transactional_ids(now_ms=time_ms() + 181 * DAY_MS) == 5
    assert len(images) == len(set(images)) == 4


def test_ids_are_kept_for_ever_and_in_a_dry_run(log_dir: LogDir) -> None:
    log_dir.init_transaction("query", "run")
    apply_retention(log_dir.root, now_ms=time_ms() + 181 * DAY_MS, dry_run=True)
    assert log_dir.root.has_transactional_id("query")
    log_dir.alter_broker_configs(add={"writer.id.expiration.ms": "-1"})
    _retain(log_dir, days=10_000)
    assert log_dir.root.has_transactional_id("query")


def test_query_that_was_forgotten_fails_before_it_writes(log_dir: LogDir) -> None:
    log_dir.init_transaction("query", "run")
    batch = MicroBatch("query", "run", 12)
    batch.check_root(log_dir.root)
    _retain(log_dir, days=181)
    with pytest.raises(LogDirError, match=r"nothing for writer\.id\.expiration\.ms.*init_transaction\('query'"):
        batch.check_root(log_dir.root)
