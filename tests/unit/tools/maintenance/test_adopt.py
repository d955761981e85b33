"""`kafkalog adopt` prints each step, changes nothing in a dry run, and rejects what it cannot adopt."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir


def foreign(fixture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    shutil.copytree(FIXTURES / fixture, tmp_path / fixture, ignore=shutil.ignore_patterns("expected"))
    return Command("adopt", tmp_path / fixture, capsys)


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_dry_run_changes_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("transactions", tmp_path, capsys)
    before = files_of(tool.root)
    assert tool("--dry-run").startswith(f"{tool.root} can be adopted: 1 topic. Nothing was changed.\n")
    assert files_of(tool.root) == before
    assert json.loads(tool("--dry-run", "--output", "json"))["dryRun"] is True
    assert files_of(tool.root) == before


def test_kept_metadata_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = foreign("cluster-metadata", tmp_path, capsys)().splitlines()
    assert lines[-1] == "  the broker's metadata log is kept as __cluster_metadata-0.kafka-stray"


def test_recovered_tail_is_reported_also_by_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("unclean", tmp_path, capsys)
    dry, out = tool("--dry-run"), tool()
    assert "  unclean-torn-0: 41 bytes of a damaged tail were cut off\n" in out
    assert "unclean-killed-0" not in out
    assert re.findall("  .*bytes of a damaged tail", dry) == re.findall("  .*bytes of a damaged tail", out)


def test_json_has_topics_partitions_and_next_producer_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("transactions", tmp_path, capsys)
    tree = json.loads(tool("--output", "json"))
    log_dir = LogDir.open(tool.root)
    assert tree["topics"] == [{"topic": "transactions", "topicId": log_dir.topic("transactions").topic_id}]
    first = log_dir.partition("transactions", 0)
    assert tree["partitions"][0] == {
        "topic": "transactions",
        "partition": 0,
        "logStartOffset": 0,
        "highWatermark": first.high_watermark,
        "lastStableOffset": 162,
        "leaderEpoch": first.leader_epoch,
        "cutBytes": 0,
    }
    assert tree["nextProducerId"] > 0
    assert tree["wasNative"] is False
    assert "keptMetadata" not in tree
    assert json.loads(tool("--output", "json"))["wasNative"] is True
    assert tool().startswith(f"{tool.root} is a native log directory already: nothing to do.\n")


def test_adoption_is_first_in_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("codecs-none", tmp_path, capsys)
    tool()
    assert [(each.operation, each.topics) for each in LogDir.open(tool.root).history()] == [
        ("adopt", ("codecs-none",)),
        ("create root", ()),
    ]


def test_missing_partitions_are_created_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("codecs-none", tmp_path, capsys)
    shutil.rmtree(tool.root / "codecs-none-0")
    assert "missing are codecs-none: 0 of 3" in tool.fails()
    assert "  codecs-none: empty partitions for 0\n" in tool("--create-missing")


def test_rejection_names_cause_and_leaves_directory_unadopted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = Command("adopt", tmp_path / "nothing", capsys)
    assert "is not a directory" in tool.fails()
    tool = foreign("cars", tmp_path, capsys)
    assert "nothing.properties" in tool.fails("--server-properties", str(tmp_path / "nothing.properties"))
    (tmp_path / "bad.properties").write_text("log.segment.bytes=x\n")
    assert "log.segment.bytes=x is not allowed" in tool.fails("--server-properties", str(tmp_path / "bad.properties"))
    assert LogDir.open(tool.root).is_broker_directory
