"""Every message schema in every version: encoded fields decode to themselves, and hostile bytes raise errors only."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from builders.message_fields import fields_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.delta import _HANDLERS
from pyspark_kafkalog.metadata.messages.codec import Message, MessageSchema, json_text
from pyspark_kafkalog.metadata.messages.internal_records import COORDINATOR_MESSAGES
from pyspark_kafkalog.metadata.messages.metadata_records import METADATA_RECORDS
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.metadata.messages.schema import (
    SCHEMA_FILES,
    UNKNOWN_TAGS,
    FieldSpec,
    MessageSpec,
    load_schema_file,
)
from pyspark_kafkalog.storage.names import encode_uuid

SPECS = [spec for file in SCHEMA_FILES for spec in load_schema_file(file).values()]
METADATA_SPECS = [spec for file in ("cluster_metadata", "kafkalog") for spec in load_schema_file(file).values()]
RECORD_TYPES = {each.__name__: each for each in METADATA_RECORDS}
TYPES: dict[str, type[Message]] = {**RECORD_TYPES, **{each.__name__: each for each in COORDINATOR_MESSAGES}}
TYPED_SPECS = [spec for spec in SPECS if spec.name in TYPES]
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED = {"uint16": 16, "uint32": 32}


def primitives(element: str) -> st.SearchStrategy[Any]:
    if element in _INTEGERS:
        half = 1 << (_INTEGERS[element] - 1)
        return st.integers(-half, half - 1)
    if element in _UNSIGNED:
        return st.integers(0, (1 << _UNSIGNED[element]) - 1)
    return {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.binary(min_size=16, max_size=16).map(encode_uuid),
        "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        "bytes": st.binary(max_size=12),
        "records": st.binary(max_size=12),
    }[element]


def values(field: FieldSpec, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    if version not in field.versions:
        return st.just(field.default)
    value = primitives(field.element) if field.struct is None else structs(field.struct, version, flexible)
    if field.is_array:
        value = st.lists(value, max_size=3).map(tuple)
    return st.none() | value if version in field.nullable else value


@st.composite
def structs(draw: st.DrawFn, fields: tuple[FieldSpec, ...], version: int, flexible: bool) -> dict[str, Any]:
    drawn = {field.name: draw(values(field, version, flexible)) for field in fields}
    if flexible and draw(st.integers(0, 4)) == 0:
        tags = draw(st.lists(st.integers(100, 2**31 - 1), unique=True, min_size=1, max_size=3))
        drawn[UNKNOWN_TAGS] = tuple((tag, draw(st.binary(max_size=5))) for tag in sorted(tags))
    return drawn


@st.composite
def messages(draw: st.DrawFn, specs: list[MessageSpec]) -> tuple[MessageSpec, int, dict[str, Any]]:
    spec = draw(st.sampled_from(specs))
    version = draw(st.sampled_from(spec.versions))
    return spec, version, draw(structs(spec.fields, version, version in spec.flexible))


@settings(RELAXED, max_examples=examples(600))
@given(messages(SPECS))
def test_encoded_message_decodes_to_same_fields(message: tuple[MessageSpec, int, dict[str, Any]]) -> None:
    spec, version, fields = message
    schema = MessageSchema.load(spec.name)
    data = schema.encode(version, fields)
    decoded = schema.decode(version, data)
    assert decoded == fields
    assert schema.encode(version, decoded) == data
    json_text(schema.to_json(version, decoded))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@settings(RELAXED, max_examples=examples(8))
@given(data=st.data())
def test_every_version_of_every_message_round_trips(spec: MessageSpec, data: st.DataObject) -> None:
    schema = MessageSchema.load(spec.name)
    for version in spec.versions:
        fields = data.draw(structs(spec.fields, version, version in spec.flexible))
        assert schema.decode(version, schema.encode(version, fields)) == fields


@settings(RELAXED, max_examples=examples(300))
@given(messages(SPECS), st.data())
def test_mutated_or_truncated_message_raises_errors_only(
    message: tuple[MessageSpec, int, dict[str, Any]], data: st.DataObject
) -> None:
    spec, version, fields = message
    schema = MessageSchema.load(spec.name)
    good = schema.encode(version, fields)
    for length in range(len(good)):
        with pytest.raises(DiskFormatError, match="the-file at byte"):
            schema.decode(version, good[:length], file="the-file")
    bad = bytearray(good)
    for _ in range(10):
        if not bad:
            return
        at = data.draw(st.integers(0, len(bad) - 1))
        bad[at] = data.draw(st.integers(0, 255))
        try:
            decoded = schema.decode(version, bad, file="the-file")
        except DiskFormatError:
            continue
        schema.encode(version, decoded)
        json_text(schema.to_json(version, decoded))


@settings(RELAXED, max_examples=examples(300))
@given(messages(METADATA_SPECS))
def test_framed_metadata_record_decodes_to_itself(message: tuple[MessageSpec, int, dict[str, Any]]) -> None:
    spec, version, fields = message
    data = MessageSchema.load(spec.name).encode(version, fields)
    record = RECORD_TYPES[spec.name].decode(version, data)
    assert decode_record(encode_record(record, version=version)) == record


@settings(RELAXED, max_examples=examples(300))
@given(messages(TYPED_SPECS))
def test_instance_holds_same_values_as_dict(message: tuple[MessageSpec, int, dict[str, Any]]) -> None:
    spec, version, fields = message
    data = MessageSchema.load(spec.name).encode(version, fields)
    decoded = TYPES[spec.name].decode(version, data)
    assert type(decoded) is TYPES[spec.name]
    assert fields_of(decoded) == fields
    assert decoded.encode(version) == data


@settings(RELAXED, max_examples=examples(500))
@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_or_raise_error(data: bytes) -> None:
    for value in (data, b"\x01" + data):
        with contextlib.suppress(DiskFormatError):
            decode_record(value)


def test_every_metadata_record_type_has_rule_in_image() -> None:
    assert {spec.name for spec in METADATA_SPECS} == {each.__name__ for each in _HANDLERS}
