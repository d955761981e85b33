"""Message codec: decodes the records of real brokers as Kafka's dump tool prints them, and encodes equal bytes."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.message_fields import fields_of, kafka_text

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.codec import MessageSchema, json_text
from pyspark_kafkalog.metadata.messages.metadata_records import (
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionStateRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.metadata.messages.schema import SCHEMA_FILES, UNKNOWN_TAGS, load_schema_file
from pyspark_kafkalog.record.reference import Record, decode_batch

METADATA_FILES = (
    "__cluster_metadata-0/00000000000000000000.log",
    "__cluster_metadata-0/00000000000000000240.log",
    "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint",
    "__cluster_metadata-0/00000000000000000194-0000000002.checkpoint",
    "__cluster_metadata-0/00000000000000000286-0000000003.checkpoint",
    "bootstrap.checkpoint",
)
TOPIC_ID = "EGc7GxAfRGaDNJO-5OFO6A"


def data_records(path: Path) -> Iterator[Record]:
    """The records of all batches but control batches."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        batch = decode_batch(data, at, file=str(path), file_position=at)
        if not batch.header.is_control:
            yield from batch.records
        at += batch.header.size_bytes


def printed(root: Path, name: str, pattern: str) -> dict[int, tuple[str, ...]]:
    """What Kafka's dump tool printed by offset, for the lines that match."""
    text = (root / "expected" / "dump" / f"{name}.decoded.txt").read_text("utf-8")
    found = re.findall(rf"^\| offset: (\d+) .*? headerKeys: \[\] {pattern}$", text, re.MULTILINE)
    return {int(offset): tuple(rest) for offset, *rest in found}


@pytest.mark.parametrize("name", METADATA_FILES)
def test_metadata_records_decode_as_kafka_prints_and_encode_to_equal_bytes(kafka_fixtures: Path, name: str) -> None:
    root = kafka_fixtures / "cluster-metadata"
    expected = printed(root, name, r"payload: (.*)")
    seen = 0
    for raw in data_records(root / name):
        assert raw.value is not None
        decoded = decode_record(raw.value)
        version = json.loads(expected[raw.offset][0])["version"]
        assert kafka_text(decoded, version) == expected[raw.offset][0]
        assert encode_record(decoded, version=version) == raw.value
        seen += 1
    assert seen == len(expected)


@pytest.mark.parametrize(
    ("fixture", "name", "schema_file"),
    [
        ("consumer-offsets", "__consumer_offsets-0/00000000000000000000.log", "group_coordinator"),
        ("transaction-state", "__transaction_state-0/00000000000000000000.log", "transaction_coordinator"),
    ],
)
def test_coordinator_records_decode_as_kafka_prints_and_encode_to_equal_bytes(
    kafka_fixtures: Path, fixture: str, name: str, schema_file: str
) -> None:
    root = kafka_fixtures / fixture
    expected = printed(root, name, r"key: (.*) payload: (.*)")
    names = {spec.api_key: spec.name for spec in load_schema_file(schema_file).values() if spec.name.endswith("Key")}
    types = set()
    for raw in data_records(root / name):
        assert raw.key is not None
        record_type = struct.unpack_from(">h", raw.key)[0]
        types.add(record_type)
        key_schema = MessageSchema.load(names[record_type])
        key = key_schema.decode(0, raw.key[2:])
        assert key_schema.encode(0, key) == raw.key[2:]
        key_node = {"type": str(record_type), "data": key_schema.to_json(0, key)}
        assert json_text(key_node) == expected[raw.offset][0]
        if raw.value is None:
            assert expected[raw.offset][1] == "<DELETE>"
            continue
        version = struct.unpack_from(">h", raw.value)[0]
        value_schema = MessageSchema.load(names[record_type].removesuffix("Key") + "Value")
        value = value_schema.decode(version, raw.value[2:])
        assert value_schema.encode(version, value) == raw.value[2:]
        value_node = value_schema.to_json(version, value)
        if value_schema.name == "GroupMetadataValue":
            show_members(value, value_node)
        assert json_text({"version": str(version), "data": value_node}) == expected[raw.offset][1]
    assert len(types) > 1 or schema_file == "transaction_coordinator"


def show_members(value: dict, node: dict) -> None:  # type: ignore[type-arg]
    """Put the consumer protocol's messages in the place of their bytes, as the dump tool does."""
    for member, member_node in zip(value["members"], node["members"], strict=True):
        for field, name in (
            ("subscription", "ConsumerProtocolSubscription"),
            ("assignment", "ConsumerProtocolAssignment"),
        ):
            if len(member[field]) < 2:
                continue
            version = struct.unpack_from(">h", member[field])[0]
            schema = MessageSchema.load(name)
            member_node[field] = schema.to_json(version, schema.decode(version, member[field][2:]))


def test_schema_files_load_with_unique_names_and_api_keys() -> None:
    specs = [spec for file in SCHEMA_FILES for spec in load_schema_file(file).values()]
    assert len({spec.name for spec in specs}) == len(specs)
    metadata = [*load_schema_file("cluster_metadata").values(), *load_schema_file("kafkalog").values()]
    assert len({spec.api_key for spec in metadata}) == len(metadata)


def test_unknown_tagged_fields_are_kept_in_place() -> None:
    schema = MessageSchema.load("PartitionChangeRecord")
    fields = {"partitionId": 3, "topicId": TOPIC_ID, "leader": 7, UNKNOWN_TAGS: ((90, b"later"), (4000, b""))}
    data = schema.encode(0, fields)
    decoded = schema.decode(0, data)
    assert decoded[UNKNOWN_TAGS] == ((90, b"later"), (4000, b""))
    assert schema.encode(0, decoded) == data
    assert UNKNOWN_TAGS not in schema.to_json(0, decoded)


def test_unknown_tagged_fields_of_dataclass_are_kept_in_place() -> None:
    record = PartitionChangeRecord(topic_id=TOPIC_ID, unknown_tags=((90, b"later"), (4000, b"")))
    value = encode_record(record, version=0)
    assert decode_record(value) == record
    assert encode_record(decode_record(value), version=0) == value
    assert fields_of(record)[UNKNOWN_TAGS] == record.unknown_tags


@pytest.mark.parametrize(
    ("record", "match"),
    [
        (TopicRecord(name=None), r"TopicRecord\.name may not be null"),  # type: ignore[arg-type]
        (TopicRecord(topic_id="short"), r"TopicRecord\.topicId must be of type uuid"),
        (PartitionStateRecord(producer={"producerId": 1}), "expected a struct of the class ProducerState"),  # type: ignore[arg-type]
    ],
)
def test_dataclass_with_invalid_value_is_refused_by_field(record: MetadataRecord, match: str) -> None:
    with pytest.raises(InvalidRecordError, match=match):
        encode_record(record)


def test_dataclass_of_older_version_drops_only_ignorable_values() -> None:
    with pytest.raises(InvalidRecordError, match="cannot hold its field directories"):
        encode_record(PartitionRecord(directories=(TOPIC_ID,)), version=0)
    assert encode_record(PartitionRecord(), version=0)


def test_tagged_field_of_later_version_is_refused() -> None:
    schema = MessageSchema.load("PartitionRecord")
    newer = schema.encode(2, {"topicId": TOPIC_ID, "eligibleLeaderReplicas": (1, 2)})
    older = schema.encode(1, {"topicId": TOPIC_ID})
    assert newer.startswith(older[:-1])
    with pytest.raises(CorruptRecordError, match="expected a tag of this version of PartitionRecord, found 1"):
        schema.decode(1, newer)


def test_value_absent_from_version_is_refused_unless_ignorable() -> None:
    with pytest.raises(InvalidRecordError, match="directories"):
        MessageSchema.load("PartitionRecord").encode(0, {"directories": (TOPIC_ID,)})
    assert MessageSchema.load("OffsetCommitValue").encode(0, {"leaderEpoch": 3})


def test_nullable_struct_in_tagged_field_differs_from_null() -> None:
    schema = MessageSchema.load("ConsumerGroupMemberMetadataValue")
    for value in (None, {"sessionTimeoutMs": 0, "supportedProtocols": ()}, {"sessionTimeoutMs": 5}):
        decoded = schema.decode(0, schema.encode(0, {"classicMemberMetadata": value}))
        assert (decoded["classicMemberMetadata"] is None) == (value is None)
    assert "classicMemberMetadata" not in schema.to_json(0, {})
    assert schema.to_json(0, {"classicMemberMetadata": None})["classicMemberMetadata"] is None


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"nme": "x"}, "no field 'nme'"),
        ({"name": None}, "may not be null"),
        ({"name": 3}, "must be a string"),
        ({"name": "x" * 32768}, "at most 32767"),
        ({"topicId": "short"}, "type uuid"),
    ],
)
def test_fields_invalid_for_schema_are_refused_by_name(fields: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidRecordError, match=match):
        MessageSchema.load("TopicRecord").encode(0, fields)


def test_integer_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(InvalidRecordError, match=r"FeatureLevelRecord\.featureLevel must be of type int16"):
        MessageSchema.load("FeatureLevelRecord").encode(0, {"featureLevel": 40_000})


def test_array_count_beyond_remaining_bytes_is_refused() -> None:
    data = MessageSchema.load("RegisterBrokerRecord").encode(0, {})
    lie = data[:28] + b"\xff\xff\xff\xff\x07" + data[29:]
    with pytest.raises(CorruptRecordError, match="endPoints of length 2147483646"):
        MessageSchema.load("RegisterBrokerRecord").decode(0, lie)


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (b"", CorruptRecordError, "frame version"),
        (b"\x00\x02\x00", UnsupportedFormatError, "frame version 0"),
        (b"\x01\x06\x00", UnsupportedFormatError, "type 6"),
        (b"\x01\x02\x05", UnsupportedFormatError, "version 5"),
        (b"\x01\xff\xff\xff\xff\xff\xff", CorruptRecordError, "longer one"),
        (b"\x01\xff\xff\xff\xff\x0f", CorruptRecordError, "at most 2147483647"),
        (encode_record(NoOpRecord()) + b"x", CorruptRecordError, "1 more bytes"),
    ],
)
def test_damaged_frames_are_reported(value: bytes, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        decode_record(value, file="the-file")


@pytest.mark.parametrize(
    ("tags", "match"),
    [
        (b"\x02\x00\x01\x05\x00\x01\x05", "above 0"),
        (b"\x01\x00\x02\x05\x05", "1 more bytes"),
        (b"\x01\x00\x00", "0 bytes left"),
        (b"\x01\x00\x09\x05", "9 bytes"),
    ],
)
def test_tagged_fields_out_of_order_or_of_wrong_size_are_refused(tags: bytes, match: str) -> None:
    schema = MessageSchema.load("BrokerRegistrationChangeRecord")
    with pytest.raises(CorruptRecordError, match=match):
        schema.decode(0, schema.encode(0, {})[:-1] + tags)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (1e7, "1.0E7"),
        (9999999.5, "9999999.5"),
        (0.001, "0.001"),
        (0.00012345, "1.2345E-4"),
        (-123456789.0, "-1.23456789E8"),
        (1e22, "1.0E22"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
    ],
)
def test_doubles_are_printed_as_java_prints_them(value: float, text: str) -> None:
    assert json_text(value) == text


def test_json_text_is_escaped_as_jackson_escapes_it() -> None:
    assert json_text({"a": 'q"\\\b\x01\x1f\x7fé\u2028', "b": [True, None, -1]}) == (
        '{"a":"q\\"\\\\\\b\\u0001\\u001F\x7fé\u2028","b":[true,null,-1]}'
    )
