"""Several directories of brokers with remote storage: a tiering broker's log.dirs, and replicas of its partitions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders.broker_disks import set_property
from builders.tiered_fixtures import ALL, ISOLATIONS, rows_of

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.record.scan import scan_batches

FIXTURE = ALL[0]
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAw"


def copy(to: Path, *, without: Sequence[str] = ()) -> Path:
    """The broker's directory, without these partitions."""
    shutil.copytree(FIXTURE.log_dir, to, ignore=shutil.ignore_patterns(*without))
    for path in to.glob("*-offset-checkpoint"):
        kept = [line for line in path.read_text().splitlines()[2:] if "-".join(line.split()[:2]) not in without]
        path.write_text("\n".join(["0", str(len(kept)), *kept, ""]))
    return to


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """The broker's partitions in two log.dirs; what it noted of remote segments is in both."""
    first, second = ("tiered-1", "tiered-overlap-0", "__remote_log_metadata-0"), ("tiered-0", "tiered-2")
    one = copy(tmp_path / "disk-1", without=[*first, "__cluster_metadata-0"])
    rest = [each.name for each in FIXTURE.log_dir.iterdir() if each.is_dir() and each.name not in first]
    two = copy(tmp_path / "disk-2", without=[each for each in rest if each != "__cluster_metadata-0"])
    set_property(two, "directory.id", OTHER_ID)
    assert not {each.name for each in one.iterdir() if each.is_dir()} & {each.name for each in two.glob("*-?")}
    assert set(second) <= {each.name for each in one.iterdir()}
    return [one, two]


@pytest.fixture
def replicas(tmp_path: Path) -> list[Path]:
    """The disks of the leader of all partitions, and of a follower whose tail of tiered-0 is shorter."""
    follower = copy(tmp_path / "follower", without=["__remote_log_metadata-0", "__remote_log_metadata-1"])
    set_property(follower, "node.id", "2")
    set_property(follower, "directory.id", OTHER_ID)
    (follower / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (log,) = (follower / "tiered-0").glob("*.log")
    data = log.read_bytes()
    batches = scan_batches(data, file=str(log)).batches
    middle = len(batches) // 2
    base, position = int(batches["base_offset"][middle]), int(batches["position"][middle])
    assert 552 < base < 690
    log.write_bytes(data[:position])
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).write_bytes(b"")
    checkpoint = follower / "replication-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("tiered 0 690\n", f"tiered 0 {base}\n"))
    return [copy(tmp_path / "leader"), follower]


def read(paths: Sequence[Path], topic: str, isolation: Any) -> list[tuple[Any, ...]]:
    return rows_of(LogDir.open(list(paths), remote_storage=FIXTURE.remote).read(topic, isolation=isolation))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_log_dirs_of_a_tiering_broker_read_as_its_consumers_did(disks: list[Path], isolation: str) -> None:
    for topic in FIXTURE.topics():
        for paths in (disks, disks[::-1]):
            assert read(paths, topic, isolation) == FIXTURE.rows(topic, isolation)


def test_offsets_are_those_that_the_broker_answered(disks: list[Path], replicas: list[Path]) -> None:
    single = LogDir.open(FIXTURE.log_dir, remote_storage=FIXTURE.remote)
    for paths in (disks, replicas):
        several = LogDir.open(paths, remote_storage=FIXTURE.remote)
        for topic in FIXTURE.topics():
            for one, other in zip(several.topic(topic).partitions, single.topic(topic).partitions, strict=True):
                assert (one.log_start_offset, one.local_log_start_offset, one.latest_tiered_offset) == (
                    other.log_start_offset,
                    other.local_log_start_offset,
                    other.latest_tiered_offset,
                )
                assert (one.high_watermark, one.last_stable_offset) == (other.high_watermark, other.last_stable_offset)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_best_replica_goes_on_where_remote_segments_end(replicas: list[Path], isolation: str) -> None:
    for topic in FIXTURE.topics():
        for paths in (replicas, replicas[::-1]):
            assert read(paths, topic, isolation) == FIXTURE.rows(topic, isolation)
    found = LogDir.open(replicas, remote_storage=FIXTURE.remote).topic("tiered").partitions[0]
    assert [each.node_id for each in found.replicas] == [1, 2]
    assert [each.difference for each in found.replicas] == [None, None]
    assert found.replicas[1].log_end_offset < found.replicas[0].log_end_offset == found.high_watermark


def test_follower_without_notes_of_remote_segments_reads_them_by_the_other_directory(replicas: list[Path]) -> None:
    leader, follower = replicas
    shutil.rmtree(leader / "tiered-1")
    assert read([leader, follower], "tiered", "read_uncommitted") == FIXTURE.rows("tiered", "read_uncommitted")


def test_verify_of_several_directories_finds_no_damage_in_remote_segments(
    disks: list[Path], replicas: list[Path]
) -> None:
    for paths in (disks, replicas):
        verification = verify(LogDir.open(paths, remote_storage=FIXTURE.remote).root, are_records_checked=True)
        assert verification.is_sound, [each for each in verification.findings if each.severity == "error"]
