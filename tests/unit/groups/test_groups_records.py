"""Records of `__consumer_offsets` have Kafka's bytes and partition; other and damaged records are recognized."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import DiskFormatError, InvalidGroupError
from pyspark_kafkalog.groups.offset_records import (
    OffsetAndMetadata,
    group_of_key,
    group_partition,
    offset_key,
    offset_value,
    parse_offset_key,
    parse_offset_value,
)
from pyspark_kafkalog.storage.names import TopicPartition, validate_group_id

RECORDS = Path(__file__).parents[2] / "data/fixtures/consumer-offsets/expected/records"


@pytest.mark.parametrize(
    ("group", "hash_code"),
    [
        ("a", 97),
        ("nightly", 1945553829),
        ("group-with-a-minus", -751807861),
        ("ключ", 33309882),
        ("😀😀", 1705528838),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_group_maps_to_same_partition_as_kafka(group: str, hash_code: int) -> None:
    for count in (1, 7, 50):
        assert group_partition(group, count) == (abs(hash_code) if hash_code != -(2**31) else 0) % count


def test_encoded_offset_commits_match_kafka_bytes() -> None:
    lines = (RECORDS / "__consumer_offsets.read_uncommitted.jsonl").read_text().splitlines()
    seen = 0
    for record in map(json.loads, lines):
        key = base64.b64decode(record["key"])
        topic_partition = parse_offset_key(key)
        if topic_partition is None:
            continue
        named = group_of_key(key)
        assert named is not None
        assert offset_key(named[1], topic_partition) == key
        if record["value"] is not None:
            value = base64.b64decode(record["value"])
            assert offset_value(parse_offset_value(value)) == value
            seen += 1
    assert seen == 18


def test_encoded_offset_is_decoded_unchanged() -> None:
    committed = OffsetAndMetadata(
        offset=2**63 - 1, leader_epoch=3, metadata="é", commit_timestamp_ms=5, topic_id="YePRir7ZSGK3cxluGsgm0g"
    )
    assert parse_offset_value(offset_value(committed)) == committed
    key = offset_key("g", TopicPartition("orders", 7))
    assert parse_offset_key(key) == TopicPartition("orders", 7)


def test_values_of_older_brokers_are_decoded() -> None:
    offset, epoch, metadata = (12).to_bytes(8, "big"), (4).to_bytes(4, "big"), b"\0\1m"
    commit, expire = (1000).to_bytes(8, "big"), (2000).to_bytes(8, "big")
    expected = OffsetAndMetadata(offset=12, metadata="m", commit_timestamp_ms=1000)
    assert parse_offset_value(b"\0\0" + offset + metadata + commit) == expected
    first = parse_offset_value(b"\0\1" + offset + metadata + commit + expire)
    assert (first.offset, first.expire_timestamp_ms) == (12, 2000)
    assert parse_offset_value(b"\0\3" + offset + epoch + metadata + commit).leader_epoch == 4


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1\0", b"\0\1\0\5abcd", b"\0\1\xff\xff", b"\xff\xff\0\1a"])
def test_invalid_key_names_no_group(key: bytes) -> None:
    assert group_of_key(key) is None


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\4", b"\0\x09" + bytes(40), b"\0\4" + bytes(12) + b"\x7f"])
def test_damaged_value_raises_disk_format_error(value: bytes) -> None:
    with pytest.raises(DiskFormatError):
        parse_offset_value(value)


def test_invalid_group_ids_are_rejected() -> None:
    assert validate_group_id("any text, ключ / .. \0") == "any text, ключ / .. \0"
    for name in ("", "x" * 32768, "\ud800"):
        with pytest.raises(InvalidGroupError):
            validate_group_id(name)
