"""`kafkalog log-dirs`, `du` and `metadata-quorum` describe a whole log directory."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", partitions=2, configs={"internal.segment.bytes": "300"})
    log_dir.create_topic("empty", partitions=1)
    for _ in range(5):
        log_dir.append("orders", pa.table({"value": ["x" * 100]}), partition=1)
    return tmp_path / "root"


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def test_log_dirs_json_matches_kafka(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("log-dirs", root, capsys)
    first, second, third = tool("--describe", "--topic-list", "orders,nope").splitlines()
    assert first == "Querying brokers for log directories information"
    assert second == "Received log directory information from brokers 1"
    assert third == (
        '{"brokers":[{"broker":1,"logDirs":[{"partitions":['
        '{"partition":"orders-0","size":0,"offsetLag":0,"isFuture":false},'
        f'{{"partition":"orders-1","size":{log_bytes(root / "orders-1")},"offsetLag":0,"isFuture":false}}'
        f'],"error":null,"logDir":"{root}"}}]}}],"version":1}}'
    )
    assert json.loads(tool("--describe", "--topic-list", "orders,nope", "--output", "json")) == json.loads(third)
    assert len(tool.json("--describe", "--broker-list", "1")[0]["brokers"][0]["logDirs"][0]["partitions"]) == 3


def test_uncommitted_bytes_do_not_count(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed = log_bytes(root / "orders-1")
    last = max((root / "orders-1").glob("*.log"))
    last.write_bytes(last.read_bytes() + b"left by a crash")
    (root / "orders-1" / "00000000000000000099.log").write_bytes(b"this too")
    (tree,) = Command("log-dirs", root, capsys).json("--describe", "--topic-list", "orders")
    assert tree["brokers"][0]["logDirs"][0]["partitions"][1]["size"] == committed


def test_unknown_brokers_are_rejected(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("log-dirs", root, capsys)
    assert "--broker-list: 7,8. Current existent brokers: 1" in tool.fails("--describe", "--broker-list", "7,1,8")
    assert "expects numbers" in tool.fails("--describe", "--broker-list", "x")
    assert "--describe" in tool.fails()


def test_du_totals_match_sizes_on_disk(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("du", root, capsys)
    everything = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    for by in ("topic", "partition", "segment", "kind"):
        *parts, total = tool.json("--by", by)
        assert total["sizeBytes"] == sum(each["sizeBytes"] for each in parts) == everything
        assert [each["sizeBytes"] for each in parts] == sorted((each["sizeBytes"] for each in parts), reverse=True)
    parts = {(each["topic"], each.get("partition")): each for each in tool.json("--by", "partition")}
    assert parts["orders", 1]["bytesByKind"]["log"] == log_bytes(root / "orders-1")
    assert ("(root)", None) in parts
    segments = tool.json("--by", "segment", "--topic", "orders", "--sort", "name")
    assert [each.get("segment") for each in segments if each.get("partition") == 1] == [None, 0, 1, 2, 3, 4]


def test_deleted_topics_and_staged_files_are_counted_separately(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LogDir.open(root).delete_topic("orders")
    (root / "empty-0" / "w-0.staged").write_bytes(b"12345")
    kinds = {each.get("kind"): each for each in Command("du", root, capsys).json("--by", "kind")}
    assert kinds["staged"]["sizeBytes"] == 5
    assert kinds["deleted"]["files"] > 10
    topics = {each["topic"] for each in Command("du", root, capsys).json()}
    assert topics == {"(deleted)", "(root)", "(total)", "empty", "__cluster_metadata"}


def test_du_table_has_readable_sizes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, *lines = Command("du", root, capsys)("--by", "topic", "--limit", "1", "--topic", "orders").splitlines()
    assert header.split() == ["TOPIC", "FILES", "LOG", "INDEX", "OTHER", "TOTAL", "ON-DISK"]
    assert [line.split()[0] for line in lines] == ["orders", "(total)"]
    assert re.search(r" \d+(\.\d)?KiB ", lines[0])
    assert str(log_bytes(root / "orders-1")) in Command("du", root, capsys)("--bytes").split()
    assert "cannot open the log directory" in Command("du", root / "nope", capsys).fails()


def test_quorum_description_matches_kafka_layout(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("metadata-quorum", root, capsys)
    log_dir = LogDir.open(root)
    (status,) = tool.json("describe", "--status")
    assert status["HighWatermark"] == log_dir.version
    directory_id = status["CurrentVoters"][0]["directoryId"]
    assert tool("describe", "--status") == (
        f"ClusterId:              {status['ClusterId']}\n"
        "LeaderId:               1\n"
        "LeaderEpoch:            0\n"
        f"HighWatermark:          {log_dir.version}\n"
        "MaxFollowerLag:         0\n"
        "MaxFollowerLagTimeMs:   0\n"
        f'CurrentVoters:          [{{"id": 1, "directoryId": "{directory_id}"}}]\n'
        "CurrentObservers:       []\n"
    )
    header, row = tool("describe", "--replication", "--human-readable").splitlines()
    assert header.split("\t")[2] == "LogEndOffset"
    assert [cell.strip() for cell in row.split("\t")] == [
        "1", directory_id, str(log_dir.version), "0", "0 ms ago", "0 ms ago", "Leader", ""
    ]  # fmt: skip


def test_quorum_of_broker_directory_matches_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FIXTURES / "cluster-metadata"
    tool = Command("metadata-quorum", broker, capsys)
    while_it_ran = (broker / "expected" / "tools" / "kafka-metadata-quorum-status.txt").read_text()
    assert tool("describe", "--status") == re.sub(r"(HighWatermark: +)290\n", r"\g<1>338\n", while_it_ran)
    (status,) = tool.json("describe", "--status")
    (row,) = tool.json("describe", "--replication")
    assert status["CurrentVoters"][0]["endpoints"] == ["CONTROLLER://127.0.0.1:23063"]
    assert (row["NodeId"], row["LogEndOffset"], row["Lag"], row["Status"]) == (1, status["HighWatermark"], 0, "Leader")
    assert not {"LastFetchTimestamp", "LastCaughtUpTimestamp"} & row.keys()


def test_values_known_only_to_running_leader_are_omitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = tmp_path / "__cluster_metadata-0"
    metadata.mkdir()
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=2\n")
    state = {"leaderId": 3, "leaderEpoch": 4, "currentVoters": [{"voterId": 2}, {"voterId": 3}], "data_version": 0}
    (metadata / "quorum-state").write_text(json.dumps(state))
    tool = Command("metadata-quorum", tmp_path, capsys)
    assert tool("describe", "--status").splitlines() == [
        "ClusterId:              c",
        "LeaderId:               3",
        "LeaderEpoch:            4",
        "HighWatermark:          -",
        "MaxFollowerLag:         -",
        "MaxFollowerLagTimeMs:   -",
        'CurrentVoters:          [{"id": 2}, {"id": 3}]',
        "CurrentObservers:       []",
    ]
    (status,) = tool.json("describe", "--status")
    assert not {"HighWatermark", "MaxFollowerLag"} & status.keys()
    _, *rows = tool("describe", "--replication", "--human-readable").splitlines()
    assert [[cell.strip() for cell in row.split("\t")] for row in rows] == [
        ["3", "-", "-", "0", "-", "-", "Leader", ""],
        ["2", "-", "0", "-", "-", "-", "Follower", ""],
    ]
    (metadata / "quorum-state").unlink()
    assert "CurrentVoters:          -\n" in tool("describe", "--status")
    assert tool.json("describe", "--replication") == []


def test_directory_without_quorum_and_invalid_options_are_rejected(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FIXTURES / "cars", tmp_path / "cars")
    assert "metadata.log.dir" in Command("metadata-quorum", tmp_path / "cars", capsys).fails("describe", "--status")
    tool = Command("metadata-quorum", root, capsys)
    assert "One of --status or --replication" in tool.fails("describe")
    assert "Only one of" in tool.fails("describe", "--status", "--replication")
    assert "only supported along with" in tool.fails("describe", "--status", "--human-readable")
