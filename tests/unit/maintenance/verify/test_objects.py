"""Verification of a log directory in an object store: sound ones have no findings, each damage has its own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from builders.data_objects import T0, Plan, some_batches
from builders.object_roots import StoredRoot

from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.maintenance.reindex import reindex_log
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.findings import Severity
from pyspark_kafkalog.maintenance.verify.verify import Verification, verify
from pyspark_kafkalog.metadata.objects.log import commit_key
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import OwnLayout, index_place
from pyspark_kafkalog.tiered.segments import TopicIdPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
DAY_MS = 86_400_000


@pytest.fixture
def stored(tmp_path: Path) -> StoredRoot:
    """Segments and runs in partition 0, runs in partition 1, one write inside its commit."""
    stored = StoredRoot({"internal.segment.bytes": "2000", "index.interval.bytes": "300"})
    stored.place.clock.now_ms = T0
    rng = random.Random(1)
    for number in range(8):
        if number == 5:
            merged = merge_partition(stored.metadata, stored.objects, stored.config, A, clock=stored.place.clock)
            assert merged is not None
            assert len(merged.segments) > 1
        plans = [Plan(each, some_batches(rng, 3), 40) for each in (A, B)]
        stored.write(tmp_path, *plans, inline_bytes=100_000 if number == 7 else 0)
    return stored


def found(stored: StoredRoot, *, deep: bool = False) -> Verification:
    return verify(stored.opened(), are_records_checked=deep)


def whats(verification: Verification) -> set[str]:
    return {each.what for each in verification.findings}


def data_keys(stored: StoredRoot) -> list[str]:
    return stored.place.bucket.keys("data")


def flip(stored: StoredRoot, key: str, at: int) -> None:
    body = bytearray(stored.place.bucket.body(key))
    body[at] ^= 0xFF
    stored.place.bucket.write(key, bytes(body))


@pytest.mark.parametrize("deep", [False, True])
def test_sound_root_has_no_findings_and_all_of_it_is_read(stored: StoredRoot, deep: bool) -> None:
    verification = found(stored, deep=deep)
    assert verification.findings == []
    for each, log in stored.logs.items():
        report = next(report for report in verification.reports if report.topic_partition == each)
        assert report.batches_read == len(log.batches)
        assert report.bytes_read == sum(map(len, log.batches))
        assert report.is_fine


def test_root_stays_sound_through_retention_and_clean_up(stored: StoredRoot) -> None:
    root = stored.opened()
    delete_records(root, {A: 7, B: -1})
    for _ in range(3):
        assert whats(found(stored)) == set()
        stored.place.clock.now_ms += 2 * DAY_MS
        apply_retention(stored.opened(), topics=[])
    assert found(stored).findings == []


def test_findings_of_objects_that_nobody_names_are_leftovers(stored: StoredRoot, tmp_path: Path) -> None:
    stored.upload(tmp_path, Plan(A, [[T0]]))
    stored.place.bucket.write("elsewhere/readme.txt", b"x")
    verification = found(stored)
    assert whats(verification) == {"uncommitted-object", "stray-object"}
    assert {each.severity for each in verification.findings} == {Severity.INFO}
    assert verification.is_sound


def test_missing_data_object_is_an_error_of_root_and_partitions(stored: StoredRoot) -> None:
    key = data_keys(stored)[-1]
    del stored.place.bucket.objects[key]
    verification = found(stored)
    errors = [each for each in verification.findings if each.what == "missing-object"]
    assert {each.partition for each in errors} >= {None, A}
    assert any(key in each.file for each in errors)
    assert not verification.is_sound


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".rsm-manifest"])
def test_missing_object_of_a_segment_is_found(stored: StoredRoot, suffix: str) -> None:
    key = next(each for each in stored.place.bucket.keys(f"orders-{stored.topic_id}") if each.endswith(suffix))
    del stored.place.bucket.objects[key]
    assert any(each.what == "missing-object" and key in each.file for each in found(stored).findings)


def test_object_of_another_size_is_found(stored: StoredRoot) -> None:
    key = data_keys(stored)[0]
    stored.place.bucket.write(key, stored.place.bucket.body(key)[:-1])
    verification = found(stored)
    assert "object-size" in whats(verification)
    assert "footer" in whats(verification)


def test_flipped_byte_in_a_footer_is_found(stored: StoredRoot) -> None:
    key = data_keys(stored)[0]
    flip(stored, key, len(stored.place.bucket.body(key)) - 30)
    assert whats(found(stored)) == {"footer"}


def test_footer_of_another_write_is_found(stored: StoredRoot) -> None:
    one, other = data_keys(stored)[:2]
    stored.place.bucket.write(one, stored.place.bucket.body(other))
    assert "footer" in whats(found(stored))


@pytest.mark.parametrize("at", [5, 17, 20, 60, 80])
def test_flipped_byte_in_a_batch_of_a_run_is_found_at_its_object(stored: StoredRoot, at: int) -> None:
    key = data_keys(stored)[-1]
    flip(stored, key, at)
    (finding,) = [each for each in found(stored).findings if each.what == "damaged-object"]
    assert finding.severity is Severity.ERROR
    assert finding.position is not None


def test_flipped_byte_in_a_segment_is_found(stored: StoredRoot) -> None:
    flip(stored, _first_log(stored), 70)
    verification = found(stored)
    assert whats(verification) == {"damaged-object"}
    assert {each.partition for each in verification.findings} == {A}


def _first_log(stored: StoredRoot) -> str:
    return next(each for each in stored.place.bucket.keys(f"orders-{stored.topic_id}") if each.endswith(".log"))


@pytest.mark.parametrize("kind", [IndexKind.OFFSET, IndexKind.TIMESTAMP])
def test_entry_of_an_index_that_contradicts_the_batches_is_found_and_reindexed(
    stored: StoredRoot, kind: IndexKind
) -> None:
    of = TopicIdPartition("orders", stored.topic_id, 0)
    segment = stored.image.partition("orders", 0).segments[0]
    key, place = index_place(of, segment, kind, OwnLayout.AIVEN)
    assert place is not None
    body = bytearray(stored.place.bucket.body(key))
    # Of the last entry: the position (its last four bytes), or the timestamp, which is before a relative offset.
    body[place.end - (1 if kind is IndexKind.OFFSET else 5)] ^= 1
    stored.place.bucket.write(key, bytes(body))
    remote_objects._cache.cache_clear()
    findings = found(stored).findings
    what = "offset-index-entry" if kind is IndexKind.OFFSET else "time-index-entry"
    assert whats(found(stored)) - {"time-index-end"} == {what}
    assert {(each.severity, each.partition) for each in findings} == {(Severity.ERROR, A)}
    assert all(key in each.file for each in findings)
    reindex_log(stored.opened(), A, now_ms=T0)
    assert found(stored).findings == []


def test_damaged_commit_is_found_by_name(stored: StoredRoot) -> None:
    root = stored.opened()
    key = max(each for each in stored.place.bucket.keys(METADATA_DIR) if each.endswith(".log"))
    flip(stored, key, 70)
    verification = verify(root)
    assert any(each.what == "commit" and key in each.file for each in verification.findings)


def test_lost_commit_that_later_ones_repeat_is_found(stored: StoredRoot) -> None:
    root = stored.opened()
    keys = [each for each in stored.place.bucket.keys(METADATA_DIR) if each.endswith(".log")]
    del stored.place.bucket.objects[keys[2]]
    findings = [each for each in verify(root).findings if each.what == "commit-missing"]
    assert [each.file.rpartition("/")[2] for each in findings] == [keys[2].rpartition("/")[2]]
    assert commit_key(findings[0].offset or 0) == keys[2]


def test_object_merged_and_deleted_while_it_is_verified_is_no_finding(stored: StoredRoot) -> None:
    merged = []

    def merge_first(call: Any) -> None:
        if not merged and call.kind == "get_range" and call.keys[0].startswith("data/"):
            merged.append(call)
            for each in (A, B):
                merge_partition(stored.metadata, stored.objects, stored.config, each, clock=stored.place.clock)
            stored.objects.delete(data_keys(stored))

    verification = verify(stored.opened(stored.place.client(before=merge_first)), partitions=[A, B])
    assert merged
    assert verification.findings == []


def test_command_verifies_an_object_root_by_its_url(
    stored: StoredRoot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark_kafkalog.maintenance.jobs import runner
    from pyspark_kafkalog.maintenance.verify import job
    from pyspark_kafkalog.tools.main import main

    def open_stored(path: object, **_: object) -> Root:
        assert path == "s3://bucket/log"
        return stored.opened()

    monkeypatch.setattr(runner, "open_root", open_stored)
    monkeypatch.setattr(job, "open_root", open_stored)
    arguments = ["verify", "--path", "s3://bucket/log", "--local", "--output", "json"]
    assert main(arguments) == 0
    lines = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert sorted((each["topic"], each["partition"]) for each in lines) == [
        ("__cluster_metadata", 0),
        ("orders", 0),
        ("orders", 1),
    ]
    flip(stored, data_keys(stored)[-1], 80)
    assert main(arguments) == 1
    assert main([*arguments, "--repair"]) == 1
