"""A log directory on an object store, exported to a file system: whole, as of one commit, and valid to its checks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from builders.verify_roots import check_again_at_once, findings_in
from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError, ProducerFencedError, UnknownTopicError
from pyspark_kafkalog.maintenance.export.export import export_new_broker, export_to
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, PartitionChangeRecord
from pyspark_kafkalog.object_store import client
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.settings import StoreSettings
from pyspark_kafkalog.object_store.store import ObjectStoreError
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint, read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import TopicPartition

ADDRESS = StoreAddress(ObjectLocation("s3", "bucket", "log"), StoreSettings())
ACL = Acl(
    ResourceType.TOPIC, "ord", PatternType.PREFIXED, "User:ann", "*", AclOperation.READ, PermissionType.ALLOW
)  # fmt: skip
SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "300"}
ORDERS = TopicPartition("orders", 1)
FAR_MS = 1_990_000_000_000


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    """The bucket behind ADDRESS."""
    check_again_at_once(monkeypatch)
    bucket = MemoryBucket()
    use(bucket, monkeypatch)
    return bucket


def use(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    """Have ADDRESS opened as a new client of `bucket`."""
    forget_images()
    monkeypatch.setitem(
        client._open_stores,  # type: ignore[arg-type]
        (ADDRESS.location, ADDRESS.settings),
        FaultyStore(bucket, **options),  # type: ignore[arg-type]
    )


def values(rows: int, text: str) -> pa.Table:
    return pa.table({"key": [f"k{n}" for n in range(rows)], "value": [f"{text} {n}" * 5 for n in range(rows)]})


@pytest.fixture
def original(bucket: MemoryBucket) -> LogDir:
    log_dir = LogDir.open_or_create(ADDRESS)
    log_dir.alter_broker_configs(add={"log.retention.ms": "86400000", "offsets.topic.num.partitions": "2"})
    log_dir.create_topic("orders", partitions=2, configs=SMALL)
    log_dir.create_topic("empty", partitions=1)
    log_dir.append("big", pa.table({"value": [random.Random(n).randbytes(5000) for n in range(60)]}))  # not inline
    for number in range(12):
        log_dir.append("orders", values(20, f"first {number}"), partition=1)
    merge(log_dir, ORDERS)
    set_epoch(log_dir, ORDERS)
    for number in range(12):
        log_dir.append("orders", values(20, f"second {number}"), partition=1)
    log_dir.access_control().add([ACL])
    log_dir.group("readers").commit({("orders", 1): 60}, "note")
    log_dir.append("orders", values(2, "nightly"), partition=0, transactional_id="nightly", transaction_version=7)
    log_dir.init_transaction("query", "run-1")
    log_dir.init_transaction("query", "run-2")
    log_dir.commit_staged([], transaction=WriteTransaction("query", 12, "run-2"))
    log_dir.refresh()
    return log_dir


def root_of(log_dir: LogDir) -> ObjectRoot:
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    return root


def merge(log_dir: LogDir, of: TopicPartition) -> None:
    root = root_of(log_dir)
    root.refresh()
    config = broker_config(root.store.image).log_config(root.store.image.topic(of.topic).configs)
    merged = merge_partition(root.store, root.objects, config, of, clock=root.clock)
    assert merged is not None
    assert merged.segments


def set_epoch(log_dir: LogDir, of: TopicPartition) -> None:
    """A new leader, as `kafkalog` has none: later batches have the next epoch."""

    def build(image: MetadataImage) -> list[MetadataRecord]:
        return [PartitionChangeRecord(partition_id=of.partition, topic_id=image.topic(of.topic).topic_id, leader=1)]

    root_of(log_dir).commit(build, operation="elect leader")


def set_log_start(log_dir: LogDir, of: TopicPartition, offset: int) -> None:
    def build(image: MetadataImage) -> list[MetadataRecord]:
        state = replace(image.partition(of.topic, of.partition).state, log_start_offset=offset)
        return [partition_state_record(image.topic(of.topic).topic_id, of.partition, state)]

    root_of(log_dir).commit(build, operation="delete records")


def exported(original: LogDir, target: Path, topics: list[str] | None = None) -> LogDir:
    export_to(root_of(original), target, topics)
    forget_images()
    return LogDir.open(target)


def rows(log_dir: LogDir) -> dict[tuple[str, int], list[dict[str, object]]]:
    return {
        (topic, number): log_dir.read(topic, partition=number).to_pylist()
        for topic in log_dir.topics()
        for number in range(len(log_dir.topic(topic).partitions))
    }


def test_copy_holds_every_kind_of_state(original: LogDir, tmp_path: Path) -> None:
    copy = exported(original, tmp_path / "copy")
    before, after = root_of(original).store.image, copy.root.native().store.image
    assert rows(copy) == rows(original)
    assert len(rows(copy)["orders", 1]) == 480
    assert {name: (topic.topic_id, topic.configs) for name, topic in after.topics.items()} == {
        name: (topic.topic_id, topic.configs) for name, topic in before.topics.items()
    }
    assert copy.root.identity == original.root.identity
    assert copy.broker_configs() == original.broker_configs()
    assert copy.access_control().entries() == [ACL]
    assert after.transactional_ids == before.transactional_ids
    assert after.next_producer_id == before.next_producer_id
    assert copy.group("readers").fetch() == original.group("readers").fetch()
    assert (after.next_offset, after.format.in_object_store, len(after.objects)) == (before.next_offset, False, 0)
    assert findings_in(copy.path) == []
    # segments by the topic's configuration, and the epochs of the runs
    assert len(list_base_offsets(copy.path / "orders-1")) > 5
    assert (copy.path / "orders-1" / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n1 240\n"
    ends = read_offset_checkpoint(copy.path / "replication-offset-checkpoint")
    assert (ends[ORDERS], ends[TopicPartition("empty", 0)]) == (480, 0)
    assert read_offset_checkpoint(copy.path / "recovery-point-offset-checkpoint") == ends


def test_copy_knows_duplicates_fences_zombies_and_goes_on(original: LogDir, tmp_path: Path) -> None:
    copy = exported(original, tmp_path / "copy")
    table = values(2, "nightly")
    again = copy.append("orders", table, partition=0, transactional_id="nightly", transaction_version=7)
    assert again.is_duplicate
    later = copy.append("orders", table, partition=1, transactional_id="nightly", transaction_version=8)
    assert later.partitions[0].first_offset == 480
    with pytest.raises(ProducerFencedError):
        copy.commit_staged([], transaction=WriteTransaction("query", 13, "run-1"))
    assert findings_in(copy.path) == []


@pytest.mark.parametrize("start_offset", [47, 240, 305, 480])
def test_copy_begins_at_log_start(original: LogDir, tmp_path: Path, start_offset: int) -> None:
    set_log_start(original, ORDERS, start_offset)
    original.refresh()
    copy = exported(original, tmp_path / "copy")
    assert copy.partition("orders", 1).log_start_offset == start_offset
    assert rows(copy) == rows(original)
    assert findings_in(copy.path) == []
    copy.append("orders", values(1, "next"), partition=1)
    assert copy.read("orders", partition=1, columns=["offset"])["offset"].to_pylist() == [*range(start_offset, 481)]


def test_copy_of_some_topics_has_those_alone(original: LogDir, tmp_path: Path) -> None:
    assert exported(original, tmp_path / "copy", ["empty"]).topics() == ("empty",)
    with pytest.raises(UnknownTopicError):
        export_to(root_of(original), tmp_path / "other", ["emptied"])
    assert not (tmp_path / "other").exists()


def opened(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch, faults: Callable[[Call], Fault | None]) -> LogDir:
    """The root as another process opens it, whose requests of records meet `faults`."""
    use(bucket, monkeypatch, faults=lambda call: faults(call) if call.kind == "get_range" else None)
    return LogDir.open(ADDRESS)


class Once:
    """Does something before the first request of records, in whichever thread that is; the others wait for it."""

    def __init__(self, change: Callable[[], None]) -> None:
        self._change: Callable[[], None] | None = change
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Fault | None:
        with self._lock:
            change, self._change = self._change, None
            if change is not None:
                change()
        return None


def delete_dropped(log_dir: LogDir) -> None:
    """What the clean-up does after its delay."""
    root = root_of(log_dir)
    done = clean_up(
        root.store,
        root.objects,
        delay_ms=lambda image, dropped: 0,
        staging_retention_ms=86_400_000,
        clock=lambda: FAR_MS,
    )
    assert done.dropped_count > 0


def test_merge_and_clean_up_meanwhile_change_nothing(
    original: LogDir, bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        merge(original, ORDERS)
        merge(original, TopicPartition("big", 0))
        delete_dropped(original)
        original.append("orders", values(20, "later"), partition=1)

    before = rows(original)
    copy = exported(opened(bucket, monkeypatch, Once(change)), tmp_path / "copy")
    assert rows(copy) == before
    assert findings_in(copy.path) == []


def test_topic_deleted_meanwhile_ends_export_and_next_one_is_whole(
    original: LogDir, bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        original.delete_topic("orders")
        delete_dropped(original)
        original.create_topic("orders", partitions=2)
        original.append("orders", values(1000, "of another topic"))

    with pytest.raises(LogDirError, match=r"records of orders-\d were deleted .*'orders' was deleted.*export again"):
        export_to(root_of(opened(bucket, monkeypatch, Once(change))), tmp_path / "copy")
    with pytest.raises(LogDirError, match="not finished"):
        LogDir.open(tmp_path / "copy")
    forget_images()
    copy = exported(LogDir.open(ADDRESS), tmp_path / "copy")
    assert copy.topics() == original.topics()
    assert len(copy.read("orders")) == 1000
    assert findings_in(copy.path) == []


@pytest.mark.parametrize(("fault", "error"), [(Fault.CRASH_BEFORE, Killed), (Fault.UNAVAILABLE, ObjectStoreError)])
def test_export_that_failed_cannot_be_opened_and_can_be_run_again(
    original: LogDir,
    bucket: MemoryBucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    error: type[BaseException],
) -> None:
    before = rows(original)
    for fails_at in range(3):
        seen: list[Call] = []

        def faults(call: Call, seen: list[Call] = seen, fails_at: int = fails_at) -> Fault | None:
            seen.append(call)
            return fault if len(seen) > fails_at else None

        with pytest.raises(error):
            export_to(root_of(opened(bucket, monkeypatch, faults)), tmp_path / "copy")
        with pytest.raises(LogDirError, match="not finished"):
            LogDir.open(tmp_path / "copy")
    use(bucket, monkeypatch)
    copy = exported(LogDir.open(ADDRESS), tmp_path / "copy")
    assert rows(copy) == before
    assert findings_in(copy.path) == []


def test_other_targets_are_refused(original: LogDir, tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "meta.properties").write_text("version=1\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    LogDir.create(tmp_path / "native")
    for name, message in (("broker", "new directory first"), ("full", "neither empty"), ("native", "name another")):
        with pytest.raises(LogDirError, match=message):
            export_to(root_of(original), tmp_path / name)
    assert (tmp_path / "full" / "note").read_text() == "mine"


def test_new_broker_gets_whole_logs(original: LogDir, tmp_path: Path) -> None:
    before = rows(original)
    export_new_broker(root_of(original), tmp_path / "broker", metadata_partitions=3)
    copy = LogDir.open(tmp_path / "broker")
    assert rows(copy) == before
    assert not list(copy.path.glob("__remote_log_metadata-*"))


def test_new_broker_finds_merged_segments_where_they_are(
    original: LogDir, bucket: MemoryBucket, tmp_path: Path
) -> None:
    before = rows(original)
    partition = root_of(original).store.refresh().partition("orders", 1)
    merged_end = partition.segments[-1].end_offset
    assert 0 < merged_end < partition.state.log_end_offset
    export_new_broker(root_of(original), tmp_path / "broker", metadata_partitions=3, tiered=True)
    tier = tmp_path / "tier"
    for key in sorted(bucket.objects):
        (tier / key).parent.mkdir(parents=True, exist_ok=True)
        (tier / key).write_bytes(bucket.body(key))
    copy = LogDir.open(tmp_path / "broker", remote_storage=tier)
    assert {of: found for of, found in rows(copy).items() if of[0] != "__remote_log_metadata"} == before
    found = copy.partition("orders", 1)
    assert (found.log_start_offset, found.local_log_start_offset) == (0, merged_end)
    assert found.latest_tiered_offset == merged_end - 1
    assert list_base_offsets(copy.path / "orders-1")[0] == merged_end
    assert (copy.path / "orders-1" / f"{merged_end:020d}.snapshot").exists()
    epochs = LeaderEpochCheckpoint.open(copy.path / "orders-1" / "leader-epoch-checkpoint").entries
    assert [each.start_offset for each in epochs] == [0, 240]
    assert copy.topic("orders").configs["remote.storage.enable"] == "true"
    assert "remote.storage.enable" not in copy.topic("__consumer_offsets").configs


def test_log_that_is_merged_to_its_end_goes_on_there_on_a_new_broker(original: LogDir, tmp_path: Path) -> None:
    merge(original, ORDERS)
    end = root_of(original).store.refresh().partition("orders", 1).state.log_end_offset
    export_new_broker(root_of(original), tmp_path / "broker", metadata_partitions=3, tiered=True)
    copy = LogDir.open(tmp_path / "broker")
    assert list_base_offsets(copy.path / "orders-1") == [end]
    assert copy.partition("orders", 1).high_watermark == end
    assert read_offset_checkpoint(copy.path / "log-start-offset-checkpoint")[ORDERS] == 0
