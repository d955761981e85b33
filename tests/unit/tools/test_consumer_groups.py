"""`kafkalog consumer-groups` prints, resets and deletes groups like Kafka's tool, and rejects invalid arguments."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups import group as group_module
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.offset_resets import parse_datetime_ms, parse_duration_ms

EMPTY = "\nConsumer group 'g' has no active members.\n"
DRY = "WARN: No action will be performed as the --execute option is missing.\n"


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """orders with 60 and 30 records; groups g and h."""
    log_dir = LogDir.create(root_place)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "3"})
    log_dir.create_topic("orders", partitions=2)
    for partition, count in ((0, 60), (1, 30)):
        values = pa.table(
            {"value": ["v"] * count, "timestamp": pa.array(range(1000, 1000 + count), pa.timestamp("ms"))}
        )
        log_dir.append("orders", values, partition=partition)
    log_dir.group("g").commit({("orders", 0): 12, ("orders", 1): 30}, "said")
    log_dir.group("h").commit({("orders", 0): 1})
    return log_dir


@pytest.fixture
def command(log_dir: LogDir, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command("consumer-groups", log_dir.path, capsys)


def offsets(log_dir: LogDir, group: str) -> dict[str, int]:
    log_dir.refresh()
    return {str(each): committed.offset for each, committed in log_dir.group(group).fetch().items()}


def test_list_filters_by_state_and_type(command: Command) -> None:
    assert command("--list") == "g\nh\n"
    assert command("--list", "--state") == (
        f"{'GROUP':<25} {'STATE':<20}\n{'g':<25} {'Empty':<20}\n{'h':<25} {'Empty':<20}\n"
    )
    assert command("--list", "--type", "--state", "empty,stable").splitlines()[1].split() == ["g", "Classic", "Empty"]
    assert command("--list", "--state", "Stable").splitlines()[1:] == []
    assert command.json("--list")[0] == {"group": "g", "type": "Classic", "state": "Empty"}
    assert "Valid states are: " in command.fails("--list", "--state", "asleep")
    assert "Valid types are: Classic, Consumer" in command.fails("--list", "--type", "share")


def test_lag_in_seconds_is_between_the_record_at_the_offset_and_the_newest(command: Command, log_dir: LogDir) -> None:
    _, out, _ = command.try_to("--describe", "--group", "g", "--lag-seconds")
    lines = [line.split() for line in out.splitlines() if line]
    at = lines[0].index("LAG-SECONDS")
    assert lines[0][at - 1] == "LAG"
    assert [line[at] for line in lines[1:]] == ["0.047", "0.0"]
    log_dir.append("orders", pa.table({"value": ["v"], "timestamp": pa.array([5000], pa.timestamp("ms"))}), partition=1)
    _, printed, _ = command.try_to("--describe", "--group", "g", "--lag-seconds", "--output", "json")
    assert [json.loads(line)["lagSeconds"] for line in printed.splitlines()] == [0.047, 0.0]
    _, plain, _ = command.try_to("--describe", "--group", "g", "--output", "json")
    assert "lagSeconds" not in plain
    log_dir.delete_records({("orders", 0): 20})
    _, printed, _ = command.try_to("--describe", "--group", "g", "--lag-seconds", "--output", "json")
    assert json.loads(printed.splitlines()[0])["lagSeconds"] == 0.039


def test_describe_prints_offsets_and_lag_like_kafka(command: Command) -> None:
    code, out, err = command.try_to("--describe", "--group", "g")
    assert (code, err) == (0, EMPTY)
    assert out == (
        "\nGROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     "
        "HOST            CLIENT-ID"
        "\ng               orders          0          12              60              48              -               "
        "-               -"
        "\ng               orders          1          30              30              0               -               "
        "-               -\n"
    )
    _, verbose, _ = command.try_to("--describe", "--group", "g", "--offsets", "--verbose")
    assert verbose.splitlines()[1].split()[3] == "LEADER-EPOCH"
    first = command.json("--describe", "--all-groups")[0]
    assert (first["group"], first["lag"], first["metadata"]) == ("g", 48, "said")
    assert "consumerId" not in first


def test_describe_prints_members_and_state_like_kafka(command: Command) -> None:
    code, out, err = command.try_to("--describe", "--group", "g", "--members")
    assert (code, out.split(), err) == (0, ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"], EMPTY)
    _, out, _ = command.try_to("--describe", "--group", "g", "--state", "--verbose")
    header, line = out.splitlines()[1:]
    assert header.split()[-3:] == ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"]
    assert line.split()[-4:] == ["Empty", "-", "-", "0"]
    (state,) = command.json("--describe", "--group", "g", "--state")
    assert (state["state"], state["coordinator"], state["members"]) == ("Empty", 1, 0)
    assert command.json("--describe", "--group", "g", "--members") == []


def test_reset_changes_offsets_only_with_execute(command: Command, log_dir: LogDir) -> None:
    row = f"\n{'g':<15} {'orders':<15} {'0':<10} 20"
    header = f"\n{'GROUP':<15} {'TOPIC':<15} {'PARTITION':<10} NEW-OFFSET"
    to_20 = ("--reset-offsets", "--group", "g", "--topic", "orders:0", "--to-offset", "20")
    assert command(*to_20, "--dry-run") == f"{header}{row}\n"
    assert command.try_to(*to_20) == (0, f"{header}{row}\n", DRY)
    assert offsets(log_dir, "g") == {"orders-0": 12, "orders-1": 30}
    assert command(*to_20, "--execute") == f"{header}{row}\n"
    assert offsets(log_dir, "g") == {"orders-0": 20, "orders-1": 30}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-earliest",), [0, 0]),
        (("--to-latest",), [60, 30]),
        (("--to-current",), [12, 30]),
        (("--shift-by", "-5"), [7, 25]),
        (("--to-datetime", "1970-01-01T00:00:01.009"), [9, 9]),
        (("--by-duration", "PT1H"), [60, 30]),
    ],
)
def test_each_reset_target_selects_its_offsets(command: Command, target: tuple[str, ...], expected: list[int]) -> None:
    _, out, _ = command.try_to(
        "--reset-offsets", "--group", "g", "--all-topics", *target, "--dry-run", "--output", "json"
    )
    assert [line.split('"newOffset": ')[1].split(",")[0] for line in out.splitlines()] == [str(n) for n in expected]


def test_exported_offsets_are_read_back_and_invalid_lines_are_rejected(
    command: Command, log_dir: LogDir, tmp_path: Path
) -> None:
    scope = ("--reset-offsets", "--group", "g", "--all-topics")
    exported = command(*scope, "--to-current", "--export", "--dry-run")
    assert exported == "orders,0,12\norders,1,30\n\n"
    both = command("--reset-offsets", "--all-groups", "--all-topics", "--to-current", "--export", "--dry-run")
    assert both == "g,orders,0,12\ng,orders,1,30\nh,orders,0,1\n\n"
    file = tmp_path / "offsets.csv"
    file.write_text(exported)
    command(*scope, "--to-earliest", "--execute")
    assert offsets(log_dir, "g") == {"orders-0": 0, "orders-1": 0}
    command("--reset-offsets", "--group", "g", "--from-file", str(file), "--execute")
    assert offsets(log_dir, "g") == {"orders-0": 12, "orders-1": 30}
    file.write_text('g,"orders",0,3\nh,orders,0,4\n')
    command("--reset-offsets", "--group", "g", "--group", "h", "--from-file", str(file), "--execute")
    assert (offsets(log_dir, "g")["orders-0"], offsets(log_dir, "h")["orders-0"]) == (3, 4)
    code, out, _ = command.try_to("--reset-offsets", "--group", "i", "--from-file", str(file), "--execute")
    assert (code, "No reset plan for group i found" in out) == (1, True)
    for bad in (
        "orders,0\n",
        "orders,0,x\n",
        "orders,-1,3\n",
        "orders,,\n",
        "a,b,c,d,e\n",
        f"orders,0,{'9' * 5000}\n",
        "\0\n",
        "\udcff\n",
    ):
        file.write_text(bad, errors="surrogateescape")
        assert "line 1" in command.fails("--reset-offsets", "--group", "g", "--from-file", str(file), "--execute")


def test_long_and_special_names_are_quoted_in_csv(command: Command, log_dir: LogDir) -> None:
    log_dir.group('a "name", long').commit({("orders", 0): 1})
    log_dir.create_topic("t" * 25, partitions=1)
    log_dir.group("h").commit({("t" * 25, 0): 0})
    exported = command("--reset-offsets", "--all-groups", "--all-topics", "--to-current", "--export", "--dry-run")
    assert '"a ""name"", long",orders,0,1\n' in exported
    assert f'h,"{"t" * 25}",0,0\n' in exported


ODD_NAMES = ["a,b", 'q"q', '"', "line\nfeed", "c\rr", "crlf\r\n", " blanks ", "t\tt", "\x1b[31m", "\u202e", "\x85"]


def test_export_with_odd_names_of_groups_is_read_back(command: Command, log_dir: LogDir, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        log_dir.group(name).commit({("orders", 0): 1})
    file = tmp_path / "offsets.csv"
    exported = command("--reset-offsets", "--all-groups", "--all-topics", "--to-current", "--export", "--dry-run")
    file.write_bytes(exported.encode())
    command("--reset-offsets", "--all-groups", "--all-topics", "--to-earliest", "--execute")
    assert [offsets(log_dir, name)["orders-0"] for name in ODD_NAMES] == [0] * len(ODD_NAMES)
    command("--reset-offsets", "--all-groups", "--from-file", str(file), "--execute")
    assert [offsets(log_dir, name)["orders-0"] for name in ODD_NAMES] == [1] * len(ODD_NAMES)


def test_export_to_a_terminal_escapes_names(command: Command, log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir.group("\x1b[31m").commit({("orders", 0): 1})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    exported = command("--reset-offsets", "--all-groups", "--all-topics", "--to-current", "--export", "--dry-run")
    assert '"\\x1b[31m",orders,0,1\n' in exported


def test_delete_reports_each_offset_and_group(command: Command, log_dir: LogDir) -> None:
    assert command("--delete-offsets", "--group", "g", "--topic", "orders:0") == (
        "Request succeeded for deleting offsets from group g.\n"
        f"\n{'TOPIC':<15} {'PARTITION':<10} {'STATUS':<15}\n{'orders':<15} {'0':<10} {'Successful':<15}\n"
    )
    assert offsets(log_dir, "g") == {"orders-1": 30}
    code, out, _ = command.try_to("--delete-offsets", "--group", "g", "--topic", "clicks", "--topic", "orders")
    assert code == 1
    assert "\nclicks          -          Error: " in out
    assert offsets(log_dir, "g") == {}
    log_dir.group("g").commit({("orders", 0): 1})
    code, out, _ = command.try_to("--delete-offsets", "--group", "g", "--topic", "orders:0,7", "--topic", "clicks:0")
    assert (code, offsets(log_dir, "g")) == (1, {})
    assert [line.split()[:3] for line in out.splitlines()[-3:]] == [
        ["clicks", "0", "Error:"],
        ["orders", "0", "Successful"],
        ["orders", "7", "Error:"],
    ]
    code, out, _ = command.try_to("--delete", "--group", "h", "--group", "nobody")
    assert (code, "* Group 'nobody' could not be deleted" in out, "successfully: 'h'" in out) == (1, True, True)
    log_dir.group("h").commit({("orders", 0): 1})
    assert command("--delete", "--all-groups") == "Deletion of requested consumer groups ('h') was successful.\n"
    assert command("--list") == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--describe",), "needs --group or --all-groups"),
        (("--describe", "--group", "nobody"), "no consumer group 'nobody'"),
        (("--describe", "--group", "g", "--members", "--state"), "at most one"),
        (("--describe", "--group", "g", "--state", "Empty"), "does not take a value"),
        (("--list", "--group", "g"), "can't be used with --list"),
        (("--list", "--execute"), "--execute can't be used with --list"),
        (("--list", "--lag-seconds"), "--lag-seconds can't be used with --list"),
        (("--describe", "--group", "g", "--state", "--lag-seconds"), "can't be used with --members or --state"),
        (("--describe", "--group", "g", "--topic", "orders"), "--topic can't be used with --describe"),
        (("--delete", "--group", "g", "--all-groups"), "can't be used with --all-groups"),
        (("--delete-offsets", "--group", "g"), "needs one --group and --topic"),
        (("--reset-offsets", "--group", "g", "--to-latest", "--dry-run"), "scopes"),
        (("--reset-offsets", "--group", "g", "--all-topics", "--dry-run"), "--to-earliest, --to-latest"),
        (("--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--to-earliest"), "not allowed with"),
        (("--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--dry-run", "--execute"), "only accepts"),
        (("--reset-offsets", "--group", "g", "--topic", "orders:x", "--to-latest", "--dry-run"), "Invalid partition"),
        (("--reset-offsets", "--group", "g", "--topic", "orders:" + "9" * 5000, "--to-latest", "--dry-run"), "Invalid"),
        (("--reset-offsets", "--group", "g", "--topic", "orders:2", "--to-latest", "--dry-run"), "orders"),
        (("--reset-offsets", "--group", "g", "--topic", "clicks", "--to-latest", "--dry-run"), "no topic 'clicks'"),
        (("--reset-offsets", "--group", "g", "--from-file", "/nowhere/x.csv", "--dry-run"), "/nowhere/x.csv"),
        (("--reset-offsets", "--group", "", "--all-topics", "--to-latest", "--dry-run"), "cannot be empty"),
        ((), "one of the arguments"),
    ],
)
def test_invalid_arguments_are_rejected(command: Command, arguments: tuple[str, ...], said: str) -> None:
    assert said in command.fails(*arguments)


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T00:00:01.500Z", 1500),
        ("1970-01-01T02:00:00.000+02", 0),
        ("1970-01-01T02:00:00.000+02:00", 0),
        ("1969-12-31T18:30:00.001-05:30", 1),
        ("2026-01-31T13:45:00.000", 1769867100000),
    ],
)
def test_datetimes_are_parsed_like_kafka(text: str, timestamp_ms: int) -> None:
    assert parse_datetime_ms(text) == timestamp_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("P1D", 86_400_000),
        ("PT2H30M", 9_000_000),
        ("P1DT12H", 129_600_000),
        ("PT1.5S", 1500),
        ("-PT1S", -1000),
        ("pt-5m", -300_000),
        ("PT0S", 0),
    ],
)
def test_durations_are_parsed_like_kafka(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1H", "P1Y", "PT1", "P1DT", "PT.S", "PTS", "P" + "9" * 30 + "D", "2026-01-31", "PT1H1H"]
)
def test_invalid_datetimes_and_durations_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration_ms(text)
    with pytest.raises(UsageError):
        parse_datetime_ms(text or "2026-01-31T25:00:00.000")


def test_datetime_before_year_one_is_rejected_with_clear_error() -> None:
    with pytest.raises(UsageError, match="is not a time"):
        parse_datetime_ms("0001-01-01T00:00:00.000+02:00")


def test_reset_of_several_groups_begins_when_all_can_be_reset(command: Command, log_dir: LogDir) -> None:
    before = offsets(log_dir, "g"), offsets(log_dir, "h")
    reset = ("--reset-offsets", "--execute", "--all-topics", "--group", "g")
    assert "cannot be empty" in command.fails(*reset, "--to-earliest", "--group", "")
    log_dir.create_topic("clicks", partitions=1)
    shift = ("--reset-offsets", "--execute", "--topic", "orders:1", "--group", "g", "--shift-by", "-2")
    assert "cannot be shifted" in command.fails(*shift, "--group", "h")
    assert (offsets(log_dir, "g"), offsets(log_dir, "h")) == before


def test_reset_of_several_groups_names_the_one_whose_commit_failed(
    command: Command, log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = group_module.change_records
    left = [None]

    def fail_after_one(*arguments: Any) -> Any:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left.pop()
        return change(*arguments)

    monkeypatch.setattr(group_module, "change_records", fail_after_one)
    code, out, err = command.try_to(
        "--reset-offsets", "--execute", "--all-topics", "--to-earliest", "--group", "g", "--group", "h"
    )
    assert (code, [line.split()[0] for line in out.splitlines() if "orders" in line]) == (1, ["g", "g"])
    assert err.startswith("kafkalog consumer-groups: group h: ")
    assert (offsets(log_dir, "g"), offsets(log_dir, "h")) == ({"orders-0": 0, "orders-1": 0}, {"orders-0": 1})
