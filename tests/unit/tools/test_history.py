"""`kafkalog history` lists commits in order, with the partitions, records and bytes of each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.root_places import RootPlace
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.metadata_records import WriteCommitRecord, WrittenPartition

FIRST_MS = 1_700_000_000_123


class Clock:
    """A clock that goes on by a second each time it is asked."""

    def __init__(self) -> None:
        self.now_ms = FIRST_MS - 1000

    def __call__(self) -> int:
        self.now_ms += 1000
        return self.now_ms


@pytest.fixture
def tool(root_place: RootPlace, capsys: pytest.CaptureFixture[str]) -> Command:
    """A root with seven commits: made, two topics, a write to each, a setting, one topic gone."""
    root = root_place
    log_dir = create_log_dir(root, clock=Clock())
    log_dir.create_topic("orders", partitions=2)
    log_dir.create_topic("gone", partitions=1)
    log_dir.append("orders", pa.table({"value": ["a", "b", "c"]}), partition=1)
    log_dir.append("gone", pa.table({"value": ["d"]}))
    log_dir.alter_topic("orders", add={"retention.ms": "-1"})
    log_dir.delete_topic("gone")
    return Command("history", root, capsys)


OPERATIONS = ["delete topic", "alter topic configs", "write", "write", "create topic", "create topic", "create root"]


def test_all_commits_are_listed_in_order(tool: Command) -> None:
    newest_first = tool.json()
    assert [each["operation"] for each in newest_first] == OPERATIONS
    oldest_first = tool.json("--oldest-first")
    assert oldest_first == newest_first[::-1]
    assert [each["offset"] for each in oldest_first] == sorted(each["offset"] for each in oldest_first)
    assert oldest_first[0]["timestamp"] == FIRST_MS
    assert oldest_first[0]["time"] == "2023-11-14T22:13:20.123Z"


@pytest.mark.file_roots
def test_write_has_its_partitions_records_and_bytes(tool: Command) -> None:
    (write,) = [each for each in tool.json("--topic", "orders") if each["operation"] == "write"]
    log = tool.root / "orders-1" / "00000000000000000000.log"
    (partition,) = write["partitions"]
    assert partition == {
        "topic": "orders",
        "topicId": LogDir.open(tool.root).topic("orders").topic_id,
        "partition": 1,
        "firstOffset": 0,
        "records": 3,
        "bytes": log.stat().st_size,
    }
    assert (write["records"], write["bytes"]) == (3, log.stat().st_size)
    assert len(write["writeId"]) == 32
    assert not {"transactionalId", "version"} & write.keys()


@pytest.mark.file_roots
def test_transactional_id_and_version_are_listed(tool: Command) -> None:
    store = LocalMetadataStore.open(tool.root)
    topic_id = store.image.topic("orders").topic_id
    written = [WrittenPartition(topic_id=topic_id, partition=0, first_offset=0, records=0, bytes=0)]
    store.commit(
        lambda image: [
            WriteCommitRecord(
                write_id="w", partitions=written, transactional_id="query", transaction_version=17, incarnation="run"
            )
        ],
        operation="write",
    )
    newest = tool.json("--limit", "1")[0]
    assert (newest["transactionalId"], newest["version"], newest["incarnation"]) == ("query", 17, "run")
    assert " query            17      orders 0 " in tool("--limit", "1")


def test_limit_keeps_newest_commits(tool: Command) -> None:
    everything = tool.json()
    assert tool.json("--limit", "2") == everything[:2]
    assert tool.json("--limit", "2", "--oldest-first") == everything[:2][::-1]
    assert tool.json("--limit", "99") == everything
    of_topic = [each for each in everything if "orders" in each["topics"]]
    assert len(of_topic) == 3
    assert tool.json("--topic", "orders") == of_topic
    assert tool.json("--topic", "orders", "--limit", "2") == of_topic[:2]
    assert tool.json("--topic", "orders", "--limit", "2", "--oldest-first") == of_topic[:2][::-1]


def test_deleted_topic_keeps_its_name(tool: Command) -> None:
    assert [each["operation"] for each in tool.json("--topic", "gone")] == ["delete topic", "write", "create topic"]


@pytest.mark.file_roots
def test_removed_commits_do_not_stop_listing(one_commit_a_file: None, tool: Command) -> None:
    offsets = sorted((tool.root / "__cluster_metadata-0").glob("*.log"))
    log_dir = LogDir.open(tool.root)
    for path in offsets[:4]:
        path.unlink()
    entries = list(log_dir.history(topic=None))
    assert [each.operation for each in entries] == OPERATIONS[:3]
    assert entries[0].topics == entries[2].topics  # the name went with the commit that made it: the id is left
    assert len(entries[0].topics[0]) == 22


def test_table_columns_are_aligned(tool: Command) -> None:
    header, *lines = tool("--oldest-first").splitlines()
    assert header.split() == [
        "COMMIT",
        "TIME",
        "OPERATION",
        "TRANSACTIONAL-ID",
        "VERSION",
        "TOPIC",
        "PARTITION",
        "FIRST-OFFSET",
        "RECORDS",
        "BYTES",
    ]
    at = header.index("TOPIC")
    assert [line[at:].split()[0] for line in lines] == ["-", "orders", "gone", "orders", "gone", "orders", "gone"]
    assert lines[0].split() == ["0", "2023-11-14T22:13:20.123Z", "create", "root", *["-"] * 7]


def test_pattern_selects_commits_of_all_topics_that_match(tool: Command) -> None:
    both = tool.json("--topic", "orders|gone")
    assert {topic for each in both for topic in each["topics"]} == {"orders", "gone"}
    assert tool.json("--topic", "ord.*", "--limit", "2") == tool.json("--topic", "orders", "--limit", "2")
    oldest = tool.json("--topic", "ord.*", "--limit", "2", "--oldest-first")
    assert oldest == tool.json("--topic", "orders", "--limit", "2", "--oldest-first")
    assert [each["offset"] for each in oldest] == sorted(each["offset"] for each in oldest)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topic", "nope"), "there is no topic 'nope', and no commit"),
        (("--limit", "0"), "must be 1 or more, not 0"),
        (("--limit", "x"), "must be 1 or more, not x"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_line(tool: Command, arguments: tuple[str, ...], message: str) -> None:
    exit_code, out, err = tool.try_to(*arguments)
    assert (exit_code, out, err.count("\n")) == (1 if "no topic" in message else 2, "", 1)
    assert err.startswith("kafkalog history: ")
    assert message in err


@pytest.mark.file_roots
def test_damaged_commit_is_reported(tool: Command) -> None:
    log_dir = LogDir.open(tool.root)
    first = tool.root / "__cluster_metadata-0" / "00000000000000000000.log"
    first.write_bytes(first.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ValueError, match=r"0000[.]log"):
        list(log_dir.history())
    exit_code, out, err = tool.try_to()
    assert (exit_code, err.count("\n")) == (1, 1)
    assert out.count("\n") in (0, len(OPERATIONS))


def test_broker_directory_is_rejected_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FIXTURES / "cars", tmp_path / "cars")
    said = Command("history", tmp_path / "cars", capsys).fails()
    assert "is a Kafka broker's log directory, which has no commits of this package to list" in said
    assert "dump-log --cluster-metadata-decoder" in said
    assert "reconfigured" not in said
