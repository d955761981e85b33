"""Formats records as lines of text like kafka-console-consumer's DefaultMessageFormatter, whole batches at a time.

    CreateTime:<ms> Partition:<n> Offset:<n> Delivery:NOT_PRESENT Epoch:NOT_PRESENT name:value,... key value

The line contains the requested parts, separated by key.separator and ended by line.separator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.tools.deserializers import Deserializer, deserializer
from pyspark_kafkalog.tools.properties import is_true

_TIMESTAMP_TYPES: Final = pa.array([b"CreateTime", b"LogAppendTime"], pa.binary())
_US_PER_MS: Final = 1000
#: Values that a console consumer never knows; their columns are printed nevertheless.
_NOT_PRESENT: Final = {"delivery": b"Delivery:NOT_PRESENT", "epoch": b"Epoch:NOT_PRESENT"}
_COLUMNS: Final = {
    "timestamp": ("timestamp", "timestampType"),
    "partition": ("partition",),
    "offset": ("offset",),
    "delivery": (),
    "epoch": (),
    "headers": ("headers",),
    "key": ("key",),
    "value": ("value",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """The parts of a record that are printed, in order."""

    parts: tuple[str, ...]
    key_separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null_literal: bytes
    deserializers: Mapping[str, Deserializer]

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> RecordFormat:
        """The format set by `--property`. Raises UsageError."""
        return cls(
            parts=tuple(name for name in _COLUMNS if is_true(properties, f"print.{name}", default=name == "value")),
            key_separator=properties.get("key.separator", "\t").encode(),
            line_separator=properties.get("line.separator", "\n").encode(),
            headers_separator=properties.get("headers.separator", ",").encode(),
            null_literal=properties.get("null.literal", "null").encode(),
            deserializers={
                name: deserializer(properties[f"{name}.deserializer"])
                for name in ("key", "value", "headers")
                if f"{name}.deserializer" in properties
            },
        )

    def columns(self) -> list[str]:
        """Columns of KAFKA_SCHEMA that `text` needs."""
        return [name for part in self.parts for name in _COLUMNS[part]]

    def text(self, batch: pa.RecordBatch) -> bytes:
        """The lines of all records in `batch`. Raises InvalidRecordError for data that a deserializer rejects."""
        if not self.parts or not len(batch):
            return b""
        parts = [self._part(name, batch) for name in self.parts]
        lines = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, self.key_separator)
        return _joined(lines, self.line_separator) + self.line_separator

    def _part(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name in _NOT_PRESENT:
            return pa.repeat(pa.scalar(_NOT_PRESENT[name], pa.binary()), len(batch))
        if name == "timestamp":
            times_ms = pc.divide(batch.column("timestamp").cast(pa.int64()), _US_PER_MS)
            types = _TIMESTAMP_TYPES.take(batch.column("timestampType"))
            return pc.binary_join_element_wise(types, _number_text(times_ms), b":")
        if name in ("partition", "offset"):
            label = pa.scalar(name.capitalize().encode() + b":", pa.binary())
            return pc.binary_join_element_wise(label, _number_text(batch.column(name)), b"")
        if name == "headers":
            return self._headers(batch.column("headers"))
        return self._deserialized(name, batch.column(name))

    def _deserialized(self, name: str, data: pa.Array) -> pa.Array:
        deserialize = self.deserializers.get(name)
        texts = data if deserialize is None else deserialize(data)
        return pc.fill_null(texts, self.null_literal) if texts.null_count else texts

    def _headers(self, headers: pa.Array) -> pa.Array:
        pairs = headers.flatten()
        keys = pairs.field("key").cast(pa.binary())
        texts = pc.binary_join_element_wise(keys, self._deserialized("headers", pairs.field("value")), b":")
        lengths = pc.fill_null(pc.list_value_length(headers), 0)
        offsets = pc.cumulative_sum(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), offsets.cast(pa.int32())])
        lines = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), self.headers_separator)
        return pc.if_else(pc.equal(lengths, 0), pa.scalar(b"NO_HEADERS", pa.binary()), lines)


def _number_text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _joined(lines: pa.Array, separator: bytes) -> bytes:
    offsets = pa.array([0, len(lines)], pa.int32())
    joined: bytes = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), separator)[0].as_py()
    return joined
