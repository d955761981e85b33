"""Where a root on a file system copies segments to: its configurations, the layouts of the objects, a directory."""

from __future__ import annotations

import contextlib
import pickle
import shutil
from pathlib import Path

import pytest
from builders.metadata_roots import as_first_format
from builders.root_places import memory_root
from builders.tiered_roots import TOPIC, append_rounds, file_root, tiered_root
from repository import FIXTURES

from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.metadata.root_format import (
    FIRST_FORMAT_VERSION,
    FORMAT_MARKER,
    FORMAT_VERSION,
    metadata_dir,
    write_marker,
)
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError, StoreNotFoundError
from pyspark_kafkalog.root.admin import ConfigChange
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import LOG_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX, segment_file
from pyspark_kafkalog.tiered.aiven_layout import AivenLayout
from pyspark_kafkalog.tiered.local_layout import LocalLayout
from pyspark_kafkalog.tiered.objects import DirectoryObjects, IndexKind, SegmentLayout
from pyspark_kafkalog.tiered.own_location import PERMITTED_VARIABLE
from pyspark_kafkalog.tiered.own_segments import OwnLayout, parse_key, put_segment, segment_keys
from pyspark_kafkalog.tiered.remote_storage import OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.tools.main import main

LAYOUTS: dict[str, SegmentLayout] = {"aiven": AivenLayout(), "local": LocalLayout()}
ON = "remote.log.storage.system.enable"


def put_first_segment(log_dir: LogDir) -> tuple[OwnStorage, TopicIdPartition, SegmentObject]:
    storage = file_root(log_dir).remote_storage
    assert storage is not None
    of = TopicIdPartition(TOPIC, log_dir.topic(TOPIC).topic_id, 0)
    directory = file_root(log_dir).path / f"{TOPIC}-0"
    base, end = PartitionListing.read(directory).base_offsets[:2]
    segment = put_segment(
        storage.store(),
        of,
        directory,
        base,
        end,
        epochs=[EpochEntry(0, 0)],
        segment_id=new_segment_id(7),
        now_ms=1,
        layout=storage.layout,
    )
    return storage, of, segment


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_segment_put_in_a_layout_is_read_by_the_reader_of_that_layout(tmp_path: Path, layout: str) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", layout=layout)
    append_rounds(log_dir, 12)
    storage, of, segment = put_first_segment(log_dir)
    log = segment_file(tmp_path / "log" / f"{TOPIC}-0", 0, LOG_SUFFIX).read_bytes()

    objects, reader = storage.store(), LAYOUTS[layout]
    (found,) = reader.segments(objects, of, reader.objects_of(objects, of))

    assert (found.start_offset, found.end_offset) == (0, segment.end_offset)
    assert found.segment_id == segment.segment_id
    assert bytes(reader.log_content(objects, of, found).window(0, len(log)).data) == log
    snapshot = segment_file(tmp_path / "log" / f"{TOPIC}-0", segment.end_offset, PRODUCER_SNAPSHOT_SUFFIX).read_bytes()
    index = reader.index(objects, of, found, IndexKind.PRODUCER_SNAPSHOT)
    assert index is not None
    assert bytes(index.data) == snapshot


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_own_extent_reads_what_was_put_and_keys_name_all_of_it(tmp_path: Path, layout: str) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", layout=layout)
    append_rounds(log_dir, 12)
    storage, of, segment = put_first_segment(log_dir)
    log = segment_file(tmp_path / "log" / f"{TOPIC}-0", 0, LOG_SUFFIX).read_bytes()

    extent = pickle.loads(pickle.dumps(storage)).extent(of, segment)
    with contextlib.closing(extent.open()) as source:
        assert bytes(source.read(0, len(log))) == log
    offsets, times = extent.offset_index(), extent.time_index()
    assert offsets is not None
    assert times is not None
    assert extent.aborted_transactions() == []

    there = {each.key for each in storage.store().list_objects("")}
    keys = storage.keys(of, segment)
    assert there <= set(keys)
    assert all(parse_key(each, storage.layout) is not None for each in there)
    storage.store().delete(keys)
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize("layout", list(OwnLayout))
def test_keys_are_parsed_back_and_others_are_not(layout: OwnLayout) -> None:
    of = TopicIdPartition("a.b-c-7", "-_AAAAAAAAAAAAAAAAAAAQ", 12)
    segment_id = new_segment_id(9)
    for key in segment_keys(of, 5, segment_id, layout):
        for each in (key, f"{key}.tmp", f"{key}.0123456789abcdef.tmp"):
            found = parse_key(each, layout)
            assert found is not None
            assert (found.partition, found.base_offset, found.segment_id) == (of, 5, segment_id)
    for key in ("data/x", "a", f"{segment_keys(of, 5, segment_id, layout)[0]}x", "../x.log"):
        assert parse_key(key, layout) is None


def test_directory_replaces_files_creates_folders_and_removes_empty_ones(tmp_path: Path) -> None:
    store = DirectoryObjects(tmp_path)
    store.put("a/b/c.log", b"one")
    store.put("a/b/c.log", b"three")
    store.put("a/d.log", b"")
    assert store.get("a/b/c.log", max_bytes=10) == b"three"
    assert store.get_range("a/b/c.log", ByteRange(1, 2)) == b"hr"
    store.delete(["a/b/c.log", "a/b/absent", "absent/absent"])
    with pytest.raises(ObjectNotFoundError):
        store.get("a/b/c.log", max_bytes=10)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["d.log"]


def test_put_into_a_missing_directory_says_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="create it first"):
        DirectoryObjects(tmp_path / "absent").put("a", b"")


@pytest.mark.parametrize("key", ["../a", "a/../../b", "/a", "a//b", ""])
def test_directory_writes_no_key_outside_of_it(tmp_path: Path, key: str) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(ValueError, match="expected a key"):
        DirectoryObjects(tmp_path / "store").put(key, b"x")


@pytest.mark.parametrize("location", ["relative/path", "ftp://host/x", "s3://", "/a/../b", "s3://key:secret@bucket/x"])
def test_location_that_is_none_is_refused(tmp_path: Path, location: str) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    with pytest.raises(InvalidConfigError, match=r"rsm\.config\.location"):
        log_dir.alter_broker_configs(add={"rsm.config.location": location})


@pytest.mark.parametrize("location", ["log", "log/orders-0", "log/../log/x", "."])
def test_location_in_the_log_directory_or_around_it_is_refused(tmp_path: Path, location: str) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    for place in {str((tmp_path / location).resolve()), str(tmp_path / "link")}:
        with pytest.raises(InvalidConfigError, match="outside of the log directory"):
            log_dir.alter_broker_configs(add={"rsm.config.location": place})


@pytest.mark.parametrize("location", ["relative/path", "{root}/tier"])
def test_broker_with_a_location_that_is_none_is_not_adopted(tmp_path: Path, location: str) -> None:
    root = tmp_path / "root"
    shutil.copytree(FIXTURES / "transactions", root, ignore=shutil.ignore_patterns("expected"))
    properties = tmp_path / "server.properties"
    properties.write_text(f"rsm.config.location={location.format(root=root)}\n")
    with pytest.raises(InvalidConfigError, match=r"rsm\.config\.location"):
        LogDir.adopt(root, server_properties=properties, create_missing=True)
    assert LogDir.open(root).is_broker_directory


def test_store_options_reach_the_store_and_are_not_stored(tmp_path: Path) -> None:
    tiered_root(tmp_path / "log", "s3://bucket/prefix")
    options = {"storeEndpoint": "http://host:9000", "storeAccessKey": "id", "storeSecretKey": "secret"}
    storage = file_root(LogDir.open(tmp_path / "log", store_options=options)).remote_storage
    assert storage is not None
    assert storage.settings is not None
    assert storage.settings.options() == options
    assert "secret" not in repr(storage)
    assert not any(b"secret" in path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file())


def test_tiering_is_not_enabled_without_a_location(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    with pytest.raises(InvalidConfigError, match=r"expected rsm\.config\.location to be set"):
        log_dir.alter_broker_configs(add={ON: "true"})
    log_dir.alter_broker_configs(add={ON: "true", "rsm.config.location": "s3://bucket/prefix"})
    storage = file_root(log_dir).remote_storage
    assert storage is not None
    assert storage.location == "s3://bucket/prefix"
    assert storage.layout is OwnLayout.AIVEN
    with pytest.raises(InvalidConfigError, match=r"expected rsm\.config\.location to be set"):
        log_dir.alter_broker_configs(delete=["rsm.config.location"])
    log_dir.alter_broker_configs(delete=["rsm.config.location", ON])
    assert file_root(log_dir).remote_storage is None


def test_tiering_is_not_disabled_while_a_topic_has_it(tmp_path: Path) -> None:
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    with pytest.raises(InvalidConfigError, match=f"topic {TOPIC} has remote.storage.enable=true"):
        log_dir.alter_broker_configs(delete=[ON])


def test_default_policy_is_not_compact_while_a_topic_without_its_own_is_tiered(tmp_path: Path) -> None:
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    with pytest.raises(
        InvalidConfigError, match=r"topic orders has remote\.storage\.enable=true and no cleanup\.policy"
    ):
        log_dir.alter_broker_configs(add={"log.cleanup.policy": "compact"})
    log_dir.alter_topic(TOPIC, add={"cleanup.policy": "delete"})
    log_dir.alter_broker_configs(add={"log.cleanup.policy": "compact"})


def test_root_in_an_object_store_takes_no_location() -> None:
    log_dir = LogDir.create(memory_root())
    with pytest.raises(InvalidConfigError, match="in an object store already"):
        log_dir.alter_broker_configs(add={"rsm.config.location": "s3://bucket/prefix"})


def test_location_and_layout_stay_while_segments_are_there(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    log_dir.alter_broker_configs(add={"rsm.config.layout": "local"})
    append_rounds(log_dir, 12)
    _, of, segment = put_first_segment(log_dir)
    record = SegmentObjectsRecord(topic_id=of.topic_id, partition=0, planned_at=7, segments=(segment,))
    file_root(log_dir).commit(lambda image: [record], operation="tier")

    for change in ({"rsm.config.layout": "aiven"}, {"rsm.config.location": "/elsewhere"}):
        with pytest.raises(InvalidConfigError, match="cannot change while segments are there"):
            log_dir.alter_broker_configs(add=change)
    log_dir.alter_broker_configs(add={"num.partitions": "3"})
    log_dir.delete_topic(TOPIC)
    with pytest.raises(InvalidConfigError, match="cannot change while segments are there"):
        log_dir.alter_broker_configs(add={"rsm.config.layout": "aiven"})


def test_place_that_the_machine_does_not_permit_is_refused_before_the_format_version_rises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    monkeypatch.setenv(PERMITTED_VARIABLE, str(tmp_path / "other"))
    with pytest.raises(InvalidConfigError, match=PERMITTED_VARIABLE):
        log_dir.alter_broker_configs(add={"rsm.config.location": str(tmp_path / "store")})
    native = LogDir.open(tmp_path / "log").root.native()
    assert native.store.image.format_version == FORMAT_VERSION
    assert "rsm.config.location" not in native.broker_configs()


def test_validated_change_leaves_the_marker_file_of_a_killed_upgrade(tmp_path: Path) -> None:
    create_root(tmp_path / "log")
    as_first_format(tmp_path / "log")
    log_dir = LogDir.open(tmp_path / "log")
    log_dir.alter_broker_configs(add={"rsm.config.location": str(tmp_path / "store")})
    directory = metadata_dir(tmp_path / "log")
    marker = (directory / FORMAT_MARKER).read_bytes()
    write_marker(directory, LOCAL, FIRST_FORMAT_VERSION)
    killed = (directory / FORMAT_MARKER).read_bytes()
    native = LogDir.open(log_dir.path).root.native()
    change = ConfigChange({"num.partitions": "3"}, ())
    native.change_broker_configs(lambda current: change, validate_only=True)
    assert (directory / FORMAT_MARKER).read_bytes() == killed
    native.change_broker_configs(lambda current: change)
    assert (directory / FORMAT_MARKER).read_bytes() == marker != killed


@pytest.mark.parametrize("permitted", ["", "{tmp}/other", "s3://bucket/tiered,{tmp}/sto", "{tmp}/store/deeper"])
def test_place_that_the_machine_does_not_permit_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], permitted: str
) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", local_retention_bytes="1")
    append_rounds(log_dir, 12)
    monkeypatch.setenv(PERMITTED_VARIABLE, permitted.format(tmp=tmp_path))
    assert main(["tier", "--path", str(tmp_path / "log")]) == 1
    assert PERMITTED_VARIABLE in "".join(capsys.readouterr())
    assert list((tmp_path / "store").iterdir()) == []
    assert log_dir.read(TOPIC).num_rows > 0

    monkeypatch.setenv(PERMITTED_VARIABLE, f"s3://bucket/tiered, {tmp_path}")
    for command in ("tier", "retention"):
        assert main([command, "--path", str(tmp_path / "log")]) == 0
    stored = sorted((tmp_path / "store").rglob("*"))
    assert stored
    rows = log_dir.read(TOPIC).num_rows
    assert rows > 0

    monkeypatch.setenv(PERMITTED_VARIABLE, permitted.format(tmp=tmp_path))
    with pytest.raises(InvalidConfigError, match=PERMITTED_VARIABLE):
        LogDir.open(tmp_path / "log").read(TOPIC)
    main(["retention", "--path", str(tmp_path / "log")])
    assert sorted((tmp_path / "store").rglob("*")) == stored
