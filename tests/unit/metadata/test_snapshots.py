"""Snapshots: read back as written, damage refused, and a root opened from the newest whole one."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pytest
from builders.message_fields import kafka_text
from builders.metadata_roots import add_topic, commit_files, forget_images, settings_of, snapshot_files, write_to
from builders.root_places import Place, commit_names, point_to, snapshot_names
from fakes.clock import Clock
from repository import FIXTURES

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.metadata import snapshots as snapshots_module
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage, image_records
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore, read_snapshot, write_snapshot
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    ProducerIdsRecord,
    TransactionalIdRecord,
)
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION, metadata_dir
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE, SnapshotId, image_of
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.record.header import parse_header
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState

KAFKAS = FIXTURES / "cluster-metadata"
EVERY_COMMIT = {"metadata.log.max.record.bytes.between.snapshots": "1"}


def make_root(root: Path) -> MetadataStore:
    """A root on a file system with three snapshots, the last one behind the last commit."""
    return filled(create_root(root, clock=Clock()), 3)


def make(place: Place, *, snapshots: int = 3) -> MetadataStore:
    """A root with so many snapshots, the last one behind the last commit."""
    store = filled(place.create(), snapshots)
    assert len(snapshot_names(place)) == snapshots
    return store


def filled(store: MetadataStore, snapshots: int) -> MetadataStore:
    topic_id = add_topic(store, "orders", 3)
    settings_of(store, EVERY_COMMIT)
    for end in range(1, snapshots):
        write_to(store, topic_id, end)
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1000000"})
    write_to(store, topic_id, 100)
    return store


def applied(records: list[MetadataRecord]) -> MetadataImage:
    delta = ImageDelta(MetadataImage(), commit_offset=7, timestamp_ms=5, is_snapshot=True)
    delta.replay(records)
    return delta.build(7)


@pytest.mark.parametrize(("name", "records"), [("0" * 20 + "-" + "0" * 10, 0), ("194-2", 70), ("286-3", 100)])
def test_snapshots_of_kafka_are_read_to_last_record(name: str, records: int) -> None:
    end_offset, epoch = map(int, name.split("-"))
    snapshot = SnapshotId(end_offset, epoch)
    path = KAFKAS / "__cluster_metadata-0" / snapshot.file_name
    dump = (KAFKAS / "expected/dump/__cluster_metadata-0" / f"{path.name}.decoded.txt").read_text("utf-8")
    payloads = re.findall(r" payload: (.*)$", dump, re.MULTILINE)
    assert len(payloads) == records
    read = read_snapshot(path)
    versions = [json.loads(payload)["version"] for payload in payloads]
    assert [kafka_text(*each) for each in zip(read.records, versions, strict=True)] == payloads
    header = re.search(r"SnapshotHeader (.*)$", dump, re.MULTILINE)
    assert header is not None
    assert read.last_contained_timestamp_ms == json.loads(header[1])["lastContainedLogTimestamp"]
    assert SnapshotId.parse(path.name) == snapshot


def test_image_round_trips_through_its_records(root: Path) -> None:
    store = create_root(root)
    topic_id = add_topic(store, "orders", 3)
    add_topic(store, "empty", 1, {"retention.ms": "5", "cleanup.policy": "compact"})
    write_to(store, topic_id, 8, partition=1)
    settings_of(store, {"num.partitions": "4", "log.retention.ms": "9"})
    store.commit(
        lambda image: [
            ProducerIdsRecord(next_producer_id=3000),
            TransactionalIdRecord(transactional_id="q", version=4, producer_id=2, incarnation="b", fenced=("x", "a")),
        ],
        operation="x",
    )
    image = store.image
    again = applied(list(image_records(image)))
    assert again.topics == image.topics
    assert again.topic_names == image.topic_names
    assert again.broker_configs == image.broker_configs
    assert again.brokers == image.brokers
    assert again.features == image.features
    assert again.transactional_ids == image.transactional_ids
    assert again.next_producer_id == 3000
    assert again.format_version == FORMAT_VERSION


def test_broker_config_set_to_null_is_removed_from_image(root: Path) -> None:
    store = create_root(root)
    before = store.image.broker_configs
    settings_of(store, {"num.partitions": "4"})
    settings_of(store, {"num.partitions": None})
    assert store.image.broker_configs == before == {}


def test_snapshot_of_many_and_large_records_round_trips(tmp_path: Path) -> None:
    path = tmp_path / SnapshotId(9, 0).file_name
    records = [FeatureLevelRecord(name=f"f{number}", feature_level=1) for number in range(2500)]
    records.append(ConfigRecord(resource_type=2, resource_name="t", name="n", value="v" * 30_000))
    size_bytes = write_snapshot(path, records, last_contained_timestamp_ms=5, epoch=0, fs=LOCAL)
    snapshot = read_snapshot(path)
    assert list(snapshot.records) == records
    assert snapshot.size_bytes == size_bytes == path.stat().st_size
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("producer", [None, ProducerStateEntry(7, 0, 3, 40)])
def test_partitions_of_snapshot_are_not_decoded_record_by_record(
    producer: ProducerStateEntry | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode = snapshots_module.decode_record
    monkeypatch.setattr(
        snapshots_module, "decode_record", lambda value, **at: decoded.append(value) or decode(value, **at)
    )
    counts = []
    for count in (20, 2000):
        partitions = tuple(PartitionImage(at, LogState(log_end_offset=at, producer=producer)) for at in range(count))
        node = BrokerImage(1, ZERO_UUID, 0, (ZERO_UUID,))
        image = MetadataImage(topics={"t": TopicImage("t", ZERO_UUID, partitions)}, brokers={1: node})
        path = tmp_path / SnapshotId(count, 0).file_name
        write_snapshot(path, image_records(image), last_contained_timestamp_ms=5, epoch=0, fs=LOCAL)
        assert image_of(read_snapshot(path), count, "f").topics == image.topics
        counts.append(len(decoded))
        decoded.clear()
    assert counts[0] <= 6
    assert counts[1] <= counts[0] + 2000 * 2 // 1000, "a record at the start of each batch may stand alone"


def batch_starts(data: bytes) -> list[int]:
    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + parse_header(data, starts[-1], file="", file_position=0).size_bytes)
    return starts[:-1]


def test_snapshot_damaged_at_any_position_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SnapshotId(9, 0).file_name
    records = [FeatureLevelRecord(name=f"f{number}", feature_level=1) for number in range(5)]
    write_snapshot(path, records, last_contained_timestamp_ms=5, epoch=0, fs=LOCAL)
    good = path.read_bytes()
    cuts = [good[:length] for length in range(len(good))]
    epochs = {start + at for start in batch_starts(good) for at in range(12, 16)}  # which no check covers
    flips = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good)) if at not in epochs]
    extra = [good + b"\0", good + good]
    for data in (*cuts, *flips, *extra):
        path.write_bytes(data)
        with pytest.raises(DiskFormatError, match=path.name):
            list(read_snapshot(path).records)


def test_snapshot_without_header_or_footer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SnapshotId(9, 0).file_name
    write_snapshot(path, [NoOpRecord()], last_contained_timestamp_ms=5, epoch=0, fs=LOCAL)
    good = path.read_bytes()
    path.write_bytes(good[: batch_starts(good)[-1]])
    with pytest.raises(CorruptRecordError, match="snapshot's footer"):
        list(read_snapshot(path).records)
    path.write_bytes(b"")
    with pytest.raises(CorruptRecordError, match="begins with a snapshot header, found an empty file"):
        read_snapshot(path)


@pytest.mark.usefixtures("one_commit_a_file")
def test_root_opens_from_snapshot_without_listing_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_root(root).image
    forget_images()
    commits_there = len(commit_files(root))
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("listed"))
    read: list[Path] = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **at: read.append(Path(path)) or real_open(path, *rest, **at))
    assert LocalMetadataStore.open(root).image == image
    commits = [path for path in read if path.suffix == ".log"]
    assert len(set(commits)) < 5 < commits_there


@pytest.mark.parametrize(
    "pointer", [None, b"", b"\xff\xfe", b"snapshot\n", b"00000000000000000001-0000000000.checkpoint\n"]
)
def test_root_opens_with_missing_or_damaged_snapshot_pointer(place: Place, pointer: bytes | None) -> None:
    image = make(place).image
    place.remove(POINTER_FILE) if pointer is None else place.write(POINTER_FILE, pointer)
    place.remove(commit_names(place)[0])  # nothing but a snapshot can lead to the image
    assert place.open().image == image


def test_root_opens_from_older_snapshot_of_stale_pointer(place: Place) -> None:
    image = make(place).image
    oldest, *newer = snapshot_names(place)
    point_to(place, oldest)
    for each in newer:
        place.write(each, b"not looked at")
    assert place.open().image == image


def test_damaged_snapshots_are_skipped_while_commits_exist(place: Place) -> None:
    image = make(place).image
    for damaged in reversed(snapshot_names(place)):
        place.write(damaged, place.read(damaged)[:-1])
        assert place.open().image == image


@pytest.mark.usefixtures("one_commit_a_file")
def test_damaged_snapshot_without_commits_before_it_is_reported_by_name(place: Place) -> None:
    store = make(place)
    *_, newest = snapshot_names(place)
    place.write(newest, place.read(newest)[:-1])
    removed = commit_names(place)[:-2]
    for each in removed:
        place.remove(each)
    if place.kind == "object":  # the later commits carry those that were removed
        assert place.open().image == store.image
        for each in commit_names(place):
            place.write(each, own_batch(place.read(each)))
    with pytest.raises(CorruptRecordError, match=newest):
        place.open()


def own_batch(data: bytes) -> bytes:
    return data[: parse_header(data, 0, file="", file_position=0).size_bytes]


def test_foreign_snapshots_are_ignored(place: Place) -> None:
    image = make(place, snapshots=1).image
    foreign = SnapshotId(10**6, 2)
    for snapshot in (foreign, SnapshotId(0, 0)):
        place.write(snapshot.file_name, b"another's")
    point_to(place, foreign.file_name)
    assert place.open().image == image


def test_partial_snapshot_file_is_ignored(root: Path) -> None:
    image = make_root(root).image
    (metadata_dir(root) / "00000000000000009999-0000000000-0123456789abcdef.checkpoint.part").write_bytes(b"half")
    (metadata_dir(root) / POINTER_FILE).unlink()
    forget_images()
    assert LocalMetadataStore.open(root).image == image


class NoSpaceForSnapshots(FileSystem):
    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        if ".checkpoint" in path.name:
            raise OSError(28, "No space left on device", str(path))
        return super().open(path, flags, mode)


def test_commit_succeeds_and_warns_when_its_snapshot_fails(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    create_root(root, clock=Clock())
    store = LocalMetadataStore.open(root, clock=Clock(), fs=NoSpaceForSnapshots())
    with caplog.at_level(logging.WARNING):
        settings_of(store, EVERY_COMMIT)
        add_topic(store, "orders", 1)
    assert caplog.text.count("No space left on device") == 2
    assert snapshot_files(root) == []
    forget_images()
    assert set(LocalMetadataStore.open(root).image.topics) == {"orders"}
