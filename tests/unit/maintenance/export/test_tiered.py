"""Exports of tiered logs: what is in remote storage only comes along, unless it is to stay there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from builders.tiered_exports import drop_local_segments, tier_closed_segments
from builders.tiered_roots import TOPIC, append_rounds, file_root, tiered_root
from builders.verify_roots import check_again_at_once, findings_in

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, LogDirError
from pyspark_kafkalog.maintenance.export.export import export_in_place, export_to
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.artefacts.marker_files import write_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.names import TopicPartition

ORDERS = TopicPartition(TOPIC, 0)


@pytest.fixture(params=["aiven", "local"])
def layout(request: pytest.FixtureRequest) -> str:
    text: str = request.param
    return text


@pytest.fixture
def original(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> LogDir:
    """A log that begins at offset 30, inside its second segment, with four of its segments in the directory."""
    check_again_at_once(monkeypatch)
    (tmp_path / "tier").mkdir()
    log_dir = tiered_root(tmp_path / "root", tmp_path / "tier", layout=layout)
    append_rounds(log_dir, 20)
    log_dir.create_topic("plain", partitions=1)
    log_dir.append("plain", pa.table({"value": ["a"]}))
    delete_records(log_dir.root, {ORDERS: 30})
    log_dir.refresh()
    return log_dir


def tiered(log_dir: LogDir) -> list[dict[str, object]]:
    """Tier it, and leave four of its segments local; its records before."""
    expected = log_dir.read(TOPIC).to_pylist()
    assert expected[0]["offset"] == 30
    tier_closed_segments(log_dir, ORDERS)
    assert drop_local_segments(log_dir, ORDERS, kept_bytes=5000) > 100
    forget_images()
    return expected


def test_copy_is_whole_and_names_no_remote_storage(original: LogDir, tmp_path: Path) -> None:
    bases = PartitionListing.read(original.path / "orders-0").base_offsets
    expected = tiered(original)
    assert PartitionListing.read(original.path / "orders-0").base_offsets == bases[-4:]
    objects = sorted(path.name for path in (tmp_path / "tier").rglob("*"))
    exported = {each.topic_partition: each for each in export_to(file_root(original), tmp_path / "copy")}
    assert exported[ORDERS].log_start_offset == 30
    copy = LogDir.open(tmp_path / "copy")
    assert copy.read(TOPIC).to_pylist() == expected
    assert findings_in(copy.path) == []
    listing = PartitionListing.read(copy.path / "orders-0")
    assert listing.base_offsets == bases
    assert set(bases[1:]) <= set(listing.snapshot_offsets)
    assert file_root(copy).remote_storage is None
    assert file_root(copy).store.image.partition(TOPIC, 0).segments == ()
    assert objects == sorted(path.name for path in (tmp_path / "tier").rglob("*"))
    copy.append(TOPIC, pa.table({"value": ["goes on"]}), partition=0)
    copy.refresh()
    assert copy.read(TOPIC)["offset"].to_pylist() == [*(row["offset"] for row in expected), 400]


def test_copy_that_leaves_segments_in_remote_storage_names_the_same(original: LogDir, tmp_path: Path) -> None:
    tiered(original)
    export_to(file_root(original), tmp_path / "copy", tiered=True)
    copy, image = LogDir.open(tmp_path / "copy"), file_root(original).store.image
    assert file_root(copy).store.image.topics == image.topics
    assert file_root(copy).remote_storage == file_root(original).remote_storage
    local_start = image.partition(TOPIC, 0).state.local_log_start_offset
    assert PartitionListing.read(copy.path / "orders-0").base_offsets[0] == local_start


def broker_directory(directory: Path) -> Path:
    (directory / "orders-0").mkdir(parents=True)
    write_topic_id(directory / "orders-0" / "partition.metadata", "AAAAAAAAAAAAAAAAAAAAAg")
    (directory / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAg\nnode.id=1\n")
    return directory


def test_broker_gets_whole_log(original: LogDir, tmp_path: Path) -> None:
    expected = tiered(original)
    target = broker_directory(tmp_path / "broker")
    with pytest.raises(LogDirError, match="whose topics have other ids"):
        export_to(file_root(original), target, [TOPIC], tiered=True)
    export_to(file_root(original), target, [TOPIC])
    assert LogDir.open(target).read(TOPIC).to_pylist() == expected


def test_export_in_place_is_refused(original: LogDir) -> None:
    export_in_place(file_root(original))
    tiered(original)
    with pytest.raises(LogDirError, match=r"offsets 30 to \d+ of orders-0 in .* are in remote storage"):
        export_in_place(file_root(original))


def test_segment_whose_object_is_gone_or_short_ends_the_export(original: LogDir, tmp_path: Path) -> None:
    tiered(original)
    log = min((tmp_path / "tier").rglob("*.log"))
    data = log.read_bytes()
    log.write_bytes(data[:-1])
    with pytest.raises(CorruptRecordError, match=log.name):
        export_to(file_root(original), tmp_path / "copy")
    log.unlink()
    with pytest.raises(LogDirError, match="records of orders-0 were deleted before they were copied"):
        export_to(file_root(original), tmp_path / "copy")
    with pytest.raises(LogDirError, match="has not finished"):
        LogDir.open(tmp_path / "copy")
    log.write_bytes(data)
    export_to(file_root(original), tmp_path / "copy")


def test_copy_of_some_topics_has_those_alone(original: LogDir, tmp_path: Path) -> None:
    export_to(file_root(original), tmp_path / "copy", ["plain"])
    assert LogDir.open(tmp_path / "copy").topics() == ("plain",)
    assert findings_in(tmp_path / "copy") == []
