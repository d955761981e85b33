"""Messages of formats 0 and 1, as a broker of Kafka 2.8 wrote them: dumped, verified, read and served.

`tests/data/old-formats/disk` was written by Kafka 2.8.2 with message.format.version 0.9.0 (topics v0-*) and 0.10.2
(v1-*), one topic a codec; `mixed` went from 0.9.0 over 0.10.2 to 2.8. `consumed.json` is what a consumer of that broker
got (offset, key, value, its type of the timestamp, timestamp), `dump-log.txt` what kafka-dump-log of 4.1 prints.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from fakes.server_calls import ReadServer
from kafkalog_command import Command
from repository import DATA

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, UnsupportedFormatError
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pyspark_kafkalog.record.old_formats import inner_messages, parse_old, to_batch
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.adopt.logs import check_log
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

OLD_FORMATS = DATA / "old-formats"
DISK = OLD_FORMATS / "disk"
CONSUMED: dict[str, list[Any]] = json.loads((OLD_FORMATS / "consumed.json").read_text())
TOPICS = list(CONSUMED)
_NONE, _CREATE = 0, 1  # as librdkafka numbers the types of timestamps


def rows_of(log_dir: LogDir, topic: str, **options: Any) -> list[list[Any]]:
    table = log_dir.read(topic, columns=["offset", "key", "value", "timestamp"], **options)
    times = [(each.as_py().timestamp() * 1000) for each in table.column("timestamp")]
    columns = [table.column(name).to_pylist() for name in ("key", "value")]
    texts = [[None if each is None else each.decode() for each in column] for column in columns]
    return [list(each) for each in zip(table.column("offset").to_pylist(), *texts, times, strict=True)]


def expected_rows(topic: str) -> list[list[Any]]:
    return [[*each[:3], -1 if each[3] == _NONE else each[4]] for each in CONSUMED[topic]]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_records_are_those_that_a_consumer_got(topic: str, isolation: str) -> None:
    assert rows_of(LogDir.open(DISK), topic, isolation=isolation) == expected_rows(topic)


@pytest.mark.parametrize("topic", TOPICS)
def test_types_of_timestamps_are_those_of_kafkas_clients(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """librdkafka numbers them from 0, Kafka's clients and Spark's source from -1."""
    table = LogDir.open(DISK).read(topic, columns=["timestampType"])
    assert table.column("timestampType").to_pylist() == [each[3] - 1 for each in CONSUMED[topic]]
    _, printed, _ = Command("console-consumer", DISK, capsys).try_to(
        "--topic", topic, "--from-beginning", "--timeout-ms", "1", "--property", "print.timestamp=true"
    )
    times = [line.split("\t")[0] for line in printed.splitlines() if "\t" in line]
    names = ("NO_TIMESTAMP", "CreateTime:{}", "LogAppendTime:{}")
    assert times == [names[each[3]].format(each[4]) for each in CONSUMED[topic]]


@pytest.mark.parametrize("topic", TOPICS)
def test_reading_begins_within_a_compressed_message(topic: str) -> None:
    log_dir = LogDir.open(DISK)
    for start in range(1, CONSUMED[topic][-1][0]):
        expected = [each for each in expected_rows(topic) if each[0] >= start]
        assert rows_of(log_dir, topic, partition=0, start_offset=start) == expected


def test_offsets_by_time_are_those_of_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    topics = {name: rows for name, rows in CONSUMED.items() if rows[-1][3] == _CREATE}
    printed = Command("get-offsets", DISK, capsys)("--time", "1700000014500").splitlines()
    expected = {
        f"{name}:0:{next(each[0] for each in rows if each[4] >= 1700000014500)}"
        for name, rows in topics.items()
        if rows[-1][4] >= 1700000014500
    }
    assert {each for each in printed if "append" not in each} == expected


def test_dump_is_that_of_kafka(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(DISK)
    files = sorted(str(each.relative_to(DISK)) for each in DISK.glob("*/*.log"))
    assert main(["dump-log", "--print-data-log", "--files", ",".join(files)]) == 0
    assert capsys.readouterr().out == (OLD_FORMATS / "dump-log.txt").read_text()


def test_dump_as_json_has_the_same_fields(capsys: pytest.CaptureFixture[str]) -> None:
    path = DISK / "v0-lz4-0" / f"{0:020}.log"
    assert main(["dump-log", "--print-data-log", "--output", "json", "--files", str(path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (first, *_), records = ([each for each in lines if each["type"] == kind] for kind in ("message", "record"))
    assert (first["offset"], first["magic"], first["compresscodec"], first["isvalid"]) == (3, 0, "lz4", True)
    assert [each["offset"] for each in records] == list(range(10))
    assert {each["timestampType"] for each in (first, *records)} == {"NoTimestampType"}


def findings_of(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[tuple[str, str]]]:
    code, out, _ = Command("verify", root, capsys).try_to()
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return code, [(each["what"], each["severity"]) for each in lines if each["action"] == "finding"]


def test_verify_calls_them_old_and_not_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings_of(DISK, capsys)
    assert code == 0
    assert set(found) == {("old-format", "warning")}
    assert len(found) == len(list(DISK.glob("*/*.log")))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DISK, tmp_path / "disk"))


@pytest.mark.parametrize("topic", ["v0-none", "v1-snappy"])
def test_changed_byte_is_damage_and_never_another_row(
    disk: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = disk / f"{topic}-0" / f"{0:020}.log"
    whole = path.read_bytes()
    for at in (*range(12, 30), 60, 100):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(DiskFormatError):
            rows_of(LogDir.open(disk), topic)
    code, found = findings_of(disk, capsys)
    assert code == 1
    assert ("batch-header", "error") in found


def test_torn_message_ends_the_log_of_a_killed_broker(disk: Path) -> None:
    (disk / ".kafka_cleanshutdown").unlink()
    path = disk / "v1-gzip-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-5])
    assert rows_of(LogDir.open(disk), "v1-gzip") == expected_rows("v1-gzip")[:8]


def test_adopt_refuses_and_says_how_to_copy_the_records(disk: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"magic 2.*copy the topic's records into a topic of a new root"):
        check_log(
            disk / "mixed-0", TopicPartition("mixed", 0), log_start_offset=0, high_watermark=18, recovery_point=None
        )


@pytest.mark.parametrize("topic", ["v0-gzip", "v1-none", "mixed"])
def test_server_sends_the_bytes_as_they_are(topic: str) -> None:
    stored = (DISK / f"{topic}-0" / f"{0:020}.log").read_bytes()
    with ReadServer(LogDir.open(DISK)) as server:

        def fetch(offset: int, max_bytes: int) -> bytes:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
            request = FetchRequest(topics=(FetchTopic(topic=topic, partitions=(partition,)),), max_bytes=max_bytes)
            (answer,) = server.call(ApiKey.FETCH, 12, request, FetchResponse).responses
            (found,) = answer.partitions
            assert found.error_code == ErrorCode.NONE
            return bytes(found.records or b"")  # type: ignore[arg-type]

        sent, offset = b"", 0
        while offset <= CONSUMED[topic][-1][0]:
            piece = fetch(offset, 300)
            assert piece
            sent += piece
            offset = max(each[0] for each in CONSUMED[topic] if end_of(stored, each[0]) <= len(sent)) + 1
        assert sent == stored
        before = {"v0-gzip": 3, "v1-none": 4, "mixed": 2}[topic]  # the last offset of the message before that of 5
        assert fetch(5, 1 << 20) == stored[end_of(stored, before) :]


def end_of(stored: bytes, offset: int) -> int:
    """Where the batch or message ends that holds the offset."""
    at = 0
    while at < len(stored):
        last, length, magic = struct.unpack_from(">qi4xb", stored, at)
        if magic == 2:
            last += int.from_bytes(stored[at + 23 : at + 27], "big")
        at += 12 + length
        if last >= offset:
            return at
    return at


def message(offset: int, value: bytes | None, *, magic: int, attributes: int = 0, time_ms: int = 5) -> bytes:
    body = bytes([magic, attributes]) + (time_ms.to_bytes(8, "big") if magic else b"")
    body += (-1).to_bytes(4, "big", signed=True)
    body += (-1).to_bytes(4, "big", signed=True) if value is None else len(value).to_bytes(4, "big") + value
    body = zlib.crc32(body).to_bytes(4, "big") + body
    return struct.pack(">qi", offset, len(body)) + body


def wrapper(offset: int, inner: bytes, *, magic: int, attributes: int = 1) -> bytes:
    return message(offset, zlib_gzip(inner), magic=magic, attributes=attributes, time_ms=9)


def zlib_gzip(data: bytes) -> bytes:
    member = zlib.compressobj(wbits=31)
    return member.compress(data) + member.flush()


def test_offsets_and_times_of_compressed_messages_are_those_of_kafka() -> None:
    def inner(stored: bytes) -> list[tuple[int, int]]:
        parsed = parse_old(stored, 0, file="x", file_position=0)
        return [(each.offset, each.timestamp_ms) for each in inner_messages(parsed, file="x")]

    two = message(0, b"a", magic=1) + message(3, b"b", magic=1)
    assert inner(wrapper(100, two, magic=1)) == [(97, 5), (100, 5)]
    assert inner(wrapper(100, two, magic=1, attributes=9)) == [(97, 9), (100, 9)]  # LogAppendTime
    assert inner(wrapper(0, two, magic=1)) == [(0, 5), (3, 5)]  # of old versions of librdkafka
    assert inner(wrapper(100, message(98, b"a", magic=0), magic=0)) == [(98, -1)]


@pytest.mark.parametrize(
    "stored",
    [
        wrapper(2, message(0, b"a", magic=1) + message(3, b"b", magic=1), magic=1),  # the last is above it
        wrapper(5, message(3, b"a", magic=0) + message(3, b"b", magic=0), magic=0),
        wrapper(5, message(6, b"a", magic=0), magic=0),
        wrapper(5, b"", magic=0),
        wrapper(5, wrapper(5, message(5, b"a", magic=0), magic=0), magic=0),
        wrapper(5, encode_batch([Record(offset=5, timestamp_ms=1, key=None, value=b"a")]), magic=1),
        message(5, None, magic=1, attributes=1),
        message(5, b"?", magic=1, attributes=4),  # zstd
        message(5, b"?", magic=0, attributes=3),
    ],
)
def test_messages_that_no_broker_wrote_are_corrupt(stored: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        to_batch(parse_old(stored, 0, file="x", file_position=0), file="x")


def test_offsets_over_two_to_the_31_in_a_segment_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DISK, tmp_path / "wide", ignore=shutil.ignore_patterns("v*", "mixed-0"))
    directory = tmp_path / "wide" / "wide-0"
    directory.mkdir()
    batches = [encode_batch([Record(offset=each, timestamp_ms=1, key=None, value=b"a")]) for each in (0, 3_000_000_000)]
    (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    for suffix in ("index", "timeindex"):
        (directory / f"{0:020}.{suffix}").touch()
    (tmp_path / "wide" / "replication-offset-checkpoint").write_text("0\n1\nwide 0 3000000001\n")
    (tmp_path / "wide" / "recovery-point-offset-checkpoint").write_text("0\n1\nwide 0 3000000001\n")
    log_dir = LogDir.open(tmp_path / "wide")
    for isolation in ("read_uncommitted", "read_committed"):
        assert [each[0] for each in rows_of(log_dir, "wide", isolation=isolation)] == [0, 3_000_000_000]
    assert findings_of(tmp_path / "wide", capsys) == (0, [])
