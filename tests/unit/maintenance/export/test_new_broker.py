"""An export for a new broker is what a broker's directory is: read back with its remote storage, it holds the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.controlled import open_log_dir
from builders.metadata_roots import forget_images
from builders.tiered_exports import drop_local_segments, set_leader_epoch, tier_closed_segments
from builders.tiered_roots import TOPIC, append_rounds, file_root, tiered_root
from fakes.stopping_filesystem import Killed, StoppingFileSystem
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.export.export import export_new_broker
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.root.brokers.image import read_broker_metadata
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties, was_clean_shutdown
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

ORDERS = TopicPartition(TOPIC, 0)
ACL = Acl(
    ResourceType.TOPIC, "ord", PatternType.PREFIXED, "User:ann", "*", AclOperation.READ, PermissionType.ALLOW
)  # fmt: skip


@pytest.fixture
def original(tmp_path: Path) -> LogDir:
    """Two leader epochs, of which all closed segments are remote and the last four local too; and a topic besides."""
    (tmp_path / "tier" / "kafka-tiered-storage").mkdir(parents=True)
    log_dir = tiered_root(tmp_path / "root", tmp_path / "tier" / "kafka-tiered-storage", layout="local")
    append_rounds(log_dir, 10)
    set_leader_epoch(log_dir, ORDERS)
    append_rounds(log_dir, 10)
    log_dir.create_topic("plain", partitions=1)
    append_rounds(log_dir, 2, topic="plain")
    log_dir.access_control().add([ACL])
    log_dir.refresh()
    return log_dir


def tiered(log_dir: LogDir) -> int:
    """Tier the closed segments, and leave four of the topic's segments local; the local log start."""
    tier_closed_segments(log_dir, ORDERS)
    return drop_local_segments(log_dir, ORDERS, kept_bytes=5000)


def rows(log_dir: LogDir, topic: str = TOPIC) -> list[dict[str, object]]:
    return log_dir.read(topic, columns=["partition", "offset", "value", "timestamp"]).to_pylist()


def exported(original: LogDir, target: Path) -> LogDir:
    """The directory as a broker's, with its remote storage."""
    export_new_broker(file_root(original), target, metadata_partitions=5, tiered=True)
    return LogDir.open(target, remote_storage=original.path.parent / "tier")


def test_directory_and_remote_storage_hold_the_same_log(original: LogDir, tmp_path: Path) -> None:
    expected = {topic: rows(original, topic) for topic in (TOPIC, "plain")}
    local_start = tiered(original)
    copy = exported(original, tmp_path / "broker")
    assert copy.is_broker_directory
    assert {topic: rows(copy, topic) for topic in expected} == expected
    found = copy.partition(TOPIC, 0)
    assert (found.log_start_offset, found.local_log_start_offset) == (0, local_start)
    segments = file_root(original).store.image.partition(TOPIC, 0).segments
    assert found.latest_tiered_offset == segments[-1].end_offset - 1
    assert read_offset_checkpoint(copy.path / "log-start-offset-checkpoint") == {ORDERS: 0}
    assert main(["verify", "--path", str(copy.path), "--remote-storage", str(original.path.parent / "tier")]) == 0
    epochs = (original.path / "orders-0" / "leader-epoch-checkpoint").read_text()
    assert (copy.path / "orders-0" / "leader-epoch-checkpoint").read_text() == epochs == "0\n2\n0 0\n1 200\n"


def test_metadata_of_the_quorum_are_kafkas_own_records(original: LogDir, tmp_path: Path) -> None:
    tiered(original)
    copy = exported(original, tmp_path / "broker")
    image = file_root(original).store.image
    found = read_broker_metadata(copy.path / "__cluster_metadata-0")
    assert found.damage is None
    assert {name: found.topics[name].topic_id for name in image.topics} == {
        name: each.topic_id for name, each in image.topics.items()
    }
    assert len(found.topics["__remote_log_metadata"].partitions) == 5
    assert found.topic_configs[TOPIC] == image.topic(TOPIC).configs
    assert list(found.acls.values()) == [ACL]
    properties = read_meta_properties(copy.path / "meta.properties")
    assert properties.cluster_id == read_meta_properties(original.path / "meta.properties").cluster_id
    assert properties.directory_id != read_meta_properties(original.path / "meta.properties").directory_id
    assert [each.directories for each in found.topics[TOPIC].partitions.values()] == [(properties.directory_id,)]
    assert was_clean_shutdown(copy.path)


def test_every_local_segment_of_tiered_topic_gets_producer_snapshot(original: LogDir, tmp_path: Path) -> None:
    tiered(original)
    for path in (original.path / "orders-0").glob("*.snapshot"):
        path.unlink()
    copy = exported(original, tmp_path / "broker")
    listing = PartitionListing.read(copy.path / "orders-0")
    assert len(listing.base_offsets) == 4
    assert set(listing.base_offsets) <= set(listing.snapshot_offsets)


def test_remote_part_is_copied_back_unless_it_is_to_stay(original: LogDir, tmp_path: Path) -> None:
    expected = rows(original)
    tiered(original)
    export_new_broker(file_root(original), tmp_path / "broker", metadata_partitions=5)
    copy = LogDir.open(tmp_path / "broker")
    assert rows(copy) == expected
    assert not list(copy.path.glob("__remote_log_metadata-*"))
    assert copy.partition(TOPIC, 0).local_log_start_offset == 0
    assert read_offset_checkpoint(copy.path / "log-start-offset-checkpoint") == {ORDERS: 0}


def test_without_tiered_segments_the_broker_makes_its_metadata_topic_itself(original: LogDir, tmp_path: Path) -> None:
    expected = rows(original)
    copy = exported(original, tmp_path / "broker")
    assert rows(copy) == expected
    assert not list(copy.path.glob("__remote_log_metadata-*"))


def test_killed_export_leaves_what_no_broker_starts_on_and_is_completed(original: LogDir, tmp_path: Path) -> None:
    expected = rows(original)
    tiered(original)
    counting = StoppingFileSystem(10**9)
    export_new_broker(
        file_root(open_log_dir(original.path, fs=counting)), tmp_path / "whole", metadata_partitions=2, tiered=True
    )
    target, unfinished = tmp_path / "broker", 0
    for stops_at in range(8, counting.changes - 16, 17):
        killed = file_root(open_log_dir(original.path, fs=StoppingFileSystem(stops_at)))
        with pytest.raises(Killed):
            export_new_broker(killed, target, metadata_partitions=2, tiered=True)
        forget_images()
        if (target / "__cluster_metadata-0" / "kafkalog-format").exists():
            unfinished += 1
            assert not (target / "meta.properties").exists()
            with pytest.raises(LogDirError, match="has not finished: run the same export again, or remove it"):
                LogDir.open(target)
    assert unfinished > 5
    assert rows(exported(original, target)) == expected
    with pytest.raises(LogDirError, match="name another"):
        exported(original, target)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--new-broker"], "--new-broker needs --to"),
        (["--new-broker", "--to", "x", "--overwrite"], "cannot be used with --overwrite"),
        (["--tiered"], "--tiered needs --to"),
        (["--new-broker", "--to", "x", "--metadata-partitions", "0"], "must be 1 or more, not 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    original: LogDir, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = Command("export", original.path, capsys).try_to(*arguments)
    assert code != 0
    assert message in err


def test_command_prints_what_the_brokers_file_must_say(
    original: LogDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original.alter_broker_configs(add={"log.retention.hours": "5", "log.cleaner.threads": "2"})
    _, out, _ = Command("export", original.path, capsys).try_to("--to", str(tmp_path / "broker"), "--new-broker")
    assert out.splitlines()[2:] == [
        "process.roles=broker,controller",
        "node.id=1",
        "controller.quorum.voters=1@localhost:9093",
        f"log.dirs={tmp_path / 'broker'}",
        "log.retention.hours=5",
        "remote.log.storage.system.enable=true",
        "offsets.topic.replication.factor=1",
        *(f"share.coordinator.state.topic.{each}=1" for each in ("min.isr", "replication.factor")),
        *(f"transaction.state.log.{each}=1" for each in ("min.isr", "replication.factor")),
        "rlmm.config.remote.log.metadata.topic.num.partitions=50",
    ]
