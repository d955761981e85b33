"""Every command prints valid JSON with --output json, and an Output prints only its own form."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from builders.tiered_roots import tiered_root
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.main import COMMANDS, main
from pyspark_kafkalog.tools.output import JsonOutput, TextOutput, padded_table, table
from pyspark_kafkalog.tools.running import text_formatter

#: Commands without `--output json`, with the reason.
WITHOUT_JSON: Final = {
    "completion": "prints code for a shell",
    "console-producer": "reads lines and prints nothing",
    "delta-to-topic": "a streaming query, which prints nothing",
    "follow": "copies, and writes its report to a file",
    "metrics": "serves, or prints once, the text format of Prometheus",
    "promote": "says in one line what it has done",
    "report": "writes an HTML page",
    "serve": "serves, and prints its address only",
    "topic-to-delta": "a streaming query, which prints nothing",
}
#: By command: arguments with the root R, and the number of lines that they print at least.
CASES: Final[dict[str, list[tuple[str, int]]]] = {
    "acls": [
        ("--path R --add --allow-principal User:a --operation Read --topic t", 1),
        ("--path R --list", 0),
        ("--path R --remove --topic t --force", 0),
    ],
    "topics": [
        ("--path R --create --topic new", 1),
        ("--path R --list", 2),
        ("--path R --describe", 2),
        ("--path R --alter --topic t --partitions 3", 1),
        ("--path R --delete --topic t", 1),
    ],
    "configs": [
        ("--path R --topic t --describe --all", 1),
        ("--path R --topic t --alter --add-config retention.ms=7", 1),
        ("--path R --broker-defaults --describe", 1),
        ("--path R --user u --alter --add-config producer_byte_rate=7", 1),
        ("--path R --entity-type users --describe", 0),
    ],
    "console-consumer": [("--path R --topic t --from-beginning --timeout-ms 1", 3)],
    "get-offsets": [("--path R", 3), ("--path R --topic t --time 0", 1)],
    "perf-test": [
        ("--path R producer --topic p --num-records 10 --record-size 5 --throughput -1", 1),
        ("--path R consumer --topic t --messages 3", 1),
    ],
    "transactions": [
        ("--path R list", 0),
        ("--path R describe-producers --topic t --partition 0", 0),
        ("--path R find-hanging", 0),
    ],
    "consumer-groups": [
        ("--path R --list --state", 1),
        ("--path R --describe --group g", 1),
        ("--path R --describe --group g --state", 1),
        ("--path R --describe --group g --members", 0),
        ("--path R --reset-offsets --group g --all-topics --to-earliest --execute", 1),
        ("--path R --delete-offsets --group g --topic t", 1),
        ("--path R --delete --group g", 1),
    ],
    "adopt": [("--path BROKER --dry-run", 1), ("--path R", 1)],
    "export": [("--path R --to OUT", 2)],
    "delete-records": [("--path R --offset-json-file FILE", 1), ("--path R --offset-json-file FILE --dry-run", 1)],
    "log-cleaner": [("--path R --local --dry-run", 0)],
    "merge-segments": [("--path R --local --dry-run", 1)],
    "reindex": [("--path R --local --dry-run", 1)],
    "retention": [("--path R --local --dry-run", 1)],
    "tier": [("--path TIERED --local", 1), ("--path TIERED --local --dry-run --topic orders", 1)],
    "verify": [("--path R --local", 1)],
    "du": [("--path R --by kind", 2)],
    "dump-log": [("--files R/t-0/00000000000000000000.log --print-data-log", 3)],
    "features": [("--path R describe", 1), ("--path R upgrade", 1)],
    "history": [("--path R", 1)],
    "log-dirs": [("--path R --describe", 1)],
    "metadata-quorum": [("--path R describe --status", 1), ("--path R describe --replication", 1)],
    "warm-up": [],  # compiles for a minute where there is no cache: test_tools_warm_up
}


def test_every_command_has_json_or_reason() -> None:
    commands = {name for group in COMMANDS.values() for name in group}
    assert CASES.keys() | WITHOUT_JSON.keys() == commands
    assert not CASES.keys() & WITHOUT_JSON.keys()


@pytest.mark.parametrize(
    ("name", "arguments", "lines_min"),
    [(name, arguments, lines_min) for name, cases in CASES.items() for arguments, lines_min in cases],
)
def test_command_prints_json_lines_without_empty_fields(
    name: str, arguments: str, lines_min: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    log_dir = LogDir.create(root)
    log_dir.create_topic("t", partitions=2)
    log_dir.append("t", pa.table({"key": ["k", None, "m"], "value": ["a", "b", "c"]}), partition=0)
    log_dir.group("g").commit({("t", 0): 1})
    if "BROKER" in arguments:
        shutil.copytree(FIXTURES / "transactions", tmp_path / "broker", ignore=shutil.ignore_patterns("expected"))
    if "TIERED" in arguments:
        (tmp_path / "store").mkdir()
        tiered_root(tmp_path / "tiered", tmp_path / "store")
    (tmp_path / "offsets.json").write_text('{"partitions": [{"topic": "t", "partition": 0, "offset": 1}]}')
    places = {"R": root, "BROKER": tmp_path / "broker", "OUT": tmp_path / "out", "FILE": tmp_path / "offsets.json"}
    places["TIERED"] = tmp_path / "tiered"
    given = [str(places.get(each, each)).replace("R/", f"{root}/", 1) for each in arguments.split()]
    capsys.readouterr()
    assert main([name, *given, "--output", "json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= lines_min
    for line in lines:
        tree = json.loads(line)
        assert isinstance(tree, dict)
        if name not in ("console-consumer", "dump-log", "log-dirs"):  # null is a value of records, and Kafka's JSON
            assert not list(_empty_fields(tree))


def _empty_fields(tree: Any) -> Any:
    if isinstance(tree, dict):
        yield from (name for name, value in tree.items() if value is None)
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from _empty_fields(each)


def test_output_converts_values_only_to_its_own_form(capsys: pytest.CaptureFixture[str]) -> None:
    def unused(value: Any) -> Any:
        raise AssertionError(value)

    text, as_json = TextOutput(), JsonOutput()
    text.show("x", unused, lambda each: f"<{each}>\n")
    as_json.show("x", lambda each: {"name": each, "empty": None, "in": [{"empty": None}]}, unused)
    assert text.show_all(iter([1, 2]), unused, lambda values: (f"{each}\n" for each in values))
    assert as_json.show_all(iter([1]), lambda each: {"n": each}, unused)
    assert not text.show_all([], unused, lambda values: [])
    assert not as_json.show_all([], unused, unused)
    text.text("only text\n")
    text.data({"only": "json"})
    as_json.text("only text\n")
    as_json.data({"only": "json"})
    assert capsys.readouterr().out.splitlines() == [
        "<x>",
        '{"name": "x", "in": [{}]}',
        "1",
        "2",
        '{"n": 1}',
        "only text",
        '{"only": "json"}',
    ]


def test_names_cannot_forge_lines_of_the_output_or_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    name = "group\n2026-01-01 INFO forged\x1b[2J"
    for lines in (table(["GROUP"], [[name]]), padded_table(["GROUP"], [[name]])):
        assert [each.count("\n") for each in lines] == [1, 1]
    TextOutput().text(f"{name}\n")
    assert "\x1b" not in capsys.readouterr().out
    record = logging.LogRecord("name", logging.INFO, "", 1, "group %s", (name,), None)
    assert text_formatter().format(record).splitlines()[1:] == []
    try:
        raise ValueError(name)
    except ValueError:
        record.exc_info = sys.exc_info()
    assert all(each.startswith("    ") for each in text_formatter().format(record).splitlines()[1:])


@pytest.mark.slow
def test_names_of_clients_cannot_forge_lines_of_any_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = "\nFORGED\x1b[2J\u202e\rFORGED"
    root = tmp_path / "root"
    log_dir = LogDir.create(root)
    log_dir.append("t", pa.table({"value": ["a"] * 5}), partition=0)
    group = f"group{forged}"
    log_dir.group(group).commit({("t", 0): 1})
    plan = tmp_path / "plan.csv"
    plan.write_text('"other","t",0,1\n')
    user = ["--entity-type", "users", "--entity-name", f"user{forged}"]
    of_group = ["--entity-type", "groups", "--entity-name", group]
    entry = ["--allow-principal", f"User:a{forged}", "--allow-host", f"h{forged}", "--operation", "Read"]
    reset = ["consumer-groups", "--reset-offsets", "--dry-run", "--group", group]
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n" * 10))
    for name, *line in [
        ["acls", "--add", *entry, "--topic", "t"],
        ["acls", "--add", *entry, "--group", group],
        ["acls", "--list"],
        ["acls", "--list", "--principal", f"User:a{forged}"],
        ["acls", "--remove", "--group", group],
        ["acls", "--remove", *entry, "--topic", "t"],
        *(["configs", "--alter", *user, "--add-config", f"SCRAM-SHA-{bits}=[password=p]"] for bits in (256, 512)),
        ["configs", "--alter", *user, "--add-config", "producer_byte_rate=7"],
        ["configs", "--alter", *of_group, "--add-config", "consumer.session.timeout.ms=50000"],
        *(["configs", "--describe", "--entity-type", each] for each in ("users", "groups")),
        ["consumer-groups", "--list"],
        ["consumer-groups", "--list", "--state"],
        *(["consumer-groups", "--describe", "--group", group, *more] for more in ([], ["--members"], ["--state"])),
        [*reset, "--topic", "t", "--to-offset", "99"],
        [*reset, "--from-file", str(plan)],
        ["consumer-groups", "--delete-offsets", "--group", group, "--topic", "t:5"],
        ["consumer-groups", "--delete", "--group", f"none{forged}"],
        ["consumer-groups", "--delete", "--group", group],
        ["history"],
    ]:
        main([name, "--path", str(root), *line])
        told = capsys.readouterr()
        for text in (told.out, told.err):
            assert not {"\x1b", "\r", "\u202e"} & set(text), (name, line, text)
            assert not [each for each in text.split("\n") if each.startswith("FORGED")], (name, line, text)
