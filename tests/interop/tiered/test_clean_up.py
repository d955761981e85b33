"""`kafkalog retention` of a tiered log on a real object store: files go first, objects after their delay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.tiered_roots import TOPIC, append_rounds, file_root, tiered_root
from kafka_processes.s3_proxy import S3Proxy

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.tiered.objects import SegmentStore

KAFKALOG = str(Path(sys.executable).parent / "kafkalog")


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with S3Proxy(tmp_path / "server") as server:
        server.set_variables(monkeypatch)
        yield f"{server.new_location().url}/tiered"


def run(command: str, root: Path) -> dict[str, object]:
    arguments = [KAFKALOG, command, "--path", str(root), "--local", "--output", "json"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [report] = map(json.loads, done.stdout.splitlines())
    return dict(report)


def objects(log_dir: LogDir) -> SegmentStore:
    storage = file_root(log_dir).remote_storage
    assert storage is not None
    return storage.store()


@pytest.mark.full
def test_retention_removes_copied_files_then_remote_segments_then_objects(tmp_path: Path, location: str) -> None:
    root = tmp_path / "log"
    log_dir = tiered_root(root, location, local_retention_bytes="4000")
    append_rounds(log_dir, 12)
    run("tier", root)
    bases = list_base_offsets(root / f"{TOPIC}-0")

    report = run("retention", root)
    left = list_base_offsets(root / f"{TOPIC}-0")
    assert report["localLogStartOffset"] == left[0] > 0 == report["logStartOffset"]
    assert report["localSegmentsDropped"] == len(bases) - len(left)
    log_dir.refresh()
    assert log_dir.read(TOPIC)["offset"].to_pylist() == list(range(240))

    log_dir.alter_topic(TOPIC, add={"retention.bytes": "6000"})
    before = [each.key for each in objects(log_dir).list_objects("")]
    report = run("retention", root)
    start = report["logStartOffset"]
    assert isinstance(start, int)
    assert 0 < start < left[0]
    log_dir.refresh()
    assert log_dir.read(TOPIC)["offset"].to_pylist() == list(range(start, 240))
    assert [each.key for each in objects(log_dir).list_objects("")] == before

    log_dir.alter_broker_configs(add={"log.segment.delete.delay.ms": "0"})
    run("retention", root)
    keys = [each.key for each in objects(log_dir).list_objects("")]
    assert len(keys) == 3 * len(file_root(log_dir).store.refresh().partition(TOPIC, 0).segments)
    log_dir.refresh()
    assert log_dir.read(TOPIC)["offset"].to_pylist() == list(range(start, 240))

    log_dir.delete_topic(TOPIC)
    subprocess.run([KAFKALOG, "retention", "--path", str(root), "--local"], check=False, capture_output=True)
    assert list(objects(log_dir).list_objects("")) == []
