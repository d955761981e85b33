"""`kafkalog perf-test` writes and reads records and prints results like Kafka's performance tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kafkalog_command import Command

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.output import TextOutput
from pyspark_kafkalog.tools.records.perf_test import Report

TOTAL = re.compile(
    r"(\d+) records sent, (\d+\.\d) records/sec \(\d+\.\d\d MB/sec\), \d+\.\d\d ms avg latency, "
    r"(\d+\.\d\d) ms max latency, (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th\.\n"
)
#: However slow the machine is.
ONE_LINE = ("--reporting-interval", "3600000")


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command("perf-test", tmp_path / "root", capsys)


def values(tool: Command) -> list[bytes]:
    return LogDir.open(tool.root).read("p", columns=["value"])["value"].to_pylist()


def test_producer_writes_all_records_and_prints_like_kafka(tool: Command) -> None:
    shape = ("--num-records", "5000", "--record-size", "33", "--throughput", "-1", *ONE_LINE)
    match = TOTAL.fullmatch(tool("producer", "--topic", "p", *shape, "--producer-props", "compression.type=lz4"))
    assert match is not None
    assert match[1] == "5000"
    latencies = [float(match[at]) for at in (4, 5, 6, 7, 3)]
    assert latencies == sorted(latencies)
    written = values(tool)
    assert {len(value) for value in written} == {33}
    assert all(re.fullmatch(rb"[A-Z]+", value) for value in written[:10])


def test_figures_of_the_steady_state_leave_out_the_warmup(tool: Command) -> None:
    shape = ("--num-records", "5000", "--record-size", "33", "--throughput", "-1", "--warmup-records", "4000")
    begins, first, steady, window, total, steady_total = tool(
        "producer", "--topic", "p", *shape, "--reporting-interval", "1"
    ).splitlines(keepends=True)
    assert begins.startswith("Warmup first 4000 records.")
    assert steady == "In steady state.\n"
    assert [each.split(" ", 1)[0] for each in (first, window, total, steady_total)] == ["4000", "1000", "5000", "1000"]
    match = TOTAL.fullmatch(total)
    assert match is not None
    assert TOTAL.fullmatch(steady_total.replace(" steady state", "")) is not None
    assert len(values(tool)) == 5000


def test_throughput_is_limited(tool: Command) -> None:
    shape = ("--num-records", "400", "--record-size", "9", "--throughput", "1000", *ONE_LINE)
    match = TOTAL.fullmatch(tool("producer", "--topic", "p", *shape, "--command-property", "linger.ms=20", "flush=os"))
    assert match is not None
    assert 400 / float(match[2]) >= 0.35
    writes = [each for each in LogDir.open(tool.root).history() if each.operation == "write"]
    assert len(writes) >= 2
    assert sum(each.records for each in writes) == 400


def test_payloads_are_monotonic_or_from_file(tool: Command, tmp_path: Path) -> None:
    shape = ("--num-records", "5", "--throughput", "-1")
    tool("producer", "--topic", "p", *shape, "--payload-monotonic", "--transactional-id", "mine")
    assert values(tool) == [b"0", b"1", b"2", b"3", b"4"]
    assert LogDir.open(tool.root).last_version("mine") == 0
    (tmp_path / "payloads").write_text("one|two|")
    out = tool(
        "producer", "--topic", "p", *shape, "--payload-file", str(tmp_path / "payloads"), "--payload-delimiter", "|"
    )
    assert out.splitlines()[:2] == [f"Reading payloads from: {tmp_path / 'payloads'}", "Number of messages read: 2"]
    assert set(values(tool)[5:]) <= {b"one", b"two"}


def test_consumer_counts_records_and_bytes(tool: Command) -> None:
    tool("producer", "--topic", "p", "--num-records", "1000", "--record-size", "100", "--throughput", "-1")
    header, line = tool("consumer", "--topic", "p", "--num-records", "900").splitlines()
    assert header == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
        "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    cells = line.split(", ")
    assert (cells[2], cells[4], cells[6]) == (f"{90000 / 1048576:.4f}", "900", "0")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", cells[0])
    warning, line = tool(
        "consumer", "--topic", "p", "--messages", "1001", "--timeout", "50", "--hide-header"
    ).splitlines()
    assert warning.startswith("WARNING: Exiting before consuming the expected number of messages: timeout (50 ms)")
    assert line.split(", ")[4] == "1000"
    assert tool("consumer", "--topic", "p", "--messages", "9", "--show-detailed-stats").startswith("time, threadId, ")
    LogDir.open(tool.root).create_topic("q", 1)
    tool("producer", "--topic", "q", "--num-records", "5", "--record-size", "1", "--throughput", "-1")
    both = tool("consumer", "--include", "[pq]|__.*", "--num-records", "1005", "--hide-header")
    assert both.split(", ")[4] == "1005"


def test_properties_come_from_several_options_and_files(tool: Command, tmp_path: Path) -> None:
    """`--command-property` and `--command-config` are the names since Kafka 4.2; the older ones mean the same."""
    (tmp_path / "given").write_text("linger.ms=-1\ntransactional.id=filed\n")
    shape = ("--num-records", "5", "--record-size", "9", "--throughput", "-1")
    given = ("--command-property", "flush=os", "--producer-props", "linger.ms=20")
    for config in ("--command-config", "--producer.config"):
        tool("producer", "--topic", "p", *shape, *given, config, str(tmp_path / "given"))
    assert len(values(tool)) == 10
    assert LogDir.open(tool.root).last_version("filed") == 1
    consumer = ("consumer", "--topic", "p", "--hide-header", "--command-property", "a=b", "--command-config", "none")
    assert tool(*consumer, "--num-records", "10").split(", ")[4] == "10"


def test_date_is_formatted_like_java() -> None:
    date_format = "dd.MM.yyyy HH:mm:ss,SSS"
    report = Report(interval_ms=1, is_detailed=False, has_header=False, date_format=date_format, output=TextOutput())
    assert re.fullmatch(r"14\.11\.2023 \d\d:\d\d:20,125|15\.11\.2023 \d\d:\d\d:20,125", report.date(1_700_000_000.125))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--num-records", "0", "--record-size", "1", "--throughput", "1"), "must be 1 or more"),
        (("--num-records", "1", "--throughput", "1"), "--record-size --payload-file --payload-monotonic is required"),
        (("--num-records", "1", "--record-size", "1"), "--throughput"),
        (
            (
                "--num-records",
                "1",
                "--record-size",
                "1",
                "--throughput",
                "1",
                "--producer-props",
                "compression.type=br",
            ),
            "compression.type=br: expected one of none",
        ),
        (
            ("--num-records", "1", "--record-size", "1", "--throughput", "1", "--producer-props", "linger.ms=-1"),
            "linger.ms=-1: expected a number",
        ),
        (("--num-records", "1", "--payload-file", "/nope", "--throughput", "1"), "/nope"),
        (
            ("--num-records", "5", "--record-size", "1", "--throughput", "1", "--warmup-records", "5"),
            "--warmup-records=5: expected 0 or more, and less than --num-records",
        ),
    ],
)
def test_invalid_arguments_are_rejected_in_one_line(tool: Command, arguments: tuple[str, ...], message: str) -> None:
    exit_code, _, err = tool.try_to("producer", "--topic", "p", *arguments)
    assert (exit_code, err.count("\n")) == (1 if message == "/nope" else 2, 1)
    assert message in err
