"""`kafkalog get-offsets` selects the same partitions and prints the same offsets as kafka-get-offsets."""

from __future__ import annotations

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from kafkalog_command import Command

from pyspark_kafkalog.log_dir import LogDir

TIMES_MS = (1_700_000_000_000, 1_700_000_005_000, 1_700_000_002_000)


@pytest.fixture
def tool(root_place: RootPlace, capsys: pytest.CaptureFixture[str]) -> Command:
    log_dir = LogDir.create(root_place)
    for name, partitions in (("orders", 11), ("returns", 1), ("__consumer_offsets", 1)):
        log_dir.create_topic(name, partitions=partitions)
    times = pa.array(TIMES_MS, pa.timestamp("ms"))
    log_dir.append("orders", pa.table({"value": ["a", "b", "c"], "timestamp": times}), partition=2)
    return Command("get-offsets", root_place, capsys)


def test_partitions_are_in_same_order_as_kafka(tool: Command) -> None:
    names = [line.rpartition(":")[0] for line in tool().splitlines()]
    assert names == sorted(names, key=lambda name: name.replace(":", "-"))
    assert names[:4] == ["__consumer_offsets:0", "orders:0", "orders:1", "orders:10"]
    assert "__consumer_offsets" not in tool("--exclude-internal-topics")


@pytest.mark.parametrize(
    ("time", "offset"),
    [
        ("latest", 3),
        ("-1", 3),
        ("earliest", 0),
        ("-2", 0),
        ("max-timestamp", 1),
        ("-3", 1),
        ("earliest-local", 0),
        ("-4", 0),
        (str(TIMES_MS[0]), 0),
        (str(TIMES_MS[0] + 1), 1),
        (str(TIMES_MS[1]), 1),
    ],
)
def test_time_selects_its_offset(tool: Command, time: str, offset: int) -> None:
    assert tool("--topic", "orders", "--partitions", "2", "--time", time) == f"orders:2:{offset}\n"


@pytest.mark.parametrize("time", ["latest-tiered", "-5", str(TIMES_MS[1] + 1)])
def test_partition_without_matching_record_is_omitted(tool: Command, time: str) -> None:
    assert tool("--topic", "orders", "--time", time) == ""
    assert tool("--topic", "returns", "--time", "max-timestamp") == ""


@pytest.mark.file_roots
def test_max_timestamp_is_found_across_segments(tool: Command) -> None:
    log_dir = LogDir.open(tool.root)
    log_dir.alter_topic("returns", add={"internal.segment.bytes": "200"})
    for at in (1, 9, 4, 9, 2):
        time = pa.array([TIMES_MS[0] + at], pa.timestamp("ms"))
        log_dir.append("returns", pa.table({"value": ["x" * 80], "timestamp": time}))
    assert len(list((tool.root / "returns-0").glob("*.log"))) > 2
    assert tool("--topic", "returns", "--time", "max-timestamp") == "returns:0:1\n"
    (found,) = tool.json("--topic", "returns", "--time", "max-timestamp")
    assert found == {"topic": "returns", "partition": 0, "offset": 1, "timestamp": TIMES_MS[0] + 9}
    for index in (tool.root / "returns-0").glob("*.timeindex"):
        index.unlink()
    assert tool("--topic", "returns", "--time", "max-timestamp") == "returns:0:1\n"


@pytest.mark.parametrize(
    ("rules", "partitions"),
    [
        ("orders:2", [2]),
        ("orders:0-2", [0, 1]),
        ("orders:9-", [10, 9]),
        ("ord.*:-1,orders:4", [0, 4]),
        ("orders:3,:1-3", [1, 2, 3]),
    ],
)
def test_topic_partition_rules_select_their_partitions(tool: Command, rules: str, partitions: list[int]) -> None:
    assert [each["partition"] for each in tool.json("--topic-partitions", rules)] == partitions


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topic", "nope"), "Could not match any topic-partitions"),
        (("--topic", "orders", "--topic-partitions", "orders:1"), "cannot be used with --topic"),
        (("--partitions", "1,x"), "numeric partition ids, but received: 1,x"),
        (("--topic-partitions", "orders:a"), "Invalid rule specification: orders:a"),
        (("--topic", "a("), "not a Java regular expression"),
        (("--time", "noon"), "Malformed time argument noon"),
        (("--time", "-7"), "Malformed time argument -7"),
        (("--time", "1_000"), "Malformed time argument 1_000"),
        (("--time", "9223372036854775808"), "Malformed time argument 9223372036854775808"),
    ],
)
def test_invalid_arguments_are_rejected(tool: Command, arguments: tuple[str, ...], message: str) -> None:
    assert message in tool.fails(*arguments)
