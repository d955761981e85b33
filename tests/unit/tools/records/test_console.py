"""`kafkalog console-producer` and `console-consumer` turn lines into records and back, by Kafka properties."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import struct
import subprocess
import sys
import termios
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafkalog_command import Command
from patience import PATIENCE_S, wait_until
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root.native import begin_following
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.records.console import Consumer, _read

_PACKAGE = "org.apache.kafka.common.serialization."


class Console:
    """A producer and a consumer of topic `t`."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.producer = Command("console-producer", root, capsys)
        self.consumer = Command("console-consumer", root, capsys)

    def produce(self, text: bytes, *properties: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        stdin = self.root.with_name("stdin")
        stdin.write_bytes(text)
        given = [argument for each in properties for argument in ("--property", each)]
        return self.producer.read(stdin, "--topic", "t", *given, *options)

    def produces(self, text: bytes, *properties: str, options: tuple[str, ...] = ()) -> None:
        assert self.produce(text, *properties, options=options) == (0, "", "")

    def records(self) -> list[tuple[Any, ...]]:
        rows = LogDir.open(self.root).read("t", columns=["key", "value", "headers"]).to_pylist()
        return [(row["key"], row["value"], [(each["key"], each["value"]) for each in row["headers"]]) for row in rows]

    def consume(self, *options: str, properties: tuple[str, ...] = (), topic: str = "t") -> str:
        given = [argument for each in properties for argument in ("--property", each)]
        where = () if "--include" in options else ("--topic", topic)
        exit_code, out, err = self.consumer.try_to(*where, "--timeout-ms", "1", *given, *options)
        assert exit_code == 0
        assert err == f"Processed a total of {self.count(out)} messages\n"
        return out

    @staticmethod
    def count(out: str) -> int:
        return out.count("\n")


@pytest.fixture
def console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(tmp_path / "root", capsys)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb\rc", [b"a", b"b", b"c"]),
        ("ä\n\n€".encode(), ["ä".encode(), b"", "€".encode()]),
        (b"\xff\n", [b"\xff"]),
    ],
)
def test_each_line_becomes_one_record(console: Console, text: bytes, values: list[bytes]) -> None:
    LogDir.create(console.root).create_topic("t", partitions=1)
    console.produces(text)
    assert console.records() == [(None, value, []) for value in values]


@pytest.mark.parametrize(
    ("properties", "line", "record"),
    [
        (("parse.key=true",), b"k\tv\tw", (b"k", b"v\tw", [])),
        (("parse.key=true", "key.separator=::"), b"::v", (b"", b"v", [])),
        (("parse.key=TRUE", "null.marker=NULL"), b"NULL\tNULL", (None, None, [])),
        (("parse.key=true", "ignore.error=true"), b"v", (None, b"v", [])),
        (("parse.headers=true",), b"a:1,b:\tv", (None, b"v", [("a", b"1"), ("b", b"")])),
        (("parse.headers=true", "parse.key=true"), b"a:1\tk\tv", (b"k", b"v", [("a", b"1")])),
        (("parse.headers=true", "null.marker=N"), b"a:N,b:x\tv", (None, b"v", [("a", None), ("b", b"x")])),
        (("parse.headers=true", "null.marker=N"), b"N\tv", (None, b"v", [])),
        (("parse.headers=true", "ignore.error=true"), b"a\tv", (None, b"v", [("a", None)])),
        (("parse.headers=true", "ignore.error=true"), b"v", (None, b"v", [])),
        (("parse.headers=true",), b"a:1,b:2,,\tv", (None, b"v", [("a", b"1"), ("b", b"2")])),
        (
            ("parse.headers=true", "headers.separator=[;|]", "headers.key.separator==", "headers.delimiter= "),
            b"a=1;b=2|c=3=4 v",
            (None, b"v", [("a", b"1"), ("b", b"2"), ("c", b"3=4")]),
        ),
    ],
)
def test_line_is_parsed_by_properties(
    console: Console, properties: tuple[str, ...], line: bytes, record: tuple[Any, ...]
) -> None:
    console.produces(line + b"\n", *properties)
    assert console.records() == [record]


@pytest.mark.parametrize(
    ("properties", "text", "message", "written"),
    [
        (("parse.key=true",), b"a\tb\nc\td\nbad\ne\tf\n", "No key separator found on line number 3: 'bad'", 2),
        (("parse.headers=true",), b"a:1\tb\nbad\n", "No headers delimiter found on line number 2: 'bad'", 1),
        (
            ("parse.headers=true",),
            b"a:1\tv\na:1\tv\na:1,b\tv\na:1\tv\nx\n",
            "No header key separator found in pair 'b' on line number 3",
            2,
        ),
        (
            ("parse.headers=true", "null.marker=N"),
            b"N:1\tv\n",
            "Header keys should not be equal to the null marker 'N' on line number 1",
            0,
        ),
    ],
)
def test_lines_before_bad_line_are_written(
    console: Console, properties: tuple[str, ...], text: bytes, message: str, written: int
) -> None:
    LogDir.create(console.root).create_topic("t", partitions=1)
    exit_code, _, err = console.produce(text, *properties)
    assert (exit_code, err) == (1, f"kafkalog console-producer: {message}\n")
    assert len(console.records()) == written


@pytest.mark.parametrize(
    ("options", "properties", "message"),
    [
        ((), ("headers.delimiter=,",), "headers.delimiter and headers.separator may not be equal"),
        ((), ("key.separator=N", "null.marker=N"), "null.marker and key.separator may not be equal"),
        ((), ("key.separator=",), "key.separator may not be empty"),
        ((), ("headers.separator=(",), "headers.separator is an invalid regex"),
        ((), ("headers.separator=(?<=;),",), "headers.separator is an invalid regex"),
        ((), ("headers.separator=|",), "| matches the empty text"),
        ((), (r"headers.separator=\b",), "matches the empty text"),
        ((), ("parse.key",), "expected NAME=VALUE"),
        (("--compression-codec", "brotli"), (), "invalid choice: 'brotli'"),
        (("--line-reader", "com.Mine"), (), "com.Mine is not known"),
    ],
)
def test_rejected_options_create_no_log_directory(
    console: Console, options: tuple[str, ...], properties: tuple[str, ...], message: str
) -> None:
    exit_code, out, err = console.produce(b"x\n", *properties, options=options)
    assert (exit_code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not console.root.exists()


def test_created_log_directory_and_topic_are_named_once(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    console.produces(b"a\n")
    assert [each.getMessage() for each in caplog.records] == [
        f"created the log directory {console.root}, as there was none",
        f"created topic 't' with 1 partition in {console.root}, for a write to it",
    ]
    caplog.clear()
    console.produces(b"b\n")
    assert not caplog.records


def test_follower_is_refused_before_the_first_line_is_read(console: Console) -> None:
    begin_following(LogDir.create(console.root).root.native(), leader="a:9092", cluster_id="theirs", topics=".*")
    exit_code, _, err = console.produce(b"")
    assert exit_code == 1
    assert "only its follower may write to it" in err


def test_lines_are_batched_into_one_commit_unless_sync(console: Console) -> None:
    console.produces(b"".join(b"%d\n" % number for number in range(1000)), options=("--compression-codec",))
    writes = [each for each in LogDir.open(console.root).history() if each.operation == "write"]
    assert [each.records for each in writes] == [1000]
    console.produces(b"a\nb\n", options=("--sync",))
    writes = [each for each in LogDir.open(console.root).history() if each.operation == "write"]
    assert [each.records for each in writes] == [1, 1, 1000]


def test_typed_line_is_written_before_next_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog", "console-producer", "--path", str(tmp_path / "r")]
    with subprocess.Popen([*command, "--topic", "t", "--timeout", "10"], stdin=subprocess.PIPE) as typed:
        assert typed.stdin is not None
        typed.stdin.write(b"first\nsec")
        typed.stdin.flush()
        root = tmp_path / "r"
        wait_until(lambda: (root / "t-0").exists() and LogDir.open(root).partition("t", 0).high_watermark)
        assert LogDir.open(tmp_path / "r").read("t")["value"].to_pylist() == [b"first"]
        typed.stdin.write(b"ond")
        typed.stdin.close()
        assert typed.wait(PATIENCE_S) == 0
    assert LogDir.open(tmp_path / "r").read("t")["value"].to_pylist() == [b"first", b"second"]


@pytest.fixture
def filled(console: Console) -> Console:
    log_dir = LogDir.create(console.root)
    log_dir.create_topic("t", partitions=2)
    times = pa.array([1000, 2000, 3000], pa.timestamp("ms"))
    headers = pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], [], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    columns = {"key": ["k", None, "m"], "value": ["a", "b", None], "headers": headers, "timestamp": times}
    log_dir.append("t", pa.table(columns), partition=0)
    log_dir.append("t", pa.table({"value": ["c", "d"]}), partition=1)
    return console


def test_records_are_printed_like_kafka(filled: Console) -> None:
    assert filled.consume("--from-beginning") == "a\nb\nnull\nc\nd\n"
    everything = tuple(f"print.{name}=true" for name in ("timestamp", "partition", "offset", "headers", "key", "epoch"))
    assert filled.consume("--partition", "0", "--offset", "earliest", properties=everything).splitlines() == [
        "CreateTime:1000\tPartition:0\tOffset:0\tEpoch:NOT_PRESENT\th:1,i:null\tk\ta",
        "CreateTime:2000\tPartition:0\tOffset:1\tEpoch:NOT_PRESENT\tNO_HEADERS\tnull\tb",
        "CreateTime:3000\tPartition:0\tOffset:2\tEpoch:NOT_PRESENT\tNO_HEADERS\tm\tnull",
    ]
    shape = ("print.key=true", "key.separator= | ", "null.literal=-", "line.separator=;\n", "print.value=true")
    assert filled.consume("--partition", "0", "--offset", "1", properties=shape) == "- | b;\nm | -;\n"
    exit_code, out, _ = filled.consumer.try_to(
        *("--topic", "t", "--from-beginning", "--timeout-ms", "1", "--property", "print.value=false")
    )
    assert (exit_code, out) == (0, "")
    no_value = ("print.key=true", "print.value=false")
    assert filled.consume("--partition", "0", "--from-beginning", properties=no_value) == "k\nnull\nm\n"


def test_reading_begins_and_ends_at_requested_offsets(filled: Console) -> None:
    assert filled.consume() == ""
    assert filled.consume("--from-beginning", "--max-messages", "4") == "a\nb\nnull\nc\n"
    assert filled.consume("--partition", "1", "--offset", "1") == "d\n"
    assert filled.consume("--partition", "1", "--from-beginning") == "c\nd\n"
    assert filled.consume("--partition", "1", "--offset", "99") == ""
    assert filled.consume("--partition", "1", "--offset", "LATEST") == ""
    assert filled.consume("--include", "t|x", "--from-beginning", "--max-messages", "1") == "a\n"
    assert filled.consume("--include", r"\Qt\E{1,3}", "--from-beginning", "--max-messages", "1") == "a\n"
    assert filled.consume("--include", "t,x", "--from-beginning", "--max-messages", "1", "--timeout-ms", "1") == ""


def test_group_continues_at_its_committed_offsets(filled: Console) -> None:
    assert filled.consume("--group", "g", "--from-beginning", "--max-messages", "2") == "a\nb\n"
    assert filled.consume("--group", "g") == "null\nc\nd\n"
    committed = LogDir.open(filled.root).group("g").fetch()
    offsets = {(each.topic, each.partition): found.offset for each, found in committed.items()}
    assert offsets == {("t", 0): 3, ("t", 1): 2}
    assert filled.consume("--group", "other") == ""
    filled.produces(b"e\n")
    assert filled.consume("--group", "g") == filled.consume("--group", "other") == "e\n"


def test_offsets_of_unprinted_records_are_not_committed(filled: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        exit_code, _, err = filled.consumer.try_to(
            "--topic", "t", "--group", "g", "--from-beginning", "--timeout-ms", "1"
        )
    assert (exit_code, "No space left on device" in err) == (1, True)
    assert LogDir.open(filled.root).group("g").fetch() == {}


def test_offsets_are_not_committed_without_auto_commit(filled: Console) -> None:
    no_commit = ("--group", "g", "--consumer-property", "enable.auto.commit=false")
    assert filled.consume("--from-beginning", "--max-messages", "2", *no_commit) == "a\nb\n"
    assert LogDir.open(filled.root).group("g").fetch() == {}


def test_read_only_root_rejects_group_before_first_record(capsys: pytest.CaptureFixture[str]) -> None:
    consumer = Command("console-consumer", FIXTURES / "cars", capsys)
    reading = ("--topic", "cars", "--from-beginning", "--max-messages", "2", "--group", "g")
    exit_code, out, err = consumer.try_to(*reading)
    assert (exit_code, out) == (1, "")
    assert "no group's progress can be committed" in err
    for option in ("--consumer-property", "--command-property"):
        exit_code, out, _ = consumer.try_to(*reading, option, "enable.auto.commit=false")
        assert (exit_code, len(out.splitlines())) == (0, 2)


def test_later_records_and_topics_are_printed(filled: Console) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog", "console-consumer", "--path", str(filled.root)]
    with subprocess.Popen(
        [
            *(*command, "--include", ".*", "--max-messages", "3", "--timeout-ms", "120000"),
            *("--consumer-property", "group.id=g", "--consumer-property", "auto.commit.interval.ms=50"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        log_dir = LogDir.open(filled.root)
        assert consumer.stdout is not None
        group = log_dir.group("g")

        def has_found_the_ends() -> bool:
            log_dir.refresh()
            return len(group.fetch()) == 2

        wait_until(has_found_the_ends)
        for value in ("e", "f"):
            log_dir.append("t", pa.table({"value": [value]}))
        log_dir.append("new", pa.table({"value": ["g"]}))
        assert sorted(consumer.stdout.read().splitlines()) == [b"e", b"f", b"g"]
        assert consumer.wait(PATIENCE_S) == 0


def test_records_deleted_by_retention_are_skipped_without_error(
    filled: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LogDir.open(filled.root)
    consumer = Consumer(
        reader, lambda name: name == "t", schema=KAFKA_SCHEMA, reset="earliest", isolation="read_uncommitted"
    )
    log_dir = LogDir.open(filled.root)
    log_dir.alter_topic("t", add={"internal.segment.bytes": "200", "retention.bytes": "1", "file.delete.delay.ms": "0"})
    for value in ("e", "f"):
        log_dir.append("t", pa.table({"value": [value * 100]}), partition=0)
    apply_retention(log_dir.root)
    for path in (filled.root / "t-0").glob("*.deleted"):
        path.unlink()
    assert not (filled.root / "t-0" / "00000000000000000000.log").exists()
    found = [chunk.batch.column("value").to_pylist() for chunk in consumer.poll()]
    assert found == [[b"c", b"d"]]
    assert [chunk.topic_partition.partition for chunk in consumer.poll()][:1] == [0]


@pytest.mark.slow
def test_signal_commits_group_offsets_and_typed_lines(filled: Console) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog"]
    where = ("--path", str(filled.root), "--topic", "t")
    begin = ("--from-beginning", "--group", "g")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen([*command, "console-producer", *where, "--timeout", "60000"], **pipes) as producer,
        subprocess.Popen([*command, "console-consumer", *where, *begin], **pipes) as consumer,
    ):
        assert producer.stdin is not None
        assert consumer.stdout is not None
        assert [consumer.stdout.readline() for _ in range(5)] == [b"a\n", b"b\n", b"null\n", b"c\n", b"d\n"]
        consumer.terminate()
        assert consumer.wait(PATIENCE_S) == 130
        assert LogDir.open(filled.root).group("g").fetch()[TopicPartition("t", 0)].offset == 3
        producer.stdin.write(b"typed\n")
        producer.stdin.flush()
        typed = producer.stdin
        wait_until(lambda: fcntl.ioctl(typed, termios.FIONREAD, bytes(4)) == bytes(4), "that it has read the line")
        producer.terminate()
        assert producer.wait(PATIENCE_S) == 130
    assert b"typed" in LogDir.open(filled.root).read("t")["value"].to_pylist()


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("StringDeserializer", "ä\ufffd".encode() + b"\xff", "ä\ufffd\ufffd"),
        ("ShortDeserializer", struct.pack(">h", -7), "-7"),
        ("IntegerDeserializer", struct.pack(">i", 2**31 - 1), "2147483647"),
        ("LongDeserializer", struct.pack(">q", -(2**63)), "-9223372036854775808"),
        ("FloatDeserializer", struct.pack(">f", 0.1), "0.1"),
        ("DoubleDeserializer", struct.pack(">d", 1e7), "1.0E7"),
        ("BooleanDeserializer", b"\x01", "true"),
        ("UUIDDeserializer", str(uuid.UUID(int=5)).encode(), str(uuid.UUID(int=5))),
        ("BytesDeserializer", b"a\x00\xff", "a\\x00\\xFF"),
        ("ByteBufferDeserializer", b"abc", "java.nio.HeapByteBuffer[pos=0 lim=3 cap=3]"),
        ("ByteArrayDeserializer", b"abc", "abc"),
    ],
)
def test_deserializer_prints_same_text_as_kafka(console: Console, name: str, data: bytes, text: str) -> None:
    log_dir = LogDir.create(console.root)
    log_dir.append("t", pa.table({"key": pa.array([data, None]), "value": pa.array([None, data], pa.binary())}))
    expected = f"{text} null\nnull {text}\n"
    short = ("--key-deserializer", name, "--value-deserializer", name)
    assert console.consume("--from-beginning", *short, properties=("print.key=true", "key.separator= ")) == expected
    full = tuple(f"{part}.deserializer={_PACKAGE}{name}" for part in ("key", "value"))
    shape = ("print.key=true", "key.separator= ", *full)
    assert console.consume("--from-beginning", properties=shape) == expected


def test_invalid_record_is_reported_or_skipped_on_request(console: Console) -> None:
    LogDir.create(console.root).append("t", pa.table({"value": [bytes(8), b"short", bytes(8)]}))
    arguments = ("--topic", "t", "--from-beginning", "--timeout-ms", "1", "--value-deserializer", "LongDeserializer")
    exit_code, out, err = console.consumer.try_to(*arguments)
    assert (exit_code, out) == (1, "0\n")
    assert err.splitlines() == [
        "Processed a total of 2 messages",
        "kafkalog console-consumer: Size of data received by LongDeserializer is not 8",
    ]
    exit_code, out, err = console.consumer.try_to(*arguments, "--skip-message-on-error")
    assert (exit_code, out) == (0, "0\n0\n")
    assert err.splitlines()[-1] == "Processed a total of 3 messages"


def test_aborted_records_are_not_printed_with_read_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(FIXTURES / "transactions", capsys)
    everything = console.consume("--from-beginning", topic="transactions")
    committed = console.consume("--from-beginning", "--isolation-level", "read_committed", topic="transactions")
    assert 0 < committed.count("\n") < everything.count("\n")
    assert console.consume("--partition", "0", "--offset", "earliest", topic="transactions") in everything


def test_formatters_of_internal_topics_match_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FIXTURES / "consumer-offsets", tmp_path / "offsets")
    tool = Command("console-consumer", tmp_path / "offsets", capsys)
    arguments = ("--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "1", "--formatter")
    exit_code, out, err = tool.try_to(*arguments, "org.apache.kafka.tools.consumer.OffsetsMessageFormatter")
    assert (exit_code, err) == (0, "Processed a total of 38 messages\n")
    assert out.splitlines()[0] == (
        '{"key":{"type":1,"data":{"group":"classic-group","topic":"orders","partition":0}},'
        '"value":{"version":4,"data":{"offset":21,"leaderEpoch":0,"metadata":"","commitTimestamp":1795220550122}}}'
    )
    _, out, _ = tool.try_to(*arguments, "GroupMetadataMessageFormatter")
    assert '"subscription":"AAMAAAABAAZvcmRlcnP' in out
    assert tool.try_to(*arguments, "NoOpMessageFormatter")[1] == ""
    assert "--include" not in tool.try_to("--include", ".*", "--timeout-ms", "1", "--from-beginning")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topic", "nope"), "there is no topic 'nope'"),
        (("--topic", "t", "--include", "t"), "not allowed with argument"),
        ((), "one of the arguments --topic --include is required"),
        (("--include", "t", "--partition", "0"), "The topic is required when partition is specified."),
        (("--topic", "t", "--offset", "3"), "The partition is required when offset is specified."),
        (("--topic", "t", "--partition", "0", "--offset", "-3"), "The provided offset value '-3' is incorrect"),
        (("--topic", "t", "--partition", "0", "--group", "g"), "group and partition cannot be specified together"),
        (("--topic", "t", "--partition", "7"), "7"),
        (("--topic", "t", "--group", "g", "--consumer-property", "group.id=h"), "--group says 'g', group.id 'h'"),
        (
            ("--topic", "t", "--from-beginning", "--consumer-property", "auto.offset.reset=latest"),
            "Can't simultaneously specify --from-beginning and 'auto.offset.reset=latest'",
        ),
        (("--topic", "t", "--formatter", "com.Mine"), "formatter com.Mine is not known"),
        (("--topic", "t", "--value-deserializer", "com.Mine"), "deserializer com.Mine is not known"),
    ],
)
def test_invalid_arguments_are_rejected(filled: Console, arguments: tuple[str, ...], message: str) -> None:
    assert message in filled.consumer.fails(*arguments)


def test_input_with_a_high_descriptor_is_read() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        if limits[0] < 4096:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
            opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        end, other_end = os.pipe()
        opened.callback(os.close, end)
        high = fcntl.fcntl(end, fcntl.F_DUPFD, 1024)
        opened.callback(os.close, high)
        os.write(other_end, b"a\n")
        os.close(other_end)
        assert _read(high, 10) == b"a\n"
        assert _read(high, None) == b""


@pytest.mark.parametrize("time_ms", [1_700_000_000_000_000_000, (1 << 63) - 1])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--property", "print.timestamp=true"), "CreateTime:{}\tv\n"),
        (("--format", "%T\\n"), "{}\n"),
        (
            ("--output", "json"),
            '{{"topic": "t", "partition": 0, "offset": 0, "timestamp": {}, "timestampType": "CreateTime", '
            '"key": null, "value": "v"}}\n',
        ),
    ],
    ids=["property", "format", "json"],
)
def test_time_that_no_calendar_has_is_printed_as_its_number(
    console: Console, time_ms: int, options: tuple[str, ...], expected: str
) -> None:
    log_dir = LogDir.create(console.root)
    log_dir.create_topic("t", partitions=1, configs={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    log_dir.append("t", pa.table({"value": ["v"], "timestamp": pa.array([time_ms], pa.timestamp("ms", "UTC"))}))
    assert console.consume("--from-beginning", *options) == expected.format(time_ms)


def test_records_before_a_damaged_batch_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The batch at offset 340 has a wrong CRC, and is not the first one of its segment."""
    consumer = Command("console-consumer", FIXTURES / "unclean", capsys)
    exit_code, out, err = consumer.try_to("--topic", "unclean-badcrc", "--from-beginning", "--timeout-ms", "0")
    assert (exit_code, out.count("\n"), "batch at offset 340" in err) == (1, 340, True)
