"""The maintenance commands on a log directory in a real object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_processes.s3_proxy import S3Proxy

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.object_store.address import StoreAddress
from tests.interop.samples import reports_of

pytestmark = pytest.mark.interop

RECORDS, RECORD_BYTES = 10, 50_000


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A place in a bucket, with the settings in the environment."""
    with S3Proxy(tmp_path / "server") as server:
        server.set_variables(monkeypatch)
        yield f"{server.new_location().url}/log"


@pytest.mark.full
def test_merged_and_expired_records_are_as_on_a_file_system(url: str) -> None:
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", partitions=2, configs={"internal.segment.bytes": "1000000"})
    for number in range(6):
        values = pa.array([os.urandom(RECORD_BYTES) for _ in range(RECORDS)], pa.binary())
        log_dir.append("orders", pa.table({"value": values}), partition=number % 2)
    log_dir.append("orders", pa.table({"value": pa.array([b"small"], pa.binary())}), partition=0)
    log_dir.refresh()
    before = [log_dir.read("orders", partition=number) for number in (0, 1)]
    planned = reports_of("merge-segments", "--path", url, "--dry-run")
    merged = reports_of("merge-segments", "--path", url)
    assert [each["bytesRead"] for each in planned] == [each["bytesRead"] for each in merged]
    assert all(each["bytesRead"] > 3 * RECORDS * RECORD_BYTES for each in merged)
    log_dir.refresh()
    assert [log_dir.read("orders", partition=number) for number in (0, 1)] == before
    assert [each["bytesRead"] for each in reports_of("merge-segments", "--path", url)] == [0, 0]
    log_dir.alter_topic("orders", add={"retention.bytes": "600000"})
    retained = reports_of("retention", "--path", url)
    assert all(each["segmentsDropped"] == 1 for each in retained)
    log_dir.refresh()
    for number, report in enumerate(retained):
        start = report["logStartOffset"]
        assert start > 0
        assert log_dir.read("orders", partition=number) == before[number].slice(start)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = str(Path(sys.executable).parent / "kafkalog")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.full
def test_sizes_metrics_and_verification_agree_with_the_bucket(url: str, tmp_path: Path) -> None:
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", partitions=2)
    for number in range(6):
        values = pa.array([os.urandom(RECORD_BYTES) for _ in range(RECORDS)], pa.binary())
        log_dir.append("orders", pa.table({"value": values}), partition=number % 2)
    reports_of("merge-segments", "--path", url, "--topic", "orders")
    log_dir.append("orders", pa.table({"value": pa.array([b"small"], pa.binary())}), partition=0)
    log_dir.append("orders", pa.table({"value": values}), partition=1)
    offsets = tmp_path / "offsets.json"
    partitions = [{"topic": "orders", "partition": 0, "offset": 7}]
    offsets.write_text(json.dumps({"partitions": partitions, "version": 1}))
    assert "low_watermark: 7" in run("delete-records", "--path", url, "--offset-json-file", str(offsets)).stdout

    address = StoreAddress.parse(url, {})
    sizes = {each.key: each.size_bytes for each in address.open().list_objects("")}
    usage = {each["kind"]: each for each in map(json.loads, du_lines(url))}
    assert usage["(total)"]["sizeBytes"] == sum(sizes.values())
    assert usage["unmerged"]["files"] == 2
    assert "staged" not in usage
    metrics = run("metrics", "--path", url, "--once").stdout
    assert 'kafkalog_log_numruns{partition="0",topic="orders"} 1.0' in metrics
    assert run("log-dirs", "--path", url, "--describe").returncode == 0
    found = reports_of("verify", "--path", url, "--deep")
    assert {each["action"] for each in found} == {"verify"}
    assert sum(int(str(each["recordsRead"])) for each in found if each["topic"] == "orders") == 7 * RECORDS + 1

    lost = next(key for key in sizes if key.startswith("orders-") and key.endswith(".log"))
    address.open().delete([lost])
    damaged = run("verify", "--path", url, "--local", "--output", "json")
    assert damaged.returncode == 1
    assert any("missing-object" in line and lost in line for line in damaged.stdout.splitlines())


def du_lines(url: str) -> list[str]:
    done = run("du", "--path", url, "--by", "kind", "--output", "json")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.full
def test_cleaned_records_are_as_on_a_file_system(url: str, tmp_path: Path) -> None:
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "200000", "min.cleanable.dirty.ratio": "0"}
    places: list[str | Path] = [url, tmp_path / "files"]
    stamps = pa.array([1_700_000_000_000_000] * 200, pa.timestamp("us", "UTC"))
    for place in places:
        log_dir = LogDir.create(place)
        log_dir.create_topic("users", partitions=2, configs=configs)
        for number in range(12):
            keys = [f"{(number * 37 + row) % 300}" for row in range(200)]
            values = [f"{number}-{row}".encode() + bytes(900) for row in range(200)]
            log_dir.append("users", pa.table({"key": keys, "value": values, "timestamp": stamps}))
    reports = [reports_of("log-cleaner", "--path", str(place), "--topic", "users") for place in places]
    dropped = [[each["recordsDropped"] for each in some] for some in reports]
    assert all(int(str(each)) > 0 for some in dropped for each in some)
    latest = []
    for place in places:
        log_dir = LogDir.open(place)
        table = log_dir.read("users", columns=["partition", "offset", "key", "value"])
        rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
        latest.append({(partition, key): (offset, value) for partition, offset, key, value in rows})
    assert latest[0] == latest[1]
    assert len(latest[0]) == 300
    assert not any(each.get("errorsFound") for each in reports_of("verify", "--path", url))
    assert {each["filesWritten"] for each in reports_of("reindex", "--path", url, "--topic", "users")} == {0}
