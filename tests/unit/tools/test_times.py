"""Points in time on the command line: ms since 1970, or ISO 8601."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafkalog_command import Command

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.command import parse_time_ms, time_ms

DAY_MS = 86_400_000
#: 2026-01-31T00:00:00Z
START_MS = 1_769_817_600_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1769817600000", START_MS),
        ("-5", -5),
        ("2026-01-31", START_MS),
        ("2026-01-31T00:00", START_MS),
        ("2026-01-31 00:00:01", START_MS + 1000),
        ("2026-01-31T00:00:00.5", START_MS + 500),
        ("2026-01-31T00:00:00,123456789Z", START_MS + 123),
        ("2026-01-31T01:00:00+01:00", START_MS),
        ("2026-01-30T22:30:00-0130", START_MS),
        ("2026-01-31T02Z", None),
        ("2026-02-30", None),
        ("2026-01-31T25:00", None),
        ("2026-01-31T00:00+19:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_text_is_a_number_of_ms_or_iso_8601(text: str, expected: int | None) -> None:
    assert parse_time_ms(text) == expected


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)),
    st.integers(-18 * 60, 18 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_every_time_of_any_zone_is_read_as_python_writes_it(moment: datetime, zone: timezone) -> None:
    written = moment.replace(tzinfo=zone)
    expected = (written - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
    assert parse_time_ms(written.isoformat()) == expected


@pytest.mark.parametrize("text", ["-1", "1969-12-31", "soon"])
def test_time_before_1970_or_other_text_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="ISO 8601"):
        time_ms(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten records a day apart in partition 0, none in partition 1."""
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", partitions=2, configs={"retention.ms": "-1"})
    times = pa.array([START_MS + at * DAY_MS for at in range(10)], pa.timestamp("ms", "UTC"))
    log_dir.append("orders", pa.table({"value": [str(at) for at in range(10)], "timestamp": times}), partition=0)
    return tmp_path / "root"


@pytest.mark.parametrize("text", ["2026-02-03", str(START_MS + 3 * DAY_MS), "2026-02-02T12:00:00Z"])
def test_get_offsets_finds_the_first_record_since_a_time(
    root: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Command("get-offsets", root, capsys)("--topic", "orders", "--time", text) == "orders:0:3\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2026-02-06T00:00:00Z", "6\n7\n8\n9\n"), ("2026-02-05T18:00:00-06:00", "6\n7\n8\n9\n"), ("2027-01-01", "")],
)
def test_console_consumer_begins_at_the_first_record_since_a_time(
    root: Path, text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--topic", "orders", "--from-time", text, "--timeout-ms", "10")
    code, printed, _ = Command("console-consumer", root, capsys).try_to(*arguments)
    assert (code, printed) == (0, expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to-time", "2026-02-03"), "0\n1\n2\n"),
        (("--from-time", "2026-02-02", "--to-time", "2026-02-04"), "2\n3\n"),
        (("--from-time", "2026-02-02", "--to-time", "2026-02-04", "--max-messages", "1"), "2\n"),
        (("--partition", "0", "--offset", "8", "--to-time", "2027-01-01"), "8\n9\n"),
        (("--to-time", "2020-01-01"), ""),
    ],
)
def test_console_consumer_ends_before_the_first_record_since_a_time(
    root: Path, arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also without a timeout: it does not wait for more."""
    code, printed, _ = Command("console-consumer", root, capsys).try_to("--topic", "orders", *arguments)
    assert (code, printed) == (0, expected)


@pytest.mark.parametrize("other", [("--from-beginning",), ("--group", "g"), ("--partition", "0", "--offset", "3")])
def test_console_consumer_refuses_a_time_beside_another_start(
    root: Path, other: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--topic", "orders", "--from-time", "2026-02-06", *other)
    code, _, error = Command("console-consumer", root, capsys).try_to(*arguments)
    assert code == 2
    assert "Options from-time and" in error


def test_maintenance_takes_the_time_to_go_by_as_iso_8601(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LogDir.open(root).alter_topic("orders", add={"retention.ms": str(DAY_MS)})
    run = Command("retention", root, capsys)
    assert '"bytesDropped": 0' in run("--topic", "orders", "--dry-run", "--now", "2026-02-09T12:00:00")
    assert 'segmentsDropped": 1' in run("--topic", "orders", "--dry-run", "--now", "2026-03-01")
