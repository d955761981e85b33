"""Random requests and responses of any schema."""

from __future__ import annotations

import random
from typing import Any, Final

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import INTEGER_FORMATS, FieldSpec
from pyspark_kafkalog.storage.names import encode_uuid

_INTEGER_BITS: Final = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_TEXTS: Final = ("", "a", "orders", "größe", "日本", "🦜", "x" * 127, "y" * 300, "\0", 'q"\\')
_SIZES: Final = (0, 1, 1, 2, 3)
#: How often a field keeps its default, for tagged fields and versions that lack it.
_DEFAULT_SHARE: Final = 0.2


class RandomMessages:
    """Draws messages that `version` can hold; `source` decides."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def draw(self, cls: type[Message], version: int) -> Message:
        spec = cls.schema().spec
        return self._struct(cls, spec.fields, version, version in spec.flexible)

    def _struct(self, cls: type[Message], fields: tuple[FieldSpec, ...], version: int, flexible: bool) -> Message:
        values = {}
        for field in fields:
            if version in field.versions and self._source.random() >= _DEFAULT_SHARE:
                values[field.attribute] = self._value(cls, field, version, flexible)
        defaulted = cls(**values)
        for field in fields:  # a default may be null where this version does not allow it
            is_null = getattr(defaulted, field.attribute) is None and version not in field.nullable
            if is_null and version in field.versions:
                values[field.attribute] = self._value(cls, field, version, flexible)
        if flexible and self._source.random() < 0.1:
            values["unknown_tags"] = ((100, b""), (20_000, self._source.randbytes(5)))
        return cls(**values)

    def _value(self, cls: type[Message], field: FieldSpec, version: int, flexible: bool) -> Any:
        if version in field.nullable and self._source.random() < 0.2:
            return None
        if field.is_array:
            size = self._source.choice(_SIZES)
            if field.element in _INTEGER_BITS and self._source.random() < 0.05:
                size = 150  # a length of two bytes as a varint
            return tuple(self._element(cls, field, version, flexible) for _ in range(size))
        return self._element(cls, field, version, flexible)

    def _element(self, cls: type[Message], field: FieldSpec, version: int, flexible: bool) -> Any:
        source = self._source
        if field.struct is not None:
            return self._struct(cls.structs()[field.attribute], field.struct, version, flexible)
        if field.element in INTEGER_FORMATS:
            bits = _INTEGER_BITS[field.element]
            signed = 0 if field.element.startswith("u") else 1 << (bits - 1)
            low, high = -signed, (1 << bits) - 1 - signed
            return source.choice((low, high, 0, min(1, high), max(-1, low), source.randint(low, high)))
        if field.element == "bool":
            return source.random() < 0.5
        if field.element == "float64":
            return source.choice((0.0, -0.0, 1.5, -1e300, 1e-9, source.random(), float("inf")))
        if field.element == "uuid":
            return encode_uuid(source.randbytes(16))
        if field.element == "string":
            return source.choice(_TEXTS)
        return source.randbytes(source.choice((0, 1, 5, 200)))
