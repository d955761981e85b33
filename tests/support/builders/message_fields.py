"""Instances of messages' classes as dicts by the names of the schema, and as Kafka's dump tool prints them."""

from __future__ import annotations

import re
from typing import Any

from pyspark_kafkalog.metadata.messages.codec import Message, json_text
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.messages.schema import UNKNOWN_TAGS, FieldSpec


def fields_of(message: Message) -> dict[str, Any]:
    """The message as `MessageSchema` decodes it: a dict by the names of the schema."""
    return _fields(message, message.schema().spec.fields)


def _fields(message: Message, specs: tuple[FieldSpec, ...]) -> dict[str, Any]:
    found = {spec.name: _value(getattr(message, spec.attribute), spec) for spec in specs}
    if message.unknown_tags:
        found[UNKNOWN_TAGS] = message.unknown_tags
    return found


def _value(value: Any, spec: FieldSpec) -> Any:
    if spec.struct is None or value is None:
        return value
    return tuple(_fields(each, spec.struct) for each in value) if spec.is_array else _fields(value, spec.struct)


def kafka_text(record: MetadataRecord, version: int | None = None) -> str:
    """What Kafka's dump tool prints for a record of the metadata log, by default in the version that is written."""
    schema = record.schema()
    version = schema.written_version if version is None else version
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", schema.name).upper()
    return json_text({"type": name, "version": version, "data": schema.to_json(version, fields_of(record))})
