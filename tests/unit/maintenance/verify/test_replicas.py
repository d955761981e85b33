"""Verification of several brokers' directories: each replica by itself, and the batches of replicas with each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders.broker_disks import cluster
from builders.tiered_fixtures import ALL

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.findings import Finding, Severity
from pyspark_kafkalog.maintenance.verify.verify import Verification, verify
from pyspark_kafkalog.storage.names import TopicPartition

__all__ = ["cluster"]

LEADER_EPOCH_AT = 12
CRC_AT = 17


def verified(paths: list[Path], *topics: str) -> Verification:
    return verify(LogDir.open(paths).root, topics=topics or None)


def of_kind(found: Verification, what: str) -> list[Finding]:
    return [each for each in found.findings if each.what == what]


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def add_cleaned(root: Path, line: str) -> None:
    (root / "cleaner-offset-checkpoint").write_text(f"0\n1\n{line}\n")


def test_batches_of_another_leader_are_a_finding_with_directories_offsets_and_epochs(cluster: list[Path]) -> None:
    found = verified(cluster)
    (finding,) = of_kind(found, "replica-differs")
    assert finding.severity is Severity.ERROR
    assert finding.partition == TopicPartition("elected", 0)
    assert finding.file == str(cluster[0] / "elected-0" / "00000000000000000000.log")
    assert (finding.offset, finding.position) == (40, 1211)
    assert finding.expected.startswith("a batch of offsets 40 to 49 with leader epoch 1")
    assert finding.expected.endswith(f"as in {cluster[1] / 'elected-0'}")
    assert "offsets 40 to 49 with leader epoch 0" in finding.found
    assert "offsets 40 to 69 are below both high watermarks" in finding.found
    assert not found.is_sound


def test_replicas_that_are_behind_are_no_finding(cluster: list[Path]) -> None:
    found = verified(cluster, "orders")
    assert found.findings == []
    assert [(each.topic_partition.partition, each.batches_read) for each in found.reports] == [(0, 42), (1, 51)]


def test_replica_of_deleted_topic_is_named_and_not_compared(cluster: list[Path]) -> None:
    (finding,) = verified(cluster, "again").findings
    assert (finding.what, finding.severity) == ("replica-of-deleted-topic", Severity.INFO)
    assert finding.file == str(cluster[0] / "again-0" / "partition.metadata")


def test_each_directory_is_verified_by_itself(cluster: list[Path]) -> None:
    log = cluster[0] / "orders-0" / "00000000000000000000.log"
    patch(log, log.stat().st_size - 3, b"!!!")
    (cluster[2] / "log-start-offset-checkpoint").write_text("garbage")
    found = verified(cluster[:2])
    assert str(log) in {each.file for each in found.findings if each.severity is Severity.ERROR}
    shutil.copyfile(cluster[1] / "log-start-offset-checkpoint", cluster[2] / "log-start-offset-checkpoint")
    (cluster[2] / "cleaner-offset-checkpoint").write_text("garbage")
    (finding,) = of_kind(verified(cluster), "checkpoint")
    assert finding.file == str(cluster[2] / "cleaner-offset-checkpoint")


@pytest.mark.parametrize("position", [CRC_AT, LEADER_EPOCH_AT + 3])
def test_one_changed_batch_of_the_same_epoch_is_found(cluster: list[Path], position: int) -> None:
    log = cluster[2] / "orders-0" / "00000000000000000000.log"
    data = log.read_bytes()
    patch(log, position, bytes([data[position] ^ 1]))
    (finding,) = of_kind(verified(cluster, "orders"), "replica-differs")
    assert (finding.offset, finding.position, finding.file) == (0, 0, str(log))


def test_batches_that_a_replica_lacks_are_found(cluster: list[Path]) -> None:
    stale = cluster[2] / "orders-0"
    last = max(stale.glob("*.log"))
    data = last.read_bytes()
    second = 12 + int.from_bytes(data[8:12], "big")
    third = second + 12 + int.from_bytes(data[second + 8 : second + 12], "big")
    last.write_bytes(data[:second] + data[third:])
    for index in stale.glob(f"{last.stem}.*index"):
        index.unlink()
    found = of_kind(verified(cluster, "orders"), "replica-differs")
    assert [(each.file, each.offset, each.position) for each in found] == [(str(last), 130, second)]
    last.write_bytes(data[:second])
    assert not of_kind(verified(cluster, "orders"), "replica-differs")  # a shorter log is behind


def test_offsets_that_a_cleaner_may_have_changed_are_not_compared(cluster: list[Path]) -> None:
    log = cluster[2] / "orders-0" / "00000000000000000000.log"
    patch(log, LEADER_EPOCH_AT, (7).to_bytes(4, "big"))
    assert of_kind(verified(cluster, "orders"), "replica-differs")
    for root in cluster[1:]:
        add_cleaned(root, "orders 0 10")
        assert not of_kind(verified(cluster, "orders"), "replica-differs")
        add_cleaned(root, "orders 0 0")
        assert of_kind(verified(cluster, "orders"), "replica-differs")


def test_replicas_of_a_tiered_log_have_no_missing_segments(tmp_path: Path) -> None:
    disks = []
    for node in (1, 2):
        disk = Path(shutil.copytree(ALL[0].log_dir, tmp_path / f"node-{node}"))
        properties = (disk / "meta.properties").read_text().splitlines()
        kept = [line for line in properties if not line.startswith(("directory.id", "node.id"))]
        (disk / "meta.properties").write_text("\n".join([*kept, f"node.id={node}", ""]))
        disks.append(disk)
    found = verified(disks, "tiered")
    assert of_kind(found, "segment-missing") == []
    assert found.is_sound


def test_partition_in_two_log_dirs_of_one_broker_is_found(cluster: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "second"
    copy.mkdir()
    shutil.copytree(cluster[1] / "orders-0", copy / "orders-0")
    properties = (cluster[1] / "meta.properties").read_text().splitlines()
    kept = [line for line in properties if not line.startswith("directory.id")]
    (copy / "meta.properties").write_text("\n".join([*kept, "directory.id=AAAAAAAAAAAAAAAAAAAAAw", ""]))
    (finding,) = of_kind(verified([*cluster, copy], "orders"), "duplicate-directory")
    assert (finding.severity, finding.file) == (Severity.WARNING, str(copy / "orders-0"))
    assert "in the log.dirs of node 2" in finding.expected
