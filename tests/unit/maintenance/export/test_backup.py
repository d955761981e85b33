"""A backup by `export_to` has every kind of state as of one commit, and can replace the original."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import adopt_log_dir, open_log_dir
from builders.metadata_roots import forget_images
from builders.verify_roots import check_again_at_once, findings_in
from fakes.stopping_filesystem import Killed, StoppingFileSystem, WatchedFileSystem
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError, ProducerFencedError
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.export.export import export_to
from pyspark_kafkalog.maintenance.jobs.partition import partition_lock
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.root.bootstrap import is_vacant
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import SWAP_SUFFIX, TopicPartition

NOW_MS = 1_795_400_000_000
USERS = TopicPartition("users", 0)
ORDERS = TopicPartition("orders", 1)
ACL = Acl(
    ResourceType.TOPIC, "ord", PatternType.PREFIXED, "User:ann", "*", AclOperation.READ, PermissionType.ALLOW
)  # fmt: skip
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "100"}


def clock() -> int:
    return NOW_MS


def values(rows: int, text: str, at_ms: int = NOW_MS) -> pa.Table:
    stamps = pa.array([at_ms] * rows, pa.timestamp("ms"))
    return pa.table(
        {"key": [f"k{n % 4}" for n in range(rows)], "value": [f"{text} {n}" for n in range(rows)], "timestamp": stamps}
    )


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogDir:
    """An adopted broker's directory, with transactions committed, aborted and open, and topics of our own."""
    check_again_at_once(monkeypatch)
    root = tmp_path / "root"
    shutil.copytree(FIXTURES / "transactions", root, ignore=shutil.ignore_patterns("expected"))
    log_dir = adopt_log_dir(root, create_missing=True, clock=clock)
    log_dir.alter_broker_configs(add={"log.retention.ms": "86400000", "offsets.topic.num.partitions": "2"})
    log_dir.create_topic("orders", partitions=2, configs=SMALL)
    log_dir.create_topic("users", partitions=1, configs={**SMALL, "cleanup.policy": "compact"})
    log_dir.alter_topic("transactions", add={"retention.ms": "-1"})
    log_dir.create_topic("gone", partitions=1)
    log_dir.append("gone", values(3, "gone"))
    log_dir.delete_topic("gone")
    for number in range(20):
        log_dir.append("orders", values(10, f"order {number}"), partition=1)
        log_dir.append("users", values(10, f"user {number}", at_ms=1_000))
    clean_partition(log_dir.root, "users", 0)
    delete_records(log_dir.root, {ORDERS: 47})
    apply_retention(log_dir.root)
    log_dir.access_control().add([ACL])
    log_dir.group("readers").commit({("orders", 1): 60}, "note")
    log_dir.append("orders", values(2, "nightly"), partition=0, transactional_id="nightly", transaction_version=7)
    log_dir.init_transaction("query", "run-1")
    log_dir.init_transaction("query", "run-2")
    log_dir.commit_staged([], transaction=WriteTransaction("query", 12, "run-2"))
    (root / "orders-1" / ("f" * 32 + "-0.staged")).write_bytes(b"left by a writer that was killed")
    log_dir.refresh()
    return log_dir


def rows(log_dir: LogDir) -> dict[tuple[str, str], list[dict[str, object]]]:
    return {
        (topic, isolation): log_dir.read(topic, isolation=isolation).to_pylist()  # type: ignore[arg-type]
        for topic in log_dir.topics()
        for isolation in ("read_uncommitted", "read_committed")
    }


def restored(original: LogDir, target: Path, **options: bool) -> LogDir:
    export_to(original.root.native(), target, **options)
    forget_images()
    return open_log_dir(target, clock=clock)


@pytest.mark.parametrize("link", [True, False])
def test_restored_copy_holds_every_kind_of_state(original: LogDir, tmp_path: Path, link: bool) -> None:
    copy = restored(original, tmp_path / "copy", link=link)
    before, after = original.root.native().store.image, copy.root.native().store.image
    assert rows(copy) == rows(original)
    assert len(rows(copy)["transactions", "read_committed"]) < len(rows(copy)["transactions", "read_uncommitted"])
    # topics with ids, configurations, leader epochs, log starts, last producers and open transactions
    assert after.topics == before.topics
    assert "gone" not in after.topics
    ids = read_meta_properties(copy.path / "meta.properties")
    assert ids == read_meta_properties(original.path / "meta.properties")
    assert ids.cluster_id
    assert ids.directory_id
    assert copy.partition("orders", 1).log_start_offset == 47
    assert copy.last_stable_offset("transactions", 0) == original.last_stable_offset("transactions", 0)
    for epochs in original.path.glob("*-[0-9]/leader-epoch-checkpoint"):
        assert (copy.path / epochs.parent.name / epochs.name).read_text() == epochs.read_text()
    # broker-level settings, access control, transactional ids, producer ids, groups
    assert copy.broker_configs() == original.broker_configs()
    assert copy.broker_configs()["log.retention.ms"] == "86400000"
    assert copy.access_control().entries() == [ACL]
    assert after.transactional_ids == before.transactional_ids
    assert after.transactional_ids["query"].fenced == ("run-1",)
    assert after.next_producer_id == before.next_producer_id
    assert copy.group("readers").fetch() == original.group("readers").fetch()
    # what the cleaner has done, the broker's own metadata log; no leftovers
    cleaned = read_offset_checkpoint(copy.path / CLEANER_OFFSET_CHECKPOINT)
    assert cleaned[USERS] == read_offset_checkpoint(original.path / CLEANER_OFFSET_CHECKPOINT)[USERS] > 0
    assert not list(copy.path.rglob("*.staged"))
    assert not list(copy.path.glob("gone-*"))
    assert findings_in(copy.path) == []
    assert not list(original.path.glob("*-exporting-stray"))
    assert list(copy.history()) == []


def test_restored_copy_knows_duplicates_and_fences_zombies(original: LogDir, tmp_path: Path) -> None:
    copy = restored(original, tmp_path / "copy")
    table = values(2, "nightly")
    again = copy.append("orders", table, partition=0, transactional_id="nightly", transaction_version=7)
    assert again.is_duplicate
    assert not copy.append("orders", table, transactional_id="nightly", transaction_version=8).is_duplicate
    with pytest.raises(ProducerFencedError):
        copy.commit_staged([], transaction=WriteTransaction("query", 13, "run-1"))
    assert copy.commit_staged([], transaction=WriteTransaction("query", 12, "run-2")).is_duplicate
    assert not copy.commit_staged([], transaction=WriteTransaction("query", 13, "run-2")).is_duplicate
    assert findings_in(copy.path) == []


def test_restored_compacted_topic_is_kept_by_retention_and_cleaned(original: LogDir, tmp_path: Path) -> None:
    copy = restored(original, tmp_path / "copy")
    before = copy.read("users").to_pylist()
    apply_retention(copy.root)
    copy.refresh()
    assert copy.read("users").to_pylist() == before
    for number in range(20):
        copy.append("users", values(10, f"later {number}"))
    clean_partition(copy.root, "users", 0)
    assert copy.read("users").num_rows < len(before) + 200
    assert findings_in(copy.path) == []


def test_copy_is_of_one_commit_beside_writers_and_maintenance(original: LogDir, tmp_path: Path) -> None:
    """Writes and maintenance replace and remove files between the copied commit and the copying."""
    expected, image = rows(original), original.root.native().store.image
    other = open_log_dir(original.path, clock=clock)
    is_done: list[bool] = []

    def meddle() -> None:
        if is_done or not (tmp_path / "copy" / "orders-0").exists():
            return
        is_done.append(True)
        for number in range(30):
            other.append("orders", values(10, f"later {number}"), partition=1)
            other.append("users", values(10, f"later {number}"))
        other.alter_topic("orders", add={"internal.segment.bytes": "100000"})
        other.alter_topic("users", add={"internal.segment.bytes": "100000"})
        clean_partition(other.root, "users", 0)
        merge_segments(other.root)
        delete_records(other.root, {ORDERS: 200})
        apply_retention(other.root)
        other.delete_topic("transactions")

    watching = open_log_dir(original.path, clock=clock, fs=WatchedFileSystem(meddle))
    export_to(watching.root.native(), tmp_path / "copy")
    assert is_done
    forget_images()
    copy = open_log_dir(tmp_path / "copy", clock=clock)
    assert rows(copy) == expected
    assert copy.root.native().store.image.topics == image.topics
    assert findings_in(copy.path) == []
    assert "transactions" not in other.topics()


@pytest.mark.slow
def test_killed_copy_is_rejected_and_completed_by_next_export(original: LogDir, tmp_path: Path) -> None:
    target, expected = tmp_path / "copy", rows(original)
    counting = StoppingFileSystem(10**9)
    export_to(open_log_dir(original.path, clock=clock, fs=counting).root.native(), tmp_path / "whole")
    unfinished = 0
    for stops_at in range(4, counting.changes - 2, 29):
        killed = open_log_dir(original.path, clock=clock, fs=StoppingFileSystem(stops_at))
        with pytest.raises(Killed):
            export_to(killed.root.native(), target)
        forget_images()
        if is_vacant(target):  # killed before the first file
            continue
        unfinished += 1
        for use in (LogDir.open, LogDir.open_or_create, LogDir.create, LogDir.adopt):
            with pytest.raises(LogDirError, match="has not finished: run the same export again, or remove it"):
                use(target)
    assert unfinished > 5
    assert rows(restored(original, target)) == expected
    assert findings_in(target) == []
    assert rows(original) == expected
    with pytest.raises(LogDirError, match="name another"):
        export_to(original.root.native(), target)


@pytest.mark.parametrize(
    "foreign", ["letter.txt", "data/x", "orders-0/notes", "orders-0/more/x", "__cluster_metadata-0/x"]
)
def test_export_removes_nothing_that_no_export_has_written(original: LogDir, tmp_path: Path, foreign: str) -> None:
    target = tmp_path / "copy"
    kept = target / foreign
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    (target / "__cluster_metadata-0").mkdir(exist_ok=True)
    (target / "__cluster_metadata-0" / "kafkalog-format").write_bytes(b"unfinished copy\n")
    with pytest.raises(LogDirError, match="is not of an unfinished copy"):
        export_to(original.root.native(), target)
    assert kept.read_text() == "mine"


def test_links_of_killed_export_are_removed_by_next_export(original: LogDir, tmp_path: Path) -> None:
    abandoned, used = (original.path / f"__cluster_metadata-0.{name * 32}-exporting-stray" for name in "ab")
    for directory in (abandoned, used):
        (directory / "orders-1").mkdir(parents=True)
        (directory / "orders-1" / "00000000000000000000.log").touch()
    with partition_lock(used):
        restored(original, tmp_path / "copy")
    assert not abandoned.exists()
    assert (used / "orders-1" / "00000000000000000000.log").exists()


def test_killed_swap_is_finished_before_copy(original: LogDir, tmp_path: Path) -> None:
    class KilledSwap(FileSystem):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if target.name.endswith(".log" + SWAP_SUFFIX):
                self.left = 3

        left = 10**9

        def fsync_dir(self, directory: Path) -> None:
            super().fsync_dir(directory)
            self.left -= 1
            if self.left == 0:
                raise Killed

    original.alter_topic("orders", add={"internal.segment.bytes": "100000"})
    with pytest.raises(Killed):
        merge_segments(open_log_dir(original.path, clock=clock, fs=KilledSwap()).root)
    assert list((original.path / "orders-1").glob("*" + SWAP_SUFFIX))
    expected = rows(original)
    with partition_lock(original.path / "orders-1"), pytest.raises(LogDirError, match="maintenance is running"):
        export_to(original.root.native(), tmp_path / "copy")
    copy = restored(original, tmp_path / "copy")
    assert rows(copy) == expected
    assert findings_in(copy.path) == []


def test_missing_log_is_an_error(original: LogDir, tmp_path: Path) -> None:
    shutil.rmtree(original.path / "orders-1")
    with pytest.raises(LogDirError, match="orders-1 is missing, which holds committed records"):
        export_to(original.root.native(), tmp_path / "copy")


def test_segment_without_timestamps_keeps_its_age(original: LogDir, tmp_path: Path) -> None:
    (first, *_) = sorted((original.path / "users-0").glob("*.log"))
    os.utime(first, (1_000, 1_000))
    copy = restored(original, tmp_path / "copy", link=False)
    assert (copy.path / "users-0" / first.name).stat().st_mtime == 1_000
