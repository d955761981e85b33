"""Every command takes the URL of a log directory in an object store: it works, or says what to do instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.root_places import forget, memory_root

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.main import COMMANDS, main

_ORDERS = ("--topic", "orders")
#: What works: the command, and its arguments beside --path.
WORKING = [
    ("acls", "--list"),
    ("configs", "--entity-type", "topics", "--entity-name", "orders", "--describe"),
    ("console-consumer", *_ORDERS, "--from-beginning", "--max-messages", "3"),
    ("consumer-groups", "--list"),
    ("delete-records", "--offset-json-file", "offsets.json"),
    ("du", "--by", "kind"),
    ("dump-log", *_ORDERS, "--partition", "0", "--offset", "1", "--print-data-log"),
    ("export", "--to", "copy"),
    ("features", "describe"),
    ("features", "upgrade"),
    ("get-offsets", "--time", "earliest"),
    ("history",),
    ("log-cleaner", "--local"),
    ("log-dirs", "--describe"),
    ("merge-segments", "--local"),
    ("metadata-quorum", "describe", "--replication"),
    ("metadata-quorum", "describe", "--status"),
    ("metrics", "--once"),
    ("perf-test", "consumer", *_ORDERS, "--messages", "3"),
    ("reindex", "--local"),
    ("report", "--file", "report.html"),
    ("retention", "--local"),
    ("topics", "--describe"),
    ("transactions", "describe-producers", *_ORDERS, "--partition", "0"),
    ("transactions", "find-hanging"),
    ("transactions", "list"),
    ("verify", "--local"),
]
#: What needs files, and a part of the way that it names.
NEEDING_FILES = [
    ("adopt", (), "write the broker's records there with Spark"),
    ("export", (), "--to DIR"),
    ("tier", ("--local",), "`kafkalog merge-segments` puts them there"),
    ("verify", ("--local", "--repair"), "lost objects come back from earlier versions"),
]
#: Tested with other input: standard input, Delta tables; and those without a log directory.
ELSEWHERE = {
    "console-producer",
    "follow",
    "promote",
    "topic-to-delta",
    "delta-to-topic",
    "completion",
    "warm-up",
    "serve",
}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A log of three records; the working directory is a new one, so that files made by mistake are noticed."""
    url = memory_root()
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", partitions=1)
    import pyarrow as pa

    log_dir.append("orders", pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"]}))
    monkeypatch.chdir(tmp_path)
    offsets = {"partitions": [{"topic": "orders", "partition": 0, "offset": 1}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(offsets))
    yield url
    forget(url)


def is_without_local_copy(directory: Path) -> bool:
    """Whether nobody has taken the URL for a path."""
    return not [each.name for each in directory.iterdir() if each.name.startswith("s3")]


@pytest.mark.parametrize("command", WORKING, ids=" ".join)
def test_command_works_on_object_root(
    url: str, tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = command
    assert main([name, *arguments, "--path", url]) == 0, capsys.readouterr().err
    assert is_without_local_copy(tmp_path)


@pytest.mark.parametrize(("name", "arguments", "way"), NEEDING_FILES)
def test_command_that_needs_files_names_the_way(
    url: str, tmp_path: Path, name: str, arguments: tuple[str, ...], way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, *arguments, "--path", url]) in (1, 2)
    assert way in capsys.readouterr().err
    assert is_without_local_copy(tmp_path)


def test_all_commands_are_tested() -> None:
    named = {name for name, *_ in WORKING} | {name for name, *_ in NEEDING_FILES} | ELSEWHERE
    assert named == {name for commands in COMMANDS.values() for name in commands}
