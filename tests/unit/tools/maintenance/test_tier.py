"""What the tools show of segments in remote storage: kafkalog tier, du, topics, metrics and report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders.tiered_roots import TOPIC, append_rounds, file_root, tiered_root

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.metrics import collect_metrics
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    """Two partitions with closed segments, of which nothing is copied yet."""
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", partitions=2)
    for number in range(2):
        append_rounds(log_dir, 8, partition=number)
    return log_dir


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    capsys.readouterr()
    assert main([*arguments, "--output", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def remote_sizes(log_dir: LogDir) -> list[int]:
    partitions = file_root(log_dir).store.refresh().topic(TOPIC).partitions
    return [sum(each.size_bytes for each in partition.segments) for partition in partitions]


def metrics_of_topic(log_dir: LogDir) -> dict[str, float]:
    log_dir.refresh()
    found = collect_metrics(log_dir.root, now_ms=1)
    return {each.name: each.values[TOPIC,] for each in found if each.bean_type == "BrokerTopicMetrics"}


def test_tier_prints_a_report_for_each_partition_of_tiered_topics(
    log_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir.create_topic("plain", partitions=1)
    path = str(log_dir.path)
    planned = lines(capsys, "tier", "--path", path, "--local", "--dry-run")
    done = lines(capsys, "tier", "--path", path, "--local")
    assert [each["partition"] for each in sorted(done, key=lambda each: each["partition"])] == [0, 1]
    assert sum(each["bytesCopied"] for each in planned) == sum(remote_sizes(log_dir))
    assert "0 segments, 0 B, copied in 0 of 2 partitions" in text(
        capsys, "tier", "--path", path, "--local", "--output", "text"
    )
    (skipped,) = lines(capsys, "tier", "--path", path, "--local", "--topic", "plain")
    assert skipped["skipped"] == "remote.storage.enable is not true"


def test_tier_without_a_location_names_the_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LogDir.create(tmp_path / "log")
    assert main(["tier", "--path", str(tmp_path / "log")]) == 1
    stated = "expected the configuration rsm.config.location; set it with kafkalog configs --broker-defaults"
    assert stated in capsys.readouterr().err


def test_du_counts_remote_bytes_apart_from_the_total(log_dir: LogDir, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(log_dir.path)
    assert "REMOTE" not in text(capsys, "du", "--path", path)
    before = lines(capsys, "du", "--path", path, "--by", "partition", "--topic", TOPIC)
    tier_segments(log_dir.root)
    after = lines(capsys, "du", "--path", path, "--by", "partition", "--topic", TOPIC)
    assert [each["sizeBytes"] for each in after] == [each["sizeBytes"] for each in before]
    assert sorted(each["remoteBytes"] for each in after) == sorted([*remote_sizes(log_dir), sum(remote_sizes(log_dir))])
    head, *rows = text(capsys, "du", "--path", path, "--bytes").splitlines()
    assert head.split()[-1] == "REMOTE"
    assert rows[-1].split()[-1] == str(sum(remote_sizes(log_dir)))


def test_topics_describe_shows_what_is_remote(log_dir: LogDir, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("topics", "--path", str(log_dir.path), "--describe", "--topic", TOPIC)
    assert "RemoteSegments" not in text(capsys, *arguments)
    reports = tier_segments(log_dir.root)
    (described,) = lines(capsys, *arguments)
    for found, report, size_bytes in zip(described["partitions"], reports, remote_sizes(log_dir), strict=True):
        assert (found["remoteSegments"], found["remoteBytes"]) == (report.segments_copied, size_bytes)
        assert found["latestTieredOffset"] == (report.remote_end_offset or 0) - 1
    assert f"RemoteBytes: {remote_sizes(log_dir)[1]}" in text(capsys, *arguments)


def test_metrics_have_lag_size_and_dropped_segments_of_each_topic(log_dir: LogDir) -> None:
    lag = metrics_of_topic(log_dir)
    assert lag["RemoteCopyLagSegments"] > 2
    assert lag["RemoteCopyLagBytes"] > 0
    assert lag["RemoteLogSizeBytes"] == 0
    reports = tier_segments(log_dir.root)
    assert metrics_of_topic(log_dir) == {
        "RemoteCopyLagBytes": 0,
        "RemoteCopyLagSegments": 0,
        "RemoteDeleteLagSegments": 0,
        "RemoteLogMetadataCount": lag["RemoteCopyLagSegments"],
        "RemoteLogSizeBytes": lag["RemoteCopyLagBytes"],
    }
    delete_records(log_dir.root, {TopicPartition(TOPIC, 0): reports[0].remote_end_offset or 0})
    dropped = metrics_of_topic(log_dir)
    assert dropped["RemoteDeleteLagSegments"] == reports[0].segments_copied
    assert dropped["RemoteLogSizeBytes"] == remote_sizes(log_dir)[1]


def test_root_without_tiering_has_no_metrics_of_it(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=1)
    assert not [each for each in collect_metrics(log_dir.root, now_ms=1) if each.name.startswith("Remote")]


def test_report_says_what_is_remote_and_what_is_not_yet(log_dir: LogDir, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(log_dir.path), "-o", str(page)]) == 0
    assert "are not in remote storage yet: run <code>kafkalog tier</code>" in page.read_text()
    tier_segments(log_dir.root)
    assert main(["report", str(log_dir.path), "-o", str(page)]) == 0
    assert "of 2 partitions (orders-0, orders-1) are in remote storage" in page.read_text()
    assert "run kafkalog tier" not in page.read_text()
