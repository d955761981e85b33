"""console-consumer prints format strings like kcat, JSON, and only the records with given keys."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from kafkalog_command import Command

from pyspark_kafkalog.log_dir import LogDir

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def consumer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("t", partitions=2)
    columns = {
        "key": pa.array([b"k", None, b"m"], pa.binary()),
        "value": pa.array([b"a", b"\xff\x00", None], pa.binary()),
        "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], [], None], HEADERS),
        "timestamp": pa.array([1000, 2000, 3000], pa.timestamp("ms")),
    }
    log_dir.append("t", pa.table(columns), partition=0)
    times = pa.array([4000, 5000], pa.timestamp("ms"))
    log_dir.append("t", pa.table({"key": ["m", "k"], "value": ["c", "d"], "timestamp": times}), partition=1)
    return Command("console-consumer", tmp_path / "root", capsys)


def consume(consumer: Command, *options: str) -> str:
    exit_code, out, err = consumer.try_to("--topic", "t", "--from-beginning", "--timeout-ms", "1", *options)
    assert exit_code == 0, err
    return out


def test_format_prints_tokens_like_kcat(consumer: Command) -> None:
    everything = r"%t [%p] at %o: %T %K:%k %S %h 100%%\t|\x41\n"
    assert consume(consumer, "-f", everything).splitlines() == [
        "t [0] at 0: 1000 1:k 1 h=1,i=NULL 100%\t|A",
        "t [0] at 1: 2000 -1: 2  100%\t|A",
        "t [0] at 2: 3000 1:m -1  100%\t|A",
        "t [1] at 0: 4000 1:m 1  100%\t|A",
        "t [1] at 1: 5000 1:k 1  100%\t|A",
    ]


def test_format_prints_bytes_unchanged_and_binary_lengths(consumer: Command) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog", "console-consumer", "--path", str(consumer.root)]
    options = ("--topic", "t", "--partition", "0", "--from-beginning", "--timeout-ms", "1", "--format", "%R%s")
    done = subprocess.run([*command, *options], capture_output=True, check=True)
    assert done.stdout == struct.pack(">i", 1) + b"a" + struct.pack(">i", 2) + b"\xff\x00" + struct.pack(">i", -1)


def test_format_without_tokens_is_printed_for_each_record(consumer: Command) -> None:
    assert consume(consumer, "--partition", "1", "-f", ".") == ".."


def test_null_literal_replaces_nulls_in_format(consumer: Command) -> None:
    out = consume(consumer, "--partition", "0", "--max-messages", "3", "-f", r"%k\n", "--property", "null.literal=NULL")
    assert out == "k\nNULL\nm\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-f", "%x"), "unknown token %x"),
        (("-f", "%"), "unknown token %"),
        (("-f", "%s", "--output", "json"), "format and output json cannot be specified together"),
        (("-f", "%s", "--formatter", "NoOpMessageFormatter"), "not allowed with argument"),
        (("--grep", "("), "--grep (: missing )"),
        (("--key", "x", "--property", "key.deserializer=LongDeserializer"), "expected a number"),
        (("--key", "x", "--property", "key.deserializer=DoubleDeserializer"), "not of DoubleDeserializer"),
    ],
)
def test_invalid_formats_and_keys_are_rejected(consumer: Command, options: tuple[str, ...], said: str) -> None:
    exit_code, out, err = consumer.try_to("--topic", "t", "--timeout-ms", "1", *options)
    assert (exit_code, out) == (2, "")
    assert said in err


def test_key_selects_records_in_all_partitions(consumer: Command) -> None:
    assert consume(consumer, "--key", "m", "-f", r"%p/%o %s\n") == "0/2 \n1/0 c\n"
    assert consume(consumer, "--key", "m", "--key", "k", "--max-messages", "3", "-f", "%s;") == "a;;c;"
    assert consume(consumer, "--key", "m", "--partition", "1") == "c\n"
    assert consume(consumer, "--key", "none") == ""


def test_grep_finds_pattern_in_bytes_of_key_or_value(consumer: Command) -> None:
    assert consume(consumer, "--grep", "^[ac]$", "-f", "%k%s;") == "ka;mc;"
    assert consume(consumer, "--grep", "(?i)M", "-f", "%p/%o;") == "0/2;1/0;"
    assert consume(consumer, "--grep", r"\xff.$", "-f", "%p/%o;") == "0/1;"  # a dot is one byte
    assert consume(consumer, "--grep", "c|d", "--key", "k", "-f", "%s;") == "d;"
    assert consume(consumer, "--grep", "a|c|d", "--max-messages", "2", "-f", "%s;") == "a;c;"
    LogDir.open(consumer.root).append("t", pa.table({"value": ["früh", "spät"]}), partition=1)
    assert consume(consumer, "--grep", "ü") == "früh\n"


def test_several_partitions_are_read(consumer: Command) -> None:
    LogDir.open(consumer.root).add_partitions("t", 3)
    LogDir.open(consumer.root).append("t", pa.table({"value": ["z"]}), partition=2)
    assert consume(consumer, "--partition", "2", "--partition", "1") == "z\nc\nd\n"
    assert consumer.try_to(
        "--topic", "t", "--partition", "1", "--partition", "2", "--offset", "1", "--timeout-ms", "1"
    )[1] == ("d\n")


def test_key_is_compared_as_number_with_deserializer_of_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [struct.pack(">q", 7), b"short", struct.pack(">q", -8)]
    log_dir = LogDir.create(tmp_path / "r")
    log_dir.append("t", pa.table({"key": keys, "value": ["a", "b", "c"]}))
    command = Command("console-consumer", tmp_path / "r", capsys)
    assert consume(command, "--key=-8", "--property", "key.deserializer=LongDeserializer", "-f", "%k %s") == "-8 c"


def test_group_passes_records_without_the_key(consumer: Command) -> None:
    assert consume(consumer, "--group", "g", "--key", "m") == "null\nc\n"
    committed = LogDir.open(consumer.root).group("g").fetch()
    assert sorted((each.partition, found.offset) for each, found in committed.items()) == [(0, 3), (1, 2)]


def test_json_has_one_object_for_each_record(consumer: Command) -> None:
    first, second, third, *_ = map(json.loads, consume(consumer, "--output", "json").splitlines())
    assert first == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 1000,
        "timestampType": "CreateTime",
        "key": "k",
        "value": "a",
        "headers": [{"key": "h", "value": "1"}, {"key": "i", "value": None}],
    }
    assert (second["key"], second["value"], "headers" in second) == (None, {"base64": "/wA="}, False)
    assert (third["key"], third["value"]) == ("m", None)
