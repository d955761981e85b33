"""On a terminal commands print tables for people; in pipes, and without rich, the text of Kafka's tools."""

from __future__ import annotations

import io
import os
import pty
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.main import main
from pyspark_kafkalog.tools.terminal import Grid, Heading, number_text, print_grid, time_text

COLUMNS = 100
COLOUR = "\x1b[1;36m"

OnTerminal = Callable[..., list[str]]


@pytest.fixture
def root(tmp_path: Path) -> str:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", 2, configs={"retention.ms": "604800000"})
    for _ in range(3):
        log_dir.append("orders", pa.table({"value": [f"value {number}" for number in range(1000)]}), partition=0)
    log_dir.group("nightly").commit({("orders", 0): 1000, ("orders", 1): 0})
    return str(tmp_path / "root")


@pytest.fixture
def on_terminal(root: str, monkeypatch: pytest.MonkeyPatch) -> OnTerminal:
    """Runs `kafkalog LINE --path root` with a pseudo-terminal as standard output; returns the lines that it shows."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))  # rich looks at the standard streams of the process, not at sys.stdout

    def run(line: str) -> list[str]:
        ours, theirs = pty.openpty()
        shown = bytearray()

        def read() -> None:
            try:
                while data := os.read(ours, 4096):
                    shown.extend(data)
            except OSError:  # the other end is closed
                return

        reader = threading.Thread(target=read)
        reader.start()
        command, *arguments = line.split()
        with pytest.MonkeyPatch.context() as patch, os.fdopen(theirs, "w") as terminal:
            patch.setattr("sys.stdout", terminal)
            assert main([command, "--path", root, *arguments]) == 0
        reader.join()
        os.close(ours)
        return shown.decode().replace("\r\n", "\n").splitlines()

    return run


def cells(line: str) -> list[str]:
    return [each for each in line.split("  ") if each.strip()]


@pytest.mark.parametrize(
    ("line", "heading", "row"),
    [
        ("topics --describe --topic orders", "PARTITION  START    END  OFFSETS", "        0      0  3,000    3,000"),
        (
            "consumer-groups --describe --group nightly",
            "TOPIC   PARTITION  CURRENT-OFFSET  LOG-END-OFFSET    LAG",
            "orders          0           1,000           3,000  2,000",
        ),
    ],
)
def test_table_on_a_terminal_has_colour_and_numbers_to_the_right(
    line: str, heading: str, row: str, on_terminal: OnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    assert any(COLOUR in each for each in on_terminal(line))
    monkeypatch.setenv("NO_COLOR", "1")
    shown = on_terminal(line)
    assert COLOUR not in "".join(shown)
    assert "\x1b[33m" not in "".join(shown)
    plain = [each.replace("\x1b[0m", "").replace("\x1b[1m", "") for each in shown]
    assert plain[plain.index(heading) + 1] == row


def test_history_and_du_on_a_terminal_have_one_form_of_times_and_sizes(
    on_terminal: OnTerminal, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    (entry,) = LogDir.open(root).history(topic="orders", limit=1)
    _, first, *_ = on_terminal("history --topic orders --limit 1")
    assert time_text(entry.timestamp_ms) in first
    assert cells(first)[-1].strip().endswith("KiB")
    shown = on_terminal("du --topic orders")
    assert "(total)" in shown[-1]
    assert "\x1b[1m" in shown[-1]
    assert " KiB" in shown[1]
    assert main(["du", "--path", root, "--topic", "orders"]) == 0
    assert " KiB" not in capsys.readouterr().out


@pytest.mark.parametrize("line", ["topics --describe", "consumer-groups --describe --all-groups", "du", "history"])
def test_terminal_without_rich_and_dumb_terminal_get_the_text_of_a_pipe(
    line: str, on_terminal: OnTerminal, root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *arguments = line.split()
    assert main([command, "--path", root, *arguments]) == 0
    piped = capsys.readouterr().out.splitlines()
    monkeypatch.setenv("TERM", "dumb")
    assert on_terminal(line) == piped
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich", None)
    assert on_terminal(line) == piped


@pytest.mark.parametrize("line", ["topics --describe", "history", "du", "consumer-groups --describe --all-groups"])
def test_json_on_a_terminal_is_that_of_a_pipe(
    line: str, on_terminal: OnTerminal, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *arguments = line.split()
    assert main([command, "--path", root, *arguments, "--output", "json"]) == 0
    piped = capsys.readouterr().out.splitlines()
    assert on_terminal(f"{line} --output json") == piped


def test_narrow_terminal_gets_whole_lines_and_no_cut_cells(
    on_terminal: OnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    wide = on_terminal("history")
    monkeypatch.setenv("COLUMNS", "40")
    assert on_terminal("history") == wide


def test_many_empty_partitions_are_counted_and_not_shown(on_terminal: OnTerminal) -> None:
    pytest.importorskip("rich")
    shown = on_terminal("topics --describe --topic __consumer_offsets")
    assert any("49 empty partitions are left out" in each for each in shown)
    assert len(shown) < 10


def test_cells_are_no_markup_and_columns_without_values_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    headings = (Heading("NAME"), Heading("HOST", is_optional=True), Heading("COUNT", is_number=True))
    print_grid(Grid(headings, [["[red]a\x1b[2J", "-", number_text(1234)], ["b", "", number_text(None)]]))
    assert sys.stdout.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "NAME           COUNT",
        "[red]a\\x1b[2J  1,234",
        "b                  -",
    ]


def test_time_is_in_utc_and_one_outside_the_calendar_is_a_number() -> None:
    assert time_text(1_700_000_000_999) == "2023-11-14 22:13:20"
    assert time_text(1 << 62) == str(1 << 62)
