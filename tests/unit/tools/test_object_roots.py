"""`du`, `log-dirs` and `metrics` of a log directory in an object store: sizes are those of the objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.data_objects import T0, Plan
from builders.object_roots import STORED_URL, StoredRoot

from pyspark_kafkalog import log_dir
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def stored(tmp_path: Path) -> StoredRoot:
    """Partition 0 merged but for two runs, one of them inside its commit; partition 1 not merged."""
    stored = StoredRoot()
    for _ in range(3):
        stored.write(tmp_path, Plan(A, [[T0, T0]], 100), Plan(B, [[T0]], 50))
    assert merge_partition(stored.metadata, stored.objects, stored.config, A, clock=stored.place.clock) is not None
    stored.write(tmp_path, Plan(A, [[T0]], 100))
    stored.write(tmp_path, Plan(A, [[T0]], 100), inline_bytes=100_000)
    return stored


@pytest.fixture
def run(
    stored: StoredRoot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[dict[str, Any]]]:
    def open_stored(path: object, **_: object) -> Root:
        assert path == STORED_URL
        return stored.opened()

    monkeypatch.setattr(log_dir, "open_root", open_stored)

    def run_command(command: str, *arguments: str) -> list[dict[str, Any]]:
        assert main([command, "--path", STORED_URL, *arguments, "--output", "json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run_command


def log_bytes(stored: StoredRoot, topic_partition: TopicPartition) -> int:
    return sum(map(len, stored.logs[topic_partition].batches))


def test_du_adds_up_to_all_objects_and_tells_what_is_not_merged(
    stored: StoredRoot, tmp_path: Path, run: Callable[..., list[dict[str, Any]]]
) -> None:
    abandoned = stored.upload(tmp_path, Plan(A, [[T0]]))
    lines = {each["kind"]: each for each in run("du", "--by", "kind")}
    bucket = stored.place.bucket
    assert lines["(total)"]["sizeBytes"] == sum(len(bucket.body(key)) for key in bucket.keys(""))
    assert lines["unmerged"]["files"] == 2 + 3
    runs = [stored.image.partition("orders", each).runs.table for each in (0, 1)]
    assert lines["unmerged"]["sizeBytes"] == sum(int(each["size_bytes"].sum()) for each in runs)
    assert lines["staged"]["sizeBytes"] == sum(each.size_bytes for each in abandoned)
    assert lines["log"]["sizeBytes"] == sum(each.size_bytes for each in stored.image.partition("orders", 0).segments)


def test_du_by_partition_has_the_bytes_of_each_log(
    stored: StoredRoot, run: Callable[..., list[dict[str, Any]]]
) -> None:
    lines = {each.get("partition"): each for each in run("du", "--by", "partition", "--topic", "orders")}
    for each in (A, B):
        kinds = lines[each.partition]["bytesByKind"]
        assert kinds["log"] + kinds["unmerged"] == log_bytes(stored, each)


def test_du_counts_dropped_objects_as_deleted(stored: StoredRoot, run: Callable[..., list[dict[str, Any]]]) -> None:
    delete_records(stored.opened(), {A: -1, B: -1})
    lines = {each["kind"]: each for each in run("du", "--by", "kind")}
    assert lines["deleted"]["files"] == 4 + 3
    assert "unmerged" not in lines
    assert "log" not in lines


def test_log_dirs_prints_the_sizes_of_logs(stored: StoredRoot, run: Callable[..., list[dict[str, Any]]]) -> None:
    (tree,) = run("log-dirs", "--describe")
    (broker,) = tree["brokers"]
    (directory,) = broker["logDirs"]
    assert directory["logDir"] == STORED_URL
    assert {each["partition"]: each["size"] for each in directory["partitions"]} == {
        str(each): log_bytes(stored, each) for each in (A, B)
    }


def test_metrics_have_sizes_runs_and_unmerged_bytes(
    stored: StoredRoot, run: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "--path", STORED_URL, "--once"]) == 0
    values = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines() if not line.startswith("#"))
    runs = stored.image.partition("orders", 1).runs.table
    assert float(values['kafka_log_log_size{partition="0",topic="orders"}']) == log_bytes(stored, A)
    assert float(values['kafkalog_log_numruns{partition="1",topic="orders"}']) == 3
    assert float(values['kafkalog_log_unmergedbytes{partition="1",topic="orders"}']) == int(runs["size_bytes"].sum())
    assert float(values["kafkalog_objectstore_dataobjectscount"]) == 5
    assert float(values[f'kafka_log_logmanager_logdirectoryoffline{{logDirectory="{STORED_URL}"}}']) == 0
