"""Log directories whose metadata name topics like paths, and objects of others: nothing outside is touched."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders.broker_disks import killed
from builders.data_objects import T0, Plan
from builders.metadata_roots import forget_images
from builders.object_roots import StoredRoot
from builders.root_places import RootPlace, store_of
from fakes.watched_paths import WatchedPaths

from pyspark_kafkalog.errors import CorruptRecordError, InvalidTopicError, KafkalogError, LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.root import check_broker_root, check_metadata
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, encode_commit
from pyspark_kafkalog.metadata.image import image_records
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ConfigRecord,
    DroppedObjectsRecord,
    DroppedSegment,
    MetadataRecord,
    PartitionRecord,
    PartitionStateRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.objects.log import commit_key, snapshot_key
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.snapshots import SnapshotId, encode_snapshot
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.root.brokers.image import read_broker_metadata
from pyspark_kafkalog.storage.log.read_only import load_read_only
from pyspark_kafkalog.storage.names import TopicPartition, child_path, offset_file_name, partition_path
from pyspark_kafkalog.storage.staged_file import StagedFile

__all__ = ["killed"]

TOPIC_ID = "AQAAAAAAAAAAAAAAAAAACQ"
RECORDS = 30


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Another log directory, which the names lead to."""
    path = tmp_path / "victim"
    log_dir = LogDir.create(path)
    log_dir.create_topic("secret", partitions=1)
    log_dir.append("secret", pa.table({"value": [b"x" * 100] * RECORDS}))
    return path


@pytest.fixture(params=["relative", "absolute"])
def hostile_name(request: pytest.FixtureRequest, victim: Path) -> str:
    """A topic's name by which its partition 0 is the victim's."""
    return str(victim / "secret") if request.param == "absolute" else f"../{victim.name}/secret"


def hostile_topic(name: str) -> list[MetadataRecord]:
    """A topic with all records of the victim's partition, which retention deletes at once."""
    return [
        TopicRecord(name=name, topic_id=TOPIC_ID),
        PartitionRecord(partition_id=0, topic_id=TOPIC_ID, leader_epoch=0),
        PartitionStateRecord(topic_id=TOPIC_ID, partition=0, log_end_offset=RECORDS, active_size_bytes=4_000),
        ConfigRecord(resource_type=2, resource_name=name, name="retention.ms", value="1"),
    ]


def created(place: RootPlace) -> LogDir:
    log_dir = LogDir.create(place)
    log_dir.create_topic("innocent", partitions=1)
    return log_dir


def forge_commit(place: RootPlace, log_dir: LogDir, records: list[MetadataRecord]) -> str:
    """Add a commit that this package would not make; its name."""
    offset = log_dir.root.native().store.image.next_offset
    data = encode_commit(offset, records, 1)
    if isinstance(place, Path):
        (place / METADATA_DIR / offset_file_name(offset, ".log")).write_bytes(data)
    else:
        store_of(place).put(commit_key(offset), data)
    return offset_file_name(offset, ".log")


def forge_snapshot(place: RootPlace, log_dir: LogDir, records: list[MetadataRecord]) -> str:
    """Replace the metadata log by one snapshot that also has `records`; its name."""
    image = log_dir.root.native().store.image
    snapshot = SnapshotId(image.next_offset, LEADER_EPOCH)
    forged = encode_snapshot([*image_records(image), *records], last_contained_timestamp_ms=1, epoch=LEADER_EPOCH)
    data = b"".join(forged)
    if isinstance(place, Path):
        for path in (place / METADATA_DIR).glob("*.log"):
            path.unlink()
        (place / METADATA_DIR / snapshot.file_name).write_bytes(data)
    else:
        store = store_of(place)
        store.delete([each.key for each in store.list_objects(METADATA_DIR) if each.key.endswith(".log")])
        store.put(snapshot_key(snapshot), data)
    return snapshot.file_name


FORGERIES = (forge_commit, forge_snapshot)


def objects_at(place: RootPlace) -> set[str]:
    return set() if isinstance(place, Path) else {each.key for each in store_of(place).list_objects("")}


def sums(directory: Path) -> dict[str, str]:
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in directory.rglob("*") if each.is_file()}


def uses(log_dir: LogDir, name: str) -> Iterator[Callable[[], object]]:
    """What would read, change, rename or empty the partition, on a log directory that was opened before."""
    root = log_dir.root
    rows = pa.table({"value": [b"y"]})
    yield root.refresh
    yield lambda: log_dir.read(name)
    yield lambda: log_dir.append(name, rows)
    yield lambda: log_dir.delete_topic(name)
    yield lambda: log_dir.topic(name)
    yield lambda: delete_records(root, {TopicPartition(name, 0): 5})
    yield lambda: apply_retention(root)


@pytest.mark.parametrize("forge", FORGERIES)
def test_topic_that_leads_elsewhere_is_refused_by_file_and_offset(
    root_place: RootPlace, tmp_path: Path, victim: Path, hostile_name: str, forge: Callable[..., str]
) -> None:
    log_dir = created(root_place)
    before = sums(victim)
    file = forge(root_place, log_dir, hostile_topic(hostile_name))
    where = r"record at offset \d+" if forge is forge_commit else r"metadata record \d+ of the snapshot"
    forget_images()
    with WatchedPaths() as touched:
        with pytest.raises(CorruptRecordError, match=rf"(?s){file}.*topic name .* is invalid.*{where}"):
            LogDir.open(root_place)
        if isinstance(root_place, Path):
            assert "is invalid" in " ".join(each.found for each in check_metadata(root_place))
        for use in uses(log_dir, hostile_name):
            with contextlib.suppress(KafkalogError):
                use()
    assert any(each.partition(" ")[2].startswith(str(root_place)) for each in touched.used) == isinstance(
        root_place, Path
    )
    assert not touched.below(victim)
    assert sums(victim) == before


def test_partition_of_invalid_name_has_no_path(tmp_path: Path) -> None:
    for topic in ("../x", "/abs/x", "", ".", "..", "a/b", "a\0b", "a\nb"):
        with pytest.raises(InvalidTopicError, match="is invalid"):
            partition_path(tmp_path, TopicPartition(topic, 0))
    for number in (-1, 1 << 31):
        with pytest.raises(InvalidTopicError, match=f"found {number} of topic 'a'"):
            partition_path(tmp_path, TopicPartition("a", number))
    assert partition_path(tmp_path, TopicPartition("..a", 7)) == tmp_path / "..a-7"


@pytest.mark.parametrize("name", ["", ".", "..", "../a.staged", "/a.staged", "b/a.staged", "a\0.staged"])
def test_file_that_another_process_names_is_directly_in_its_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(LogDirError, match="expected the name of a file"):
        child_path(tmp_path, name)
    staged = StagedFile(TopicPartition("innocent", 0), name, 0, np.empty(0, BATCH_DTYPE), np.empty(0, np.int32))
    with pytest.raises(LogDirError, match="expected the name of a file"):
        staged.path(tmp_path)


def test_topic_of_brokers_metadata_log_that_leads_elsewhere_is_told_and_left_out(
    tmp_path: Path, hostile_name: str
) -> None:
    directory = tmp_path / "broker" / METADATA_DIR
    directory.mkdir(parents=True)
    good = TopicRecord(name="innocent", topic_id="AQAAAAAAAAAAAAAAAAAACA")
    (directory / offset_file_name(0, ".log")).write_bytes(encode_commit(0, [*hostile_topic(hostile_name), good], 1))
    found = read_broker_metadata(directory)
    assert list(found.topics) == ["innocent"]
    assert found.damage is not None
    assert "the record at offset 0: topic name" in found.damage
    told = [each.found for each in check_broker_root(directory.parent) if each.what == "metadata-log"]
    assert told == [found.damage] == [found.undecoded]


def test_adopting_a_disk_whose_metadata_log_has_such_a_topic_changes_nothing(
    killed: Path, victim: Path, hostile_name: str
) -> None:
    log = killed / METADATA_DIR / offset_file_name(0, ".log")
    end_offset = load_read_only(log.parent).log_end_offset
    log.write_bytes(log.read_bytes() + encode_commit(end_offset, hostile_topic(hostile_name), 1))
    before = sums(killed)
    with (
        WatchedPaths() as touched,
        pytest.raises(
            LogDirError, match=rf"(?s){log}.*the record at offset {end_offset}: topic name .* is invalid.*forged: move"
        ),
    ):
        LogDir.adopt(killed, create_missing=True)
    assert sums(killed) == before
    assert not touched.below(victim)


@pytest.mark.parametrize(
    "forged",
    [
        DroppedObjectsRecord(commit_offset=1, data_keys=("meta.properties",)),
        DroppedObjectsRecord(commit_offset=1, data_keys=("other/invoices-2026.parquet",)),
        DroppedObjectsRecord(commit_offset=1, data_keys=("../x",)),
        DroppedObjectsRecord(
            commit_offset=1,
            segments=(DroppedSegment(topic="../..", topic_id=TOPIC_ID, segment_id="AAAAAAAAAAAAAAAAAAAACQ"),),
        ),
    ],
    ids=("properties", "foreign", "above", "segment"),
)
@pytest.mark.parametrize("forge", FORGERIES)
def test_objects_of_others_are_not_deleted_because_they_are_named(
    root_place: RootPlace, forged: DroppedObjectsRecord, forge: Callable[..., str]
) -> None:
    log_dir = created(root_place)
    if not isinstance(root_place, Path):
        store_of(root_place).put("other/invoices-2026.parquet", b"money")
    file = forge(root_place, log_dir, [forged])
    before = objects_at(root_place)
    forget_images()
    with pytest.raises(CorruptRecordError, match=file):
        LogDir.open(root_place)
    with contextlib.suppress(KafkalogError):
        apply_retention(log_dir.root)
    assert before <= objects_at(root_place)


def test_object_that_is_named_twice_stays_while_it_is_needed(tmp_path: Path) -> None:
    stored = StoredRoot()
    stored.place.clock.now_ms = T0
    stored.write(tmp_path, Plan(TopicPartition("orders", 0), [[T0]], 100))
    needed = next(iter(stored.image.objects)).key
    image = stored.image
    forged = DroppedObjectsRecord(commit_offset=1, data_keys=(needed, "data/gone-0-0-0.batches"))
    records = encode_snapshot([*image_records(image), forged], last_contained_timestamp_ms=1, epoch=LEADER_EPOCH)
    stored.objects.put(snapshot_key(SnapshotId(image.next_offset, LEADER_EPOCH)), b"".join(records))
    stored.objects.delete([key for key in stored.place.bucket.keys("") if key.endswith(".log")])
    root = stored.opened()
    clean_up_root(root, now_ms=T0 * 2)
    assert needed in stored.place.bucket.keys("")
    assert not root.store.refresh().dropped
