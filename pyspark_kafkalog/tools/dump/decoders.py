"""The records of Kafka's internal topics as JSON.

Coordinator topics (`__consumer_offsets`, `__transaction_state`, `__share_group_state`): the key begins with an int16
record type, the value with an int16 version; a null value is a tombstone. `__cluster_metadata`: no key, the value is
framed as in metadata/messages/records.py. For a record that cannot be decoded, the dump shows a line that states this,
and continues. The line is Kafka's, except that this package's text replaces that of a Java exception about the bytes.
Source of the rules: kafka.tools.DumpLogSegments, CoordinatorRecordSerde, AbstractApiMessageSerde.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError
from pyspark_kafkalog.metadata.messages.codec import MessageSchema
from pyspark_kafkalog.metadata.messages.records import FRAME_VERSION
from pyspark_kafkalog.metadata.messages.schema import MessageReader, load_schema_file
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC
from pyspark_kafkalog.tools.dump.printers import Contents, RecordDecoder
from pyspark_kafkalog.tools.dump.walk import DumpError, DumpRecord
from pyspark_kafkalog.units import INT16_MAX

TOMBSTONE: Final = "<DELETE>"
_WORD_START: Final = re.compile(r"(?<!^)(?=[A-Z])")
_INT16: Final = struct.Struct(">h")
_GROUP_METADATA: Final = "GroupMetadataValue"
_CONSUMER_PROTOCOL: Final = "consumer"
_MEMBER_FIELDS: Final = {"subscription": "ConsumerProtocolSubscription", "assignment": "ConsumerProtocolAssignment"}
_COORDINATOR_SCHEMAS: Final = {
    "__consumer_offsets": "group_coordinator",
    "__transaction_state": "transaction_coordinator",
    "__share_group_state": "share_coordinator",
}


def internal_topic_decoder(topic: str) -> RecordDecoder:
    """The decoder for one of Kafka's internal topics."""
    return (
        decode_cluster_metadata if topic == CLUSTER_METADATA_TOPIC else CoordinatorDecoder(_COORDINATOR_SCHEMAS[topic])
    )


class UnknownRecordTypeError(KafkalogError):
    """The key is of a type that Kafka 4.1 does not know."""

    def __init__(self, record_type: int) -> None:
        super().__init__(f"Unknown record type {record_type}")
        self.record_type = record_type


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """A record's key and value as JSON trees; `value` is None for a tombstone. `value_fields` are as stored."""

    record_type: int
    key: dict[str, Any]
    version: int = -1
    value: dict[str, Any] | None = None
    value_name: str = ""
    value_fields: Mapping[str, Any] = field(default_factory=dict)


class CoordinatorDecoder:
    """Decodes records of a coordinator's topic; `schema_file` names their schemas (metadata/messages/schema.py)."""

    def __init__(self, schema_file: str) -> None:
        self._schemas: dict[int, tuple[MessageSchema, MessageSchema]] = {}
        names = {name: spec.api_key for name, spec in load_schema_file(schema_file).items()}
        for name, api_key in names.items():
            if api_key is not None and name.endswith("Key"):
                value = MessageSchema.load(name.removesuffix("Key") + "Value")
                self._schemas[api_key] = (MessageSchema.load(name), value)

    def __call__(self, record: DumpRecord) -> Contents:
        if record.key is None:
            raise DumpError(
                f"Failed to decode message at offset {record.offset} using the specified decoder "
                "(message had a missing key)"
            )
        try:
            return self._decode(record.key, record.value, record.offset)
        except KafkalogError as error:
            return f"Error at offset {record.offset}, skipping. {_reason(error)}", None

    def _decode(self, key: bytes, value: bytes | None, offset: int) -> Contents:
        try:
            record = self.decode(key, value)
        except UnknownRecordTypeError as error:
            return f"Unknown record type {error.record_type} at offset {offset}, skipping.", None
        key_tree = {"type": str(record.record_type), "data": record.key}
        if record.value is None:
            return key_tree, TOMBSTONE
        if record.value_name == _GROUP_METADATA:
            _decode_members(record.value_fields, record.value)
        return key_tree, {"version": str(record.version), "data": record.value}

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord:
        """Key and value as JSON trees. Raises UnknownRecordTypeError, and KafkalogError for an unreadable record."""
        record_type = _version(key, "key")
        if record_type not in self._schemas:
            raise UnknownRecordTypeError(record_type)
        key_schema, value_schema = self._schemas[record_type]
        key_tree = key_schema.to_json(0, _message(key_schema, key, 0, record_type, "key"))
        if value is None:
            return CoordinatorRecord(record_type, key_tree)
        version = _version(value, "value")
        if not value_schema.lowest_version <= version <= value_schema.highest_version:
            raise KafkalogError(f"Found an unknown record version {version} for {record_type} type")
        fields = _message(value_schema, value, version, version, "value")
        tree = value_schema.to_json(version, fields)
        return CoordinatorRecord(record_type, key_tree, version, tree, value_schema.name, fields)


def _version(data: bytes, name: str) -> int:
    if len(data) < _INT16.size:
        raise KafkalogError(f"Could not read version from {name}'s buffer.")
    return int(_INT16.unpack_from(data)[0])


def _message(schema: MessageSchema, data: bytes, version: int, shown_version: int, name: str) -> dict[str, Any]:
    try:
        return schema.decode(version, data[_INT16.size :], allow_trailing=True)
    except KafkalogError as error:
        raise KafkalogError(
            f"Could not read record with version {shown_version} from {name}'s buffer due to: {_reason(error)}."
        ) from error


def _reason(error: KafkalogError) -> str:
    if isinstance(error, CorruptRecordError):
        return f"expected {error.expected}, found {error.found}"
    return str(error)


def _decode_members(fields: Mapping[str, Any], data: dict[str, Any]) -> None:
    """Replace the bytes of the consumers' own messages in group metadata by their contents, if these can be read."""
    if fields.get("protocolType") != _CONSUMER_PROTOCOL:
        return
    for member, tree in zip(fields["members"], data["members"], strict=True):
        for name, schema_name in _MEMBER_FIELDS.items():
            blob = member.get(name)
            if name not in tree or blob is None or len(blob) < _INT16.size:
                continue
            schema = MessageSchema.load(schema_name)
            # A later version is read as the newest known one: Kafka adds fields only at the end.
            version = min(int(_INT16.unpack_from(blob)[0]), schema.highest_version)
            try:
                message = schema.decode(version, blob[_INT16.size :], allow_trailing=True)
            except KafkalogError:
                continue  # like Kafka's tool, keep the bytes
            tree[name] = schema.to_json(version, message)


def decode_cluster_metadata(record: DumpRecord) -> Contents:
    """Records of `__cluster_metadata`: Kafka's, and this package's own of the commit log."""
    try:
        return None, _metadata_record(record.value)
    except KafkalogError as error:
        return None, f"Error at {record.offset}, skipping. {error}"


def _metadata_record(value: bytes | None) -> dict[str, Any]:
    """A record as Kafka's tool prints it: the type as in Kafka's MetadataRecordType ("TOPIC_RECORD"), version, data."""
    reader = MessageReader(value or b"", file="")
    frame_version = _frame_number(reader, "frame version")
    if frame_version == 0:
        raise KafkalogError(
            "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview release "
            "of KRaft in 2.8 to newer versions are not supported."
        )
    if frame_version != FRAME_VERSION:
        raise KafkalogError(
            f"Could not deserialize metadata record due to unknown frame version {frame_version}"
            f"(only frame version {FRAME_VERSION} is supported)"
        )
    api_key = _frame_number(reader, "type")
    version = _frame_number(reader, "version")
    schema = _metadata_schemas().get(api_key)
    if schema is None:
        raise KafkalogError(
            f"org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id {api_key}"
        )
    try:
        fields = schema.decode_from(reader, version, allow_trailing=True)
    except KafkalogError as error:
        raise KafkalogError(f"Failed to deserialize record with type {api_key}") from error
    if reader.remaining:
        raise KafkalogError(f"Found {reader.remaining} byte(s) of garbage after {api_key}")
    record_type = _WORD_START.sub("_", schema.name).upper()
    return {"type": record_type, "version": version, "data": schema.to_json(version, fields)}


def _frame_number(reader: MessageReader, entity: str) -> int:
    try:
        number = reader.unsigned_varint(entity)
    except KafkalogError as error:
        raise KafkalogError(f"Error while reading {entity}") from error
    if number > INT16_MAX:
        raise KafkalogError(f"Value for {entity} was too large.")
    return number


@cache
def _metadata_schemas() -> Mapping[int, MessageSchema]:
    specs = [*load_schema_file("cluster_metadata").values(), *load_schema_file("kafkalog").values()]
    return {spec.api_key: MessageSchema.load(spec.name) for spec in specs if spec.api_key is not None}
