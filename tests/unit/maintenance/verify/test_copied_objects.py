"""Verification of a native root that has copied segments: sound ones have no findings, each damage has its own."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from builders.tiered_fixtures import ISOLATIONS
from builders.tiered_logs import (
    OF,
    bases,
    copy_closed,
    delete_local,
    file_root,
    fill,
    image_of,
    move_local_start,
    move_log_start,
    remove_files,
    rows,
    tiering_root,
)
from builders.verify_roots import check_again_at_once

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.findings import Finding, Severity
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentLeaderEpoch, SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tools.main import main


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_again_at_once(monkeypatch)
    remote_objects._cache.cache_clear()


@pytest.fixture(params=["aiven", "local"])
def log_dir(request: pytest.FixtureRequest, tmp_path: Path) -> LogDir:
    """Remote are all closed segments, local the newer half of the log."""
    made = tiering_root(tmp_path / "root", tmp_path / "tier", layout=request.param)
    rng = random.Random(5)
    fill(made, rng, 40)
    fill(made, rng, 40)
    copy_closed(made)
    delete_local(made, bases(made)[len(bases(made)) // 2])
    return made


def found(log_dir: LogDir, *, deep: bool = False) -> list[Finding]:
    return verify(log_dir.root, are_records_checked=deep).findings


def whats(log_dir: LogDir, *, deep: bool = False) -> set[str]:
    return {each.what for each in found(log_dir, deep=deep)}


def tier(log_dir: LogDir) -> Path:
    return Path(log_dir.broker_configs()["rsm.config.location"])


def log_file(log_dir: LogDir, segment: SegmentObject) -> Path:
    (path,) = tier(log_dir).rglob(f"{segment.base_offset:020d}-{segment.segment_id}.log")
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def commit_segment(log_dir: LogDir, segment: SegmentObject, **changes: object) -> None:
    """Replace the segment by one that says something else."""
    root = file_root(log_dir)
    record = SegmentObjectsRecord(
        topic_id=root.store.image.topic(OF.topic).topic_id,
        partition=0,
        planned_at=root.version,
        replaced_segments=(segment.segment_id,),
        segments=(segment.replace(**changes),),
    )
    root.commit(lambda image: [record], operation="x")


@pytest.mark.parametrize("deep", [False, True])
def test_sound_root_has_no_findings_at_any_step(log_dir: LogDir, deep: bool) -> None:
    assert found(log_dir, deep=deep) == []
    report = verify(log_dir.root, are_records_checked=deep).reports[0]
    segments = len(image_of(log_dir).segments) + len(bases(log_dir))
    assert (report.segments_read, report.log_start_offset) == (segments, 0)
    fill(log_dir, random.Random(1), 20)
    assert found(log_dir, deep=deep) == []
    move_log_start(log_dir, image_of(log_dir).segments[2].base_offset + 1)
    assert found(log_dir, deep=deep) == []
    move_local_start(log_dir, image_of(log_dir).segments[-1].base_offset)  # the files are still there
    assert found(log_dir, deep=deep) == []


def test_flipped_byte_in_remote_log_is_found(log_dir: LogDir) -> None:
    segment = image_of(log_dir).segments[3]
    flip(log_file(log_dir, segment), 200)
    (finding,) = found(log_dir)
    assert (finding.what, finding.severity, finding.partition) == ("damaged-object", Severity.ERROR, OF)
    assert str(log_file(log_dir, segment)) in finding.file


def test_missing_object_is_found_by_the_listing_and_by_the_reader(log_dir: LogDir) -> None:
    log_file(log_dir, image_of(log_dir).segments[0]).unlink()
    assert [each.what for each in found(log_dir)] == ["missing-object", "missing-object"]


def test_object_of_another_size_is_found(log_dir: LogDir) -> None:
    path = log_file(log_dir, image_of(log_dir).segments[1])
    path.write_bytes(path.read_bytes()[:-5])
    assert whats(log_dir) == {"object-size", "damaged-object"}


def test_every_missing_object_of_a_segment_is_found(log_dir: LogDir) -> None:
    segment = image_of(log_dir).segments[2]
    paths = sorted(tier(log_dir).rglob(f"*-{segment.segment_id}.*"))
    assert len(paths) >= 3
    for path in paths:
        data = path.read_bytes()
        path.unlink()
        remote_objects._cache.cache_clear()
        assert any(each.what == "missing-object" and str(path) in each.file for each in found(log_dir)), path
        path.write_bytes(data)


def test_objects_that_no_commit_names_are_told_from_orphans(log_dir: LogDir) -> None:
    segment = image_of(log_dir).segments[2]
    path = log_file(log_dir, segment)
    for planned_at in (3, 10_000):
        path.with_name(f"{segment.base_offset:020d}-{new_segment_id(planned_at)}.log").write_bytes(b"x")
    (tier(log_dir) / "somebody-elses").write_bytes(b"x")
    assert [each.what for each in found(log_dir)] == ["uncommitted-object", "uncommitted-object"]
    assert {each.severity for each in found(log_dir)} == {Severity.INFO}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"max_timestamp_ms": 5}, "largest-timestamp"),
        ({"leader_epochs": (SegmentLeaderEpoch(leader_epoch=7, start_offset=0),)}, "leader-epoch"),
    ],
)
def test_what_a_commit_says_of_a_segment_is_compared_with_its_batches(
    log_dir: LogDir, changes: dict[str, object], what: str
) -> None:
    commit_segment(log_dir, image_of(log_dir).segments[1], **changes)
    assert whats(log_dir) == {what}


def test_segment_that_ends_early_is_found(log_dir: LogDir) -> None:
    one, other = image_of(log_dir).segments[1:3]
    path = log_file(log_dir, one)
    root = file_root(log_dir)
    record = SegmentObjectsRecord(
        topic_id=root.store.image.topic(OF.topic).topic_id,
        partition=0,
        planned_at=root.version,
        replaced_segments=(one.segment_id, other.segment_id),
        segments=(one.replace(end_offset=other.end_offset),),
    )
    root.commit(lambda image: [record], operation="x")
    assert path.exists()
    assert "short-object" in whats(log_dir)


def test_missing_local_segment_above_the_local_start_is_found(log_dir: LogDir) -> None:
    fill(log_dir, random.Random(1), 30)
    remove_files(log_dir, bases(log_dir)[1])
    assert "segment-missing" in whats(log_dir)
    (finding,) = [each for each in found(log_dir) if each.what == "segment-missing"]
    assert "the log's local start" in finding.expected


def test_storage_that_cannot_be_listed_is_found(log_dir: LogDir) -> None:
    tier(log_dir).rename(tier(log_dir).with_name("elsewhere"))
    findings = found(log_dir)
    assert findings[0].what == "unreadable"
    assert "no such directory of remote storage" in findings[0].found
    # A directory that is not mounted has lost nothing.
    assert {each.what for each in findings[1:]} == {"unreadable"}


def test_command_verifies_remote_segments_too(log_dir: LogDir, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", "--path", str(log_dir.path), "--output", "json", "--deep"]
    assert main(command) == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (report,) = [each for each in reports if each.get("topic") == "orders"]
    assert report["segmentsRead"] == len(image_of(log_dir).segments) + len(bases(log_dir))
    flip(log_file(log_dir, image_of(log_dir).segments[0]), 70)
    assert main(command) == 1
    assert "damaged-object" in capsys.readouterr().out
    assert len(rows(log_dir, image_of(log_dir).segments[1].base_offset, isolation=ISOLATIONS[1])) > 10
