"""Several directories of brokers as one root: a broker's log.dirs, and disks of a cluster whose replicas differ."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path

import pytest
from builders.broker_disks import cluster, cluster_rows, killed, log_dirs, set_property
from builders.controlled import open_log_dir

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import DiskFormatError, LogDirError, ReadOnlyLogDirError, UnknownTopicError
from pyspark_kafkalog.root.snapshot import Difference
from pyspark_kafkalog.storage.artefacts import partition_listing
from pyspark_kafkalog.storage.names import TopicPartition

__all__ = ["cluster", "killed", "log_dirs"]


def rows(log_dir: LogDir, topic: str) -> list[tuple[int, int, int, str]]:
    """Partition, offset, timestamp in ms and value of all records."""
    columns = ["partition", "offset", "timestamp", "value"]
    found = log_dir.read(topic, columns=columns).to_pydict()
    times_ms = [round(each.timestamp() * 1000) for each in found["timestamp"]]
    values = [each.decode() for each in found["value"]]
    return sorted(zip(found["partition"], found["offset"], times_ms, values, strict=True))


def chosen(log_dir: LogDir, topic: str) -> list[str]:
    """The directory that each partition is read from."""
    return [each.directory.parent.name for each in log_dir.topic(topic).partitions]


@pytest.mark.parametrize("read_to_log_end", [False, True])
def test_log_dirs_of_one_broker_read_as_its_single_directory(
    killed: Path, log_dirs: list[Path], read_to_log_end: bool
) -> None:
    alone = LogDir.open(killed, read_to_log_end=read_to_log_end)
    several = LogDir.open(log_dirs, read_to_log_end=read_to_log_end)
    assert several.topics() == alone.topics()
    for name in alone.topics():
        ours, theirs = several.topic(name), alone.topic(name)
        assert (ours.topic_id, dict(ours.configs)) == (theirs.topic_id, dict(theirs.configs))
        for one, other in zip(ours.partitions, theirs.partitions, strict=True):
            assert (one.high_watermark, one.log_end_offset) == (other.high_watermark, other.log_end_offset)
            assert one.last_stable_offset == other.last_stable_offset
    for name in ("orders", "paid"):
        for isolation in ("read_uncommitted", "read_committed"):
            assert several.read(name, isolation=isolation).equals(alone.read(name, isolation=isolation))
    assert several.groups() == alone.groups()
    assert several.group("billing").fetch() == alone.group("billing").fetch()


def test_cluster_reads_as_consumers_did_whichever_order_the_disks_have(cluster: list[Path]) -> None:
    for paths in (cluster, cluster[::-1], [*cluster[1:], cluster[0]]):
        log_dir = LogDir.open(paths)
        assert log_dir.topics() == ("__consumer_offsets", "again", "elected", "orders")
        for topic in ("orders", "elected", "again"):
            assert rows(log_dir, topic) == cluster_rows(topic)
        (committed,) = log_dir.group("billing").fetch().values()
        assert committed.offset == 120
        assert dict(log_dir.topic("elected").configs)["unclean.leader.election.enable"] == "true"


def test_path_with_commas_opens_what_a_sequence_opens(cluster: list[Path], tmp_path: Path) -> None:
    log_dir = LogDir.open(",".join(map(str, cluster)))
    assert rows(log_dir, "orders") == cluster_rows("orders")
    assert log_dir.path == Path(",".join(map(str, cluster)))
    assert LogDir.open(log_dir.path).topics() == log_dir.topics()
    with_comma = Path(shutil.copytree(cluster[1], tmp_path / "copy,2"))
    assert LogDir.open(with_comma).root.directories == (with_comma,)
    assert rows(LogDir.open(f"{cluster[0]},{with_comma}"), "elected") == cluster_rows("elected")


def test_replica_of_latest_epoch_is_read_and_others_are_compared(cluster: list[Path]) -> None:
    (elected,) = LogDir.open(cluster).topic("elected").partitions
    best, other = elected.replicas
    assert (best.node_id, best.leader_epoch, best.high_watermark, best.difference) == (2, 1, 90, None)
    assert (other.node_id, other.leader_epoch, other.high_watermark) == (1, 0, 70)
    assert other.difference == Difference(offset=40, end_offset=70, epoch=1, other_epoch=0)


def test_reader_is_told_of_replicas_that_differ(cluster: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    log_dir = LogDir.open(cluster)
    log_dir.read("orders")
    assert not caplog.messages
    log_dir.read("elected")
    (message,) = caplog.messages
    assert "replicas of 1 partition differ below their high watermarks (elected-0: offsets 40 to 69 are" in message
    assert f"of leader epoch 1 in {cluster[1]} and of 0 in {cluster[0]})" in message


def test_reader_is_told_of_copies_of_the_same_disk(
    cluster: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(cluster[1], tmp_path / "copy")
    log_dir = LogDir.open([*cluster, tmp_path / "copy"])
    assert rows(log_dir, "orders") == cluster_rows("orders")
    (message,) = caplog.messages
    assert f"{cluster[1]} and {tmp_path}/copy have the same directory.id" in message


def test_replica_behind_is_no_difference_and_not_read(cluster: list[Path]) -> None:
    for found in LogDir.open(cluster).topic("orders").partitions:
        assert [each.difference for each in found.replicas] == [None, None, None]
        ends = {each.node_id: each.log_end_offset for each in found.replicas}
        assert ends[1] < ends[2] == ends[3] == found.high_watermark


def test_high_watermark_decides_between_replicas_of_one_epoch(cluster: list[Path]) -> None:
    checkpoint = cluster[1] / "replication-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("orders 0 160", "orders 0 150"))
    log_dir = LogDir.open(cluster)
    assert chosen(log_dir, "orders") == ["3", "2"]
    assert rows(log_dir, "orders") == cluster_rows("orders")


def test_epochs_that_only_the_checkpoint_file_lacks_are_no_difference(cluster: list[Path]) -> None:
    stale = cluster[2] / "elected-0"
    shutil.copytree(cluster[1] / "elected-0", stale)
    (stale / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")  # as a power failure may leave it
    (elected,) = LogDir.open(cluster).topic("elected").partitions
    assert {each.node_id: each.difference is None for each in elected.replicas} == {1: False, 2: True, 3: True}


def test_metadata_log_decides_between_topic_ids(cluster: list[Path]) -> None:
    old = cluster[0] / "again-0" / "partition.metadata"
    os.utime(old, (2**32, 2**32))
    log_dir = LogDir.open(cluster)
    assert rows(log_dir, "again") == cluster_rows("again")
    (found,) = log_dir.topic("again").partitions
    assert {each.node_id: each.is_of_other_topic for each in found.replicas} == {1: True, 2: False, 3: False}
    assert found.replicas[0].topic_id == found.topic_id != found.replicas[1].topic_id


@pytest.mark.parametrize("newest", ["1", "2"])
def test_newest_topic_id_counts_without_a_metadata_log(cluster: list[Path], newest: str) -> None:
    for root in cluster:
        shutil.rmtree(root / "__cluster_metadata-0")
        time_s = 2_000_000_000 if (root.name == "1") == (newest == "1") else 1_000_000_000
        os.utime(root / "again-0" / "partition.metadata", (time_s, time_s))
    log_dir = LogDir.open(cluster)
    assert chosen(log_dir, "again") == [newest]
    assert log_dir.partition("again", 0).high_watermark == (50 if newest == "1" else 20)


def test_partition_that_only_the_deleted_topic_had_does_not_exist(cluster: list[Path]) -> None:
    shutil.copytree(cluster[0] / "again-0", cluster[0] / "again-1")
    log_dir = LogDir.open(cluster)
    assert log_dir.partition_numbers("again") == (0,)
    with pytest.raises(UnknownTopicError, match="no partition 1"):
        log_dir.partition("again", 1)


def test_metadata_log_of_latest_epoch_counts(cluster: list[Path]) -> None:
    directories = LogDir.open(cluster).root.directories
    assert directories[0] != cluster[0]  # the dead node's
    assert sorted(directories) == cluster
    for root in cluster[1:]:
        shutil.rmtree(root / "__cluster_metadata-0")
    assert LogDir.open(cluster[::-1]).root.directories == (cluster[0], cluster[2], cluster[1])


@pytest.mark.parametrize("file", ["leader-epoch-checkpoint", "00000000000000000000.log"])
def test_damaged_metadata_log_is_passed_over_for_another(cluster: list[Path], file: str) -> None:
    best = LogDir.open(cluster).root.directories[0]
    (best / "__cluster_metadata-0" / file).write_bytes(b"\xff" * 100)
    log_dir = LogDir.open(cluster)
    assert log_dir.root.directories[0] not in (best, cluster[0])
    assert dict(log_dir.topic("elected").configs)["unclean.leader.election.enable"] == "true"
    assert rows(log_dir, "again") == cluster_rows("again")


def test_tasks_read_from_the_directory_that_the_plan_chose(cluster: list[Path]) -> None:
    root = LogDir.open(cluster).root
    planned = pickle.loads(pickle.dumps(root.planned_partition(TopicPartition("elected", 0), None)))
    assert Path(planned.directory) == cluster[1] / "elected-0"
    checkpoint = cluster[1] / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nelected 0 7\n")
    assert planned.moved_log_start() == 7
    planned.check_root()


def test_refresh_sees_other_replicas(cluster: list[Path]) -> None:
    log_dir = LogDir.open(cluster[:1] + cluster[2:])
    assert log_dir.partition("elected", 0).high_watermark == 70
    shutil.copytree(cluster[1] / "elected-0", cluster[2] / "elected-0")
    shutil.copy(cluster[1] / "replication-offset-checkpoint", cluster[2])
    log_dir.refresh()
    assert log_dir.partition("elected", 0).high_watermark == 90


def test_nothing_can_be_written(cluster: list[Path]) -> None:
    log_dir = LogDir.open(cluster)
    with pytest.raises(ReadOnlyLogDirError, match="can be read, not written to"):
        log_dir.create_topic("new")
    with pytest.raises(ReadOnlyLogDirError):
        LogDir.open_or_create(log_dir.path).delete_topic("orders")
    with pytest.raises(LogDirError, match="names several directories"):
        LogDir.create(log_dir.path)
    with pytest.raises(LogDirError, match="names several directories"):
        LogDir.adopt(log_dir.path)
    assert sorted(each.name for each in cluster[0].parent.iterdir()) == ["1", "2", "3", "expected.json"]


# What is refused


def test_directory_given_twice_is_refused(cluster: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cluster[0])
    for other in (cluster[0], link, Path(f"{cluster[1]}/../1")):
        with pytest.raises(LogDirError, match="are the same directory: name it once"):
            LogDir.open([cluster[0], other])


def test_directories_of_different_clusters_are_refused(cluster: list[Path]) -> None:
    set_property(cluster[2], "cluster.id", "another")
    expected = rf"{cluster[2]}/meta.properties: expected cluster.id kafkalog-tests-cluster, .*found another"
    with pytest.raises(LogDirError, match=expected):
        LogDir.open(cluster)


def test_native_directory_is_refused_by_name(cluster: list[Path], tmp_path: Path) -> None:
    LogDir.create(tmp_path / "native")
    with pytest.raises(LogDirError, match=rf"{tmp_path}/native is not a broker's directory"):
        LogDir.open([*cluster, tmp_path / "native"])


def test_url_of_an_object_store_is_refused_by_name(cluster: list[Path]) -> None:
    with pytest.raises(LogDirError, match="s3://bucket/log: several directories can only be brokers'"):
        LogDir.open([cluster[0], "s3://bucket/log"])


def test_sequence_of_one_path_opens_that_path(cluster: list[Path], tmp_path: Path) -> None:
    assert LogDir.open([cluster[0]]).root.directories == (cluster[0],)
    LogDir.create(tmp_path / "native")
    assert not LogDir.open([tmp_path / "native"]).is_broker_directory


def test_no_path_is_refused() -> None:
    with pytest.raises(LogDirError, match="no path is given"):
        LogDir.open([])


def test_directory_without_meta_properties_has_no_node(cluster: list[Path]) -> None:
    (cluster[0] / "meta.properties").unlink()
    log_dir = LogDir.open(cluster)
    assert log_dir.identity is None
    assert log_dir.partition("elected", 0).replicas[1].node_id is None
    assert rows(log_dir, "orders") == cluster_rows("orders")


def test_garbage_in_meta_properties_is_an_error_that_names_the_file(cluster: list[Path]) -> None:
    (cluster[1] / "meta.properties").write_bytes(b"version=1\nnode.id=\xff\xfe\n")
    with pytest.raises(DiskFormatError, match=rf"{cluster[1]}/meta.properties"):
        LogDir.open(cluster)


def test_missing_directory_is_an_error_that_names_it(cluster: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match=rf"cannot open the log directory.*{tmp_path}/none"):
        LogDir.open([*cluster, tmp_path / "none"])


def test_directory_that_vanishes_is_an_error_at_the_next_refresh(cluster: list[Path]) -> None:
    log_dir = LogDir.open(cluster)
    cluster[2].rename(cluster[2].with_name("gone"))
    with pytest.raises(LogDirError, match=rf"{cluster[2]}: expected .*found no such directory"):
        log_dir.refresh()


def test_directory_without_permission_is_an_error_that_names_it(
    cluster: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: Path) -> object:  # permissions do not keep root out
        if path == cluster[1]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(partition_listing.os, "scandir", refuse)
    with pytest.raises(LogDirError, match=rf"cannot open the log directory: Permission denied.*{cluster[1]}"):
        LogDir.open(cluster)


def test_directory_that_is_a_file_is_an_error_that_names_it(cluster: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"{tmp_path}/file"):
        LogDir.open([*cluster, tmp_path / "file"])


def test_damaged_replica_is_an_error_that_names_the_file(cluster: list[Path]) -> None:
    (cluster[0] / "orders-0" / "leader-epoch-checkpoint").write_text("garbage")
    with pytest.raises(DiskFormatError, match=rf"{cluster[0]}/orders-0/leader-epoch-checkpoint"):
        LogDir.open(cluster).topic("orders")


def test_damaged_replica_of_a_deleted_topic_is_no_error(cluster: list[Path]) -> None:
    (cluster[0] / "again-0" / "leader-epoch-checkpoint").write_text("garbage")
    log_dir = LogDir.open(cluster)
    assert rows(log_dir, "again") == cluster_rows("again")
    assert [each.node_id for each in log_dir.partition("again", 0).replicas] == [2, 3]


def test_stream_of_identity_continues_when_a_directory_is_added(cluster: list[Path]) -> None:
    identity = LogDir.open(cluster[:2]).identity
    assert identity is not None
    assert open_log_dir(cluster, identity=identity).identity == identity
    set_property(cluster[0], "cluster.id", "another")
    set_property(cluster[1], "cluster.id", "another")
    with pytest.raises(LogDirError, match="expected the log directory with cluster id kafkalog-tests-cluster"):
        open_log_dir(cluster[:2], identity=identity)
