"""Records of `__consumer_offsets` have Kafka's bytes and partition; other and damaged records are recognized."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from random import Random

import pytest
from repository import FIXTURES

from pyspark_kafkalog.errors import DiskFormatError, InvalidGroupError
from pyspark_kafkalog.groups import offset_records
from pyspark_kafkalog.groups.offset_records import (
    OffsetAndMetadata,
    group_of_key,
    group_partition,
    offset_key,
    offset_of_topic,
    offset_value,
    parse_offset_key,
    parse_offset_value,
    parse_value,
)
from pyspark_kafkalog.metadata.messages.internal_records import OffsetCommitValue
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.storage.names import TopicPartition, decode_uuid, validate_group_id

RECORDS = FIXTURES / "consumer-offsets/expected/records"


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


def test_quick_decoding_says_what_the_codec_says() -> None:
    """Of values and keys of all kinds, whole, shortened, lengthened and with any byte changed."""
    random = Random(1)
    topic_id = "YePRir7ZSGK3cxluGsgm0g"
    values = [
        offset_value(OffsetAndMetadata(offset=offset, metadata=metadata, topic_id=named, commit_timestamp_ms=5))
        for offset in (0, 2**63 - 1)
        for metadata in ("", "é", "m" * 125, "m" * 126, "m" * 300)
        for named in (None, topic_id)
    ]
    keys = [offset_key(group, TopicPartition(topic, 3)) for group in ("", "g", "ключ") for topic in ("orders", "é")]
    quick = 0
    for whole in values:
        for value in [whole, *_mutated(whole, random)]:
            found = offset_records._usual_value(value)
            if found is not None:
                decoded = parse_value(OffsetCommitValue, value)
                assert found == OffsetAndMetadata(
                    offset=decoded.offset,
                    leader_epoch=decoded.leader_epoch,
                    metadata=decoded.metadata,
                    commit_timestamp_ms=decoded.commit_timestamp,
                    topic_id=None if decoded.topic_id == ZERO_UUID else decoded.topic_id,
                )
                quick += 1
            offset = offset_of_topic(value, decode_uuid(topic_id))
            if offset is not None:
                assert parse_offset_value(value).topic_id == topic_id
                assert parse_offset_value(value).offset == offset
    assert quick > 100
    for whole in keys:
        for key in [whole, *_mutated(whole, random)]:
            outcomes = []
            for parse in (parse_offset_key, _parsed_by_codec):
                try:
                    outcomes.append(parse(key))
                except (DiskFormatError, struct.error) as error:
                    outcomes.append(type(error))
            assert outcomes[0] == outcomes[1], key


def _parsed_by_codec(key: bytes) -> TopicPartition | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_records, "_partition_of", _not_usual)
        return parse_offset_key(key)


def _not_usual(_: bytes) -> TopicPartition:
    raise ValueError


def _mutated(whole: bytes, random: Random) -> Iterator[bytes]:
    for at in range(len(whole)):
        yield whole[:at] + bytes([random.randrange(256)]) + whole[at + 1 :]
        yield whole[:at]
    yield whole + b"\0"
