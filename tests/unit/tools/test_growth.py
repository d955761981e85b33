"""What each command opens, or requests of a store, for each partition, topic and group more: what it must, no more.

A command that opens the root, a directory or a file once more for each of them, or once for each pair of them, fails
here. `make bench-growth` draws the curves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from builders.root_places import RootPlace, memory_root, store_of
from counted_steps import counted_steps
from kafkalog_command import Command

from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata, group_partition, offset_key, offset_value
from pyspark_kafkalog.groups.offsets_topic import append_records, ensure_offsets_topic
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, write_offset_checkpoint
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import TopicPartition

FEW, MANY = 10, 40
#: Trees and searches of the image grow by the logarithm.
GROWTH_MAX: Final = 1.25

#: Files and directories opened, and requests, for each partition of a topic. A name is opened in its directory: two.
COMMANDS: Final[Mapping[tuple[str, ...], tuple[float, float]]] = {
    ("topics", "--list"): (0, 0),
    ("topics", "--describe"): (0, 0),
    ("topics", "--describe", "--topic", "one"): (0, 0),
    ("get-offsets",): (0, 0),
    ("get-offsets", "--topic", "one"): (0, 0),
    ("configs", "--describe", "--topic", "one"): (0, 0),
    ("configs", "--describe", "--entity-type", "topics"): (0, 0),
    ("acls", "--list"): (0, 0),
    ("history",): (0, 0),
    ("transactions", "list"): (0, 0),
    ("consumer-groups", "--list"): (0, 0),
    ("consumer-groups", "--describe", "--all-groups"): (0, 0),
    ("consumer-groups", "--describe", "--all-groups", "--state"): (0, 0),
    ("delete-records", "--offset-json-file", "OFFSETS"): (0, 0),
    ("du",): (2, 0),
    ("log-dirs", "--describe"): (2, 0),
    ("metrics", "--once"): (2, 0),
    ("retention", "--local", "--dry-run"): (2, 0),
    ("log-cleaner", "--local"): (2, 0),
    ("merge-segments", "--local"): (4, 0),  # and the root for each 16 of them, a task
    ("retention", "--local"): (6, 0),  # and the partition's lock, and staged files
    ("report", "--file", "REPORT"): (26, 1),
    ("verify", "--local"): (28, 3),
    ("reindex", "--local"): (50, 11),
}
#: For each group more.
OF_GROUPS: Final = (
    ("consumer-groups", "--list"),
    ("consumer-groups", "--describe", "--all-groups"),
    ("consumer-groups", "--describe", "--all-groups", "--state"),
    ("consumer-groups", "--describe", "--group", "group-1"),
    ("metrics", "--once"),
    ("retention", "--local"),
    ("report", "--file", "REPORT"),
    ("topics", "--describe"),
)

_opened = [0]


def _count(event: str, _: tuple[Any, ...]) -> None:
    if event in ("open", "os.scandir", "os.listdir"):
        _opened[0] += 1


@pytest.fixture(scope="module", autouse=True)
def counting() -> None:
    sys.addaudithook(_count)


def calls_of(place: RootPlace) -> int:
    """Opened files and directories, or requests of the store, until now."""
    return _opened[0] if isinstance(place, Path) else sum(store_of(place).requests.values())


def made(place: RootPlace, partitions: int) -> RootPlace:
    log_dir = LogDir.create(place)
    log_dir.create_topic("one", partitions=1)
    configs = {"cleanup.policy": "compact,delete"}
    log_dir.create_topic("orders", partitions=partitions, configs=configs)
    keys = [str(each) for each in range(12 * partitions)]
    log_dir.append("orders", pa.table({"key": keys, "value": keys}), flush="os")
    log_dir.group("nightly").commit({("orders", each): 0 for each in range(partitions)}, flush="os")
    if isinstance(place, Path):
        starts = {TopicPartition("orders", each): 0 for each in range(partitions)}
        write_offset_checkpoint(place / CLEANER_OFFSET_CHECKPOINT, starts)
    return place


def with_groups(place: RootPlace, count: int) -> RootPlace:
    log_dir = LogDir.create(place)
    log_dir.create_topic("orders", partitions=2)
    partitions = ensure_offsets_topic(log_dir.root)
    records: dict[int, dict[bytes, bytes | None]] = {}
    value = offset_value(OffsetAndMetadata(offset=0, commit_timestamp_ms=time_ms()))
    for number in range(count):
        name = f"group-{number}"
        of = group_partition(name, partitions)
        records.setdefault(of, {})[offset_key(name, TopicPartition("orders", number % 2))] = value
    for of, found in records.items():
        append_records(log_dir.root, of, found, flush="os")
    return place


@pytest.fixture(params=["file", "object"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], RootPlace]:
    return lambda name: tmp_path / name if request.param == "file" else memory_root()


@pytest.fixture
def arguments(tmp_path: Path) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    offsets = tmp_path / "offsets.json"
    offsets.write_text(json.dumps({"partitions": [{"topic": "one", "partition": 0, "offset": 0}], "version": 1}))
    named = {"OFFSETS": str(offsets), "REPORT": str(tmp_path / "report.html")}
    return lambda words: tuple(named.get(each, each) for each in words)


def run(place: RootPlace, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> int:
    """The calls of the second run of a command: the first one fills caches."""
    command = Command(words[0], place, capsys)
    for _ in range(2):
        before = calls_of(place)
        exit_code, _, err = command.try_to(*words[1:])
        after = calls_of(place)
        assert exit_code == 0, err
    return after - before


def test_commands_open_and_request_no_more_for_each_partition_than_they_must(
    place: Callable[[str], RootPlace],
    arguments: Callable[[tuple[str, ...]], tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    few, many = made(place("few"), FEW), made(place("many"), MANY)
    too_many = {}
    for words, allowed in COMMANDS.items():
        counts = [run(each, arguments(words), capsys) for each in (few, many)]
        each_more = (counts[1] - counts[0]) / (MANY - FEW)
        # Listings have pages, and metadata snapshots some files more.
        if each_more > allowed[not isinstance(few, Path)] + 0.2:
            too_many[words] = counts, each_more
    assert too_many == {}


def test_commands_open_and_request_nothing_more_for_each_group(
    place: Callable[[str], RootPlace],
    arguments: Callable[[tuple[str, ...]], tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    few, many = with_groups(place("few"), 200), with_groups(place("many"), 500)
    counts = {words: [run(each, arguments(words), capsys) for each in (few, many)] for words in OF_GROUPS}
    assert {words: found for words, found in counts.items() if found[1] > found[0] + 10} == {}


@pytest.mark.full
def test_work_of_commands_is_linear_in_partitions(
    place: Callable[[str], RootPlace],
    arguments: Callable[[tuple[str, ...]], tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = [made(place(str(count)), count) for count in (10, 30, 90)]
    steps: dict[tuple[str, ...], list[int]] = {}
    for words in COMMANDS:
        for each in places:
            command = Command(words[0], each, capsys)
            command.try_to(*arguments(words)[1:])
            with counted_steps() as counted:
                command.try_to(*arguments(words)[1:])
            steps.setdefault(words, []).append(counted.count)
    grown = {}
    for words, (low, middle, high) in steps.items():
        # A constant and so many steps for each partition.
        if (high - middle) / 60 > GROWTH_MAX * max((middle - low) / 20, 10):
            grown[words] = low, middle, high
    assert grown == {}
