"""Commands report offsets that they do not read: above the high watermark, or in remote storage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.broker_disks import TIERED_STARTS, broker_lock, killed, tiered
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.verify.findings import Finding, Severity
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.tools.main import main

__all__ = ["killed", "tiered"]

ABOVE = "are above the high watermark of its checkpoint and are not read: the broker was not stopped cleanly"


def test_get_offsets_warns_of_offsets_above_high_watermark(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("get-offsets", killed, capsys)
    exit_code, out, err = tool.try_to("--topic", "orders|paid")
    assert (exit_code, out) == (0, "orders:0:20\norders:1:30\npaid:0:10\n")
    assert f"54 offsets in 2 partitions of {killed} (orders-0: 40, paid-0: 14) {ABOVE}" in err
    assert err.count("\n") == 1
    assert tool("--topic", "orders|paid", "--read-to-log-end") == "orders:0:60\norders:1:30\npaid:0:24\n"


def test_console_consumer_reads_to_log_end_with_read_to_log_end(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for more in ([], ["--read-to-log-end"], ["--read-to-log-end", "--isolation-level", "read_committed"]):
        arguments = ["console-consumer", "--path", str(killed), "--topic", "paid", "--from-beginning"]
        assert main([*arguments, "--timeout-ms", "0", "--max-messages", "100", *more]) == 0
        captured = capsys.readouterr()
        lines.append(len(captured.out.splitlines()))
        assert (ABOVE in captured.err) == (not more)
    assert lines == [10, 22, 15]


def test_topics_describes_high_watermark_and_log_end_offset(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("topics", killed, capsys)
    for more, high_watermark in (((), 10), (("--read-to-log-end",), 24)):
        (found,) = json.loads(tool("--describe", "--topic", "paid", "--output", "json", *more))["partitions"]
        assert (found["highWatermark"], found["logEndOffset"]) == (high_watermark, 24)


def test_consumer_groups_and_transactions_honor_read_to_log_end(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = Command("consumer-groups", killed, capsys)
    _, out, err = groups.try_to("--describe", "--group", "billing", "--output", "json")
    assert [json.loads(line)["currentOffset"] for line in out.splitlines()] == [10, 10]
    assert ABOVE in err
    out = groups("--describe", "--group", "billing", "--output", "json", "--read-to-log-end")
    assert [json.loads(line)["currentOffset"] for line in out.splitlines()] == [42, 30]
    transactions = Command("transactions", killed, capsys)
    _, out, err = transactions.try_to("list", "--output", "json")
    assert ABOVE in err
    assert json.loads(out)["transactionState"] == "Empty"
    assert json.loads(transactions("list", "--output", "json", "--read-to-log-end"))["transactionState"] == "Ongoing"


def test_verify_warns_of_offsets_above_high_watermark_unless_broker_runs(killed: Path) -> None:
    def above() -> dict[str, Finding]:
        found = verify(LogDir.open(killed).root).findings
        return {str(each.partition): each for each in found if each.what == "above-high-watermark"}

    found = above()
    assert {name: each.offset for name, each in found.items()} == {
        "orders-0": 20,
        "paid-0": 10,
        "__consumer_offsets-0": 2,
        "__transaction_state-0": 1,
    }
    assert found["orders-0"].severity is Severity.WARNING
    assert found["orders-0"].found == "20, with 40 offsets above it"
    assert "readToLogEnd" in found["orders-0"].advice
    with broker_lock(killed):
        assert {each.severity for each in above().values()} == {Severity.INFO}


def test_metrics_include_log_end_last_stable_offset_lag_and_offsets_above(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Command("metrics", killed, capsys)
    _, out, err = metrics.try_to("--once")
    assert ABOVE in err
    assert 'kafka_log_log_logendoffset{partition="0",topic="paid"} 24.0' in out
    assert 'kafka_cluster_partition_laststableoffsetlag{partition="0",topic="paid"} 0.0' in out
    assert 'kafkalog_partition_offsetsabovehighwatermark{partition="0",topic="paid"} 14.0' in out
    out = metrics("--once", "--read-to-log-end")
    assert 'kafka_log_log_logendoffset{partition="0",topic="paid"} 24.0' in out
    assert 'kafka_cluster_partition_laststableoffsetlag{partition="0",topic="paid"} 3.0' in out
    assert 'kafkalog_partition_offsetsabovehighwatermark{partition="0",topic="paid"} 0.0' in out


def test_report_has_finding_for_offsets_above_high_watermark(killed: Path) -> None:
    found = gather(LogDir.open(killed).root, GatherOptions(sample_bytes=0)).findings
    (above,) = [each for each in found if each.title == "Above the high watermark"]
    assert above.severity == "warning"
    assert "orders-0" in above.text
    assert "not stopped cleanly" in above.text


def test_adopt_reports_and_keeps_offsets_above_high_watermark(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = Command("adopt", killed, capsys)("--dry-run")
    assert "offsets in 4 partitions, in whole batches above the high watermark of the broker's checkpoint" in out
    adopted = LogDir.adopt(killed)
    assert adopted.partition("orders", 0).high_watermark == 60
    assert adopted.read("orders", partition=0).num_rows == 60


# Tiered storage


def offsets(command: Command, topic: str, time: str) -> dict[str, int]:
    exit_code, out, err = command.try_to("--topic", topic, "--time", time)
    assert exit_code == 0
    assert ("remote storage" in err) == (topic != "local-only")
    return {line.replace(":", "-", 1).rpartition(":")[0]: int(line.rpartition(":")[2]) for line in out.splitlines()}


def test_get_offsets_prints_log_start_and_local_log_start(tiered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Expected: the broker's answers to kafka-get-offsets."""
    command = Command("get-offsets", tiered, capsys)
    assert offsets(command, "tiered.*", "earliest-local") == {
        name: local for name, (local, _) in TIERED_STARTS.items() if name != "local-only-0"
    }
    assert offsets(command, "tiered.*", "earliest") == {
        name: start for name, (_, start) in TIERED_STARTS.items() if name != "local-only-0"
    }
    assert offsets(command, "local-only", "earliest") == {"local-only-0": 0}


def test_get_offsets_by_time_fails_if_answer_may_be_remote(tiered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command("get-offsets", tiered, capsys)
    exit_code, out, err = command.try_to("--topic", "tiered", "--partitions", "0", "--time", "0")
    assert (exit_code, out) == (1, "")
    assert "offsets 0 to 551 of tiered-0 are in remote storage" in err
    exit_code, out, _ = command.try_to("--topic", "tiered", "--partitions", "0", "--time", "0", "--local-only")
    assert (exit_code, out) == (0, "tiered:0:552\n")


def test_console_consumer_from_beginning_fails_unless_local_only(
    tiered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command("console-consumer", tiered, capsys)
    one = ("--topic", "tiered", "--partition", "0", "--timeout-ms", "0", "--formatter", "NoOpMessageFormatter")
    exit_code, out, err = command.try_to(*one, "--from-beginning")
    assert (exit_code, out) == (1, "")
    assert "the first one in this directory is 552; --local-only starts there" in err
    for more in (["--from-beginning", "--local-only"], ["--offset", "552"]):
        exit_code, out, err = command.try_to(*one, *more)
        assert (exit_code, err) == (0, "Processed a total of 138 messages\n")


def test_verify_report_and_metrics_include_remote_offsets(tiered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verify(LogDir.open(tiered).root).findings
    assert {each.what for each in found} == {"remote-offsets"}
    assert {str(each.partition): each.offset for each in found} == {
        name: start for name, (local, start) in TIERED_STARTS.items() if start < local
    }
    facts = gather(LogDir.open(tiered).root, GatherOptions(sample_bytes=0))
    (finding,) = [each for each in facts.findings if each.title == "In remote storage"]
    assert "of 6 partitions" in finding.text
    _, out, _ = Command("metrics", tiered, capsys).try_to("--once")
    assert 'kafka_log_log_logstartoffset{partition="0",topic="tiered-delete-records"} 319.0' in out


def test_adopt_rejects_remote_offsets_unless_local_only(tiered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command("adopt", tiered, capsys)
    for arguments in (["--dry-run"], []):
        exit_code, out, err = command.try_to(*arguments)
        assert (exit_code, out) == (1, "")
        assert "tiered-0: 0 to 551" in err
        assert "--local-only" in err
    with pytest.raises(LogDirError, match="remote storage"):
        LogDir.adopt(tiered)
    dry_run = command("--dry-run", "--local-only")
    assert "tiered-0: 0 to 551" in dry_run
    assert "topic tiered: removed remote.storage.enable=true" in dry_run
    assert LogDir.open(tiered).topic("tiered").configs["remote.storage.enable"] == "true"
    adopted = LogDir.adopt(tiered, local_only=True)
    assert adopted.partition("tiered", 0).log_start_offset == 552
    assert adopted.read("tiered", partition=0).column("offset").to_pylist() == list(range(552, 690))
    assert not any("remote.storage.enable" in adopted.topic(name).configs for name in adopted.topics())
