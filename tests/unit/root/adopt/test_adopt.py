"""Adoption of a broker's directory: contents and identity kept, and a crash at any call followed by a full adoption."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from builders.adopted_roots import METADATA_DIR, clock, contents, copy_of, topic_records, write_metadata_log
from builders.controlled import adopt_log_dir, open_log_dir
from fakes.stopping_filesystem import Killed, StoppingFileSystem, broken_disk
from repository import FIXTURES
from tiers import rest_full

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.root.adopt.adopt import Adoption, adopt
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR, WORK_DIR

ROOTS = sorted(path.parent.parent.name for path in FIXTURES.glob("*/expected/manifest.json"))


def identity(root: Path) -> dict[str, tuple[str | None, list[int]]]:
    log_dir = open_log_dir(root, clock=clock)
    described = [log_dir.topic(name) for name in log_dir.topics()]
    return {each.name: (each.topic_id, [one.leader_epoch for one in each.partitions]) for each in described}


@pytest.mark.parametrize("fixture", ROOTS)
def test_adopted_root_reads_equal_without_copying_logs(fixture: str, tmp_path: Path) -> None:
    root = copy_of(fixture, tmp_path)
    before, before_identity = contents(root), identity(root)
    was_clean = (root / ".kafka_cleanshutdown").exists()
    logs = {path: path.stat().st_ino for path in root.glob("*/*.log")}
    log_dir = adopt_log_dir(root, clock=clock)
    assert not log_dir.is_broker_directory
    assert contents(root) == before
    after_identity = identity(root)
    assert {name: topic_id for name, (topic_id, _) in after_identity.items()} == {
        name: topic_id for name, (topic_id, _) in before_identity.items()
    }
    for name, (_, epochs) in before_identity.items():
        assert after_identity[name][1] == [epoch if was_clean else epoch + 1 for epoch in epochs]
    for path, inode in logs.items():
        if path.parent.name != METADATA_DIR:
            assert path.stat().st_ino == inode, "a log was copied"


@pytest.mark.parametrize("fixture", ROOTS)
@pytest.mark.slow
def test_adopted_partitions_accept_records_after_those_of_broker(fixture: str, tmp_path: Path) -> None:
    root = copy_of(fixture, tmp_path)
    before = contents(root)
    log_dir = adopt_log_dir(root, clock=clock)
    adopted_identity = identity(root)
    values = [b"x" * 100] * 100
    for topic in log_dir.topics():
        if log_dir.log_config(topic).compact:
            continue
        log_dir.alter_topic(topic, add={"internal.segment.bytes": "6000"})
        for each in log_dir.topic(topic).partitions:
            for _ in range(3):
                log_dir.append(topic, pa.table({"value": pa.array(values, pa.binary())}), partition=each.partition)
    for topic, (uncommitted, _, offsets) in contents(root).items():
        if log_dir.log_config(topic).compact:
            continue
        was_uncommitted, _, was_offsets = before[topic]
        partitions = range(len(offsets))
        for partition in partitions:
            old = [row for row in was_uncommitted if row["partition"] == partition]
            new = [row for row in uncommitted if row["partition"] == partition]
            assert new[: len(old)] == old
            assert [row["value"] for row in new[len(old) :]] == values * 3
            (start, end, stable), (was_start, was_end, was_stable) = offsets[partition], was_offsets[partition]
            assert (start, end) == (was_start, was_end + 300)
            assert stable == (was_stable if was_stable < was_end else end), "an open transaction was forgotten"
    assert identity(root) == adopted_identity, "a log that was closed cleanly was taken for a crashed writer's"
    image = LocalMetadataStore.open(root).image
    snapshot = ImageDelta(MetadataImage(), commit_offset=0, timestamp_ms=0, is_snapshot=True)
    snapshot.replay(image_records(image))
    assert snapshot.build(image.next_offset).topics == image.topics


def test_recovery_during_adoption_ends_where_kafkas_ends(tmp_path: Path) -> None:
    root = tmp_path / "unclean"
    shutil.copytree(FIXTURES / "unclean", root)
    outcome = adopt(root, clock=clock)
    assert contents(root) == contents(FIXTURES / "unclean-recovered")
    cut = {each.topic_partition.topic: each.cut_bytes for each in outcome.partitions if each.cut_bytes}
    assert cut.keys() == {"unclean-badcrc", "unclean-garbage", "unclean-torn"}


def test_adoption_removes_clean_shutdown_file_and_keeps_checkpoints(tmp_path: Path) -> None:
    root = copy_of("cars", tmp_path)
    adopt(root, clock=clock)
    assert not (root / ".kafka_cleanshutdown").exists()
    assert {path.name for path in root.iterdir()} >= {
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
    }
    assert not (root / WORK_DIR).exists()


def test_next_producer_id_is_above_those_in_adopted_logs(tmp_path: Path) -> None:
    root = copy_of("idempotent", tmp_path)
    outcome = adopt(root, clock=clock)
    seen = {
        int(line.split("producerId: ")[1].split()[0])
        for dump in (FIXTURES / "idempotent" / "expected").rglob("*.log.txt")
        for line in dump.read_text().splitlines()
        if "producerId: " in line
    }
    assert max(seen) > 0
    assert outcome.next_producer_id > max(seen)
    assert LocalMetadataStore.open(root).image.next_producer_id == outcome.next_producer_id


def test_second_adoption_changes_nothing(tmp_path: Path) -> None:
    root = copy_of("transactions", tmp_path)
    adopt(root, clock=clock)
    before = contents(root)
    again = adopt(root, clock=clock)
    assert again.was_native
    assert not again.partitions
    assert contents(root) == before


# Crashes


def crash_points(root: Path, tmp_path: Path, error: Callable[[], BaseException]) -> Iterator[Path]:
    """Copies of `root` in which adopting died at each of its calls in turn."""
    dies_at = 0
    while True:
        copy = tmp_path / f"copy-{dies_at}"
        shutil.copytree(root, copy)
        fs = StoppingFileSystem(dies_at, error=error)
        try:
            adopt(copy, clock=clock, fs=fs)
        except (Killed, OSError):
            yield copy
        else:
            assert dies_at > 50
            return
        finally:
            shutil.rmtree(copy)
        dies_at += 1


@pytest.mark.slow
@pytest.mark.parametrize(("fixture", "error"), rest_full([("transactions", Killed), ("unclean", broken_disk)]))
def test_crash_at_any_call_keeps_contents_and_next_adoption_succeeds(
    fixture: str, error: Callable[[], BaseException], tmp_path: Path
) -> None:
    root = copy_of(fixture, tmp_path)
    if fixture == "unclean":
        for name in ("garbage", "killed", "noindex"):
            shutil.rmtree(root / f"unclean-{name}-0")
    else:
        shutil.rmtree(root / "transactions-1")
    topic = LogDir.open(root).topics()[0]
    metadata_records = topic_records(topic, LogDir.open(root).topic(topic).topic_id or "", {}, retention_ms="-1")
    write_metadata_log(root, metadata_records)
    before = contents(root)
    for left in crash_points(root, tmp_path, error):
        assert contents(left) == before, "neither the broker's root nor ours"
        outcome = adopt(left, clock=clock)
        assert contents(left) == before
        assert is_native_root(left)
        assert dict(LogDir.open(left).topic(topic).configs) == {"retention.ms": "-1"}
        assert (left / KEPT_METADATA_DIR / "quorum-state").exists()
        assert not (left / WORK_DIR).exists()
        assert isinstance(outcome, Adoption)
        LogDir.open(left).append(topic, pa.table({"value": ["after"]}))
