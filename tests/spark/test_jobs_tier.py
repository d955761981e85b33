"""Copying segments to remote storage in tasks of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders.tiered_roots import TOPIC, append_rounds, log_bytes, remote_bytes, tiered_root

from pyspark_kafkalog.maintenance.jobs.runner import ALL_FINE, SOME_FAILED
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 5


def test_tasks_copy_all_partitions_and_report_each(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store", partitions=PARTITIONS)
    log_dir.create_topic("plain", partitions=2)
    for number in range(PARTITIONS):
        append_rounds(log_dir, 8, partition=number)
    arguments = ["tier", "--path", str(tmp_path / "log"), "--spark", "--output", "json"]
    capsys.readouterr()

    assert main(arguments) == SOME_FAILED  # the directory of remote storage is missing
    failed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["error"].endswith("create it first") for each in failed] == [True] * PARTITIONS

    (tmp_path / "store").mkdir()
    assert main(arguments) == ALL_FINE
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(each["partition"] for each in reports) == list(range(PARTITIONS))
    assert {each["topic"] for each in reports} == {TOPIC}
    for each in reports:
        of = TopicPartition(TOPIC, each["partition"])
        assert each["segmentsCopied"] > 1
        assert remote_bytes(log_dir, of) == log_bytes(log_dir, of, each["remoteEndOffset"])
