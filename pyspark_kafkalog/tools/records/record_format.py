"""Text forms of records: lines of text to Arrow columns, and Arrow batches to text, many records at a time.

Records are formatted as by kafka-console-consumer. `RecordFormat` is Kafka's DefaultMessageFormatter. A line contains
the requested parts, separated by key.separator and ended by line.separator:

    CreateTime:<ms> Partition:<n> Offset:<n> Delivery:NOT_PRESENT Epoch:NOT_PRESENT name:value,... key value

Keys, values and headers are converted by the class names of Kafka's deserializers. The text is that of Java's toString
of the object, except for ByteArrayDeserializer: Java prints only an address, this module the bytes.

`FormatString` is the option -f of kcat, `JsonFormat` one JSON object a record. `CoordinatorFormat` prints the records
of Kafka's internal topics as JSON, one object per line, where Kafka puts nothing between them. Records of other types
are skipped, as are keys of unknown types:

    {"key":{"type":1,"data":{"group":"g","topic":"t","partition":0}},"value":{"version":4,"data":{"offset":7,...}}}

Source of the rules: org.apache.kafka.common.serialization, org.apache.kafka.tools.consumer.DefaultMessageFormatter and
CoordinatorRecordMessageFormatter.

Lines are parsed as by kafka-console-producer:

    value
    key<key.separator>value                                         parse.key=true
    name:value,name:value<headers.delimiter>key<key.separator>value parse.headers=true as well

Source of the rules: org.apache.kafka.tools.LineMessageReader. A line's bytes are kept unchanged, where Kafka replaces
invalid UTF-8 by U+FFFD.
"""

from __future__ import annotations

import base64
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.metadata.messages.codec import json_text
from pyspark_kafkalog.record.arrow import RECORD_SCHEMA
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.dump.decoders import CoordinatorDecoder, UnknownRecordTypeError
from pyspark_kafkalog.tools.dump.java_text import decode_utf8
from pyspark_kafkalog.tools.running import is_true
from pyspark_kafkalog.units import json_line

if TYPE_CHECKING:
    import pyarrow as pa


#: Separators of headers that, as regular expressions, match only themselves.
_PLAIN_SEPARATORS: Final = frozenset(",;:#&/ \t")
_HEADERS_TYPE: Final = RECORD_SCHEMA.field("headers").type


class LineError(KafkalogError):
    """A line lacks a required part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """The format of a line; names and defaults are those of Kafka's properties (key.separator, ...)."""

    parse_key: bool = False
    key_separator: str = "\t"
    parse_headers: bool = False
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    headers_key_separator: str = ":"
    ignore_error: bool = False
    null_marker: str | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineFormat:
        """The format set by `--property`. Raises UsageError for separators that are empty or not distinguishable."""
        given = {
            name: properties[name.replace("_", ".")]
            for name in (
                "key_separator",
                "headers_delimiter",
                "headers_separator",
                "headers_key_separator",
                "null_marker",
            )
            if name.replace("_", ".") in properties
        }
        line_format = cls(
            parse_key=is_true(properties, "parse.key"),
            parse_headers=is_true(properties, "parse.headers"),
            ignore_error=is_true(properties, "ignore.error"),
            **given,
        )
        line_format._check()
        return line_format

    def _check(self) -> None:
        separators = {
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.headers_separator,
            "headers.key.separator": self.headers_key_separator,
        }
        pairs = [*combinations(separators.items(), 2)]
        if self.null_marker is not None:
            marker = ("null.marker", self.null_marker)
            pairs += [(marker, each) for each in (("key.separator", self.key_separator), *separators.items())]
        for (name, text), (other, other_text) in pairs:
            if text == other_text:
                raise UsageError(f"{name} and {other} may not be equal")
        for name, text in {"key.separator": self.key_separator, **separators}.items():
            if not text:
                raise UsageError(f"{name} may not be empty")
        try:
            separator = re.compile(self.headers_separator)
            pc.match_substring_regex(pa.array([""]), pattern=self.headers_separator)  # Arrow supports less than Python
        except (re.error, pa.ArrowInvalid) as error:
            raise UsageError(f"headers.separator is an invalid regex: {error}") from error
        if separator.search("") or not all(match[0] for match in separator.finditer("a,")):
            raise UsageError(
                f"headers.separator is a regex, and {self.headers_separator} matches the empty text: put \\ "
                "before a special character that stands for itself"
            )

    def parse(self, lines: pa.Array, line_number: int) -> tuple[pa.RecordBatch, LineError | None]:
        """The records of `lines` (binary), the first of which is number `line_number`: key, value and headers.

        If a line cannot be parsed, returns the records before it and the error.
        """
        error: LineError | None = None
        columns: dict[str, pa.Array] = {}
        rest = lines
        if self.parse_headers:
            texts, rest, error = self._cut(rest, self.headers_delimiter, "headers delimiter", lines, line_number)
            columns["headers"], headers_error = self._headers(texts, line_number)
            error = headers_error or error
        if self.parse_key:
            rest = rest[: len(columns["headers"])] if self.parse_headers else rest
            keys, rest, key_error = self._cut(rest, self.key_separator, "key separator", lines, line_number)
            columns["key"] = self._nulled(keys)
            error = key_error or error
        columns["value"] = self._nulled(rest)
        count = min(map(len, columns.values()))
        batch = pa.RecordBatch.from_pydict({name: column[:count] for name, column in columns.items()})
        return batch, error

    def _cut(
        self, texts: pa.Array, separator: str, name: str, lines: pa.Array, line_number: int
    ) -> tuple[pa.Array, pa.Array, LineError | None]:
        """The text before the first `separator` and the text after it; without one, null and all, or the error."""
        parts = pc.split_pattern(texts, pattern=separator, max_splits=1)
        has_both = pc.list_value_length(parts).to_numpy(zero_copy_only=False) == 2
        error = None
        if not self.ignore_error and not has_both.all():
            bad = int(np.argmin(has_both))
            line = lines[bad].as_py().decode("utf-8", "replace")
            error = LineError(f"No {name} found on line number {line_number + bad}: '{line}'")
            parts, has_both = parts[:bad], has_both[:bad]
        values, first = parts.values, parts.offsets.to_numpy()[:-1]
        before = values.take(pa.array(first, mask=~has_both))
        return before, values.take(pa.array(first + has_both)), error

    def _nulled(self, texts: pa.Array) -> pa.Array:
        """`texts` with null in place of the null marker."""
        if self.null_marker is None:
            return texts
        is_null = pc.equal(texts, pa.scalar(self.null_marker.encode(), pa.binary()))
        return pc.if_else(is_null, pa.scalar(None, pa.binary()), texts)

    def _headers(self, texts: pa.Array, line_number: int) -> tuple[pa.Array, LineError | None]:
        """The headers that each text lists; none for null."""
        texts = self._nulled(texts)
        try:
            pairs = self._pairs(texts)
            keys, values, has_both = self._split_pairs(pairs.values)
            if not has_both.all() and not self.ignore_error:
                bad = int(np.argmin(has_both))
                raise LineError(f"No header key separator found in pair '{_text(pairs.values[bad])}'")
            if self.null_marker is not None:
                is_marker = pc.equal(keys, self.null_marker)
                if pc.any(is_marker).as_py():
                    raise LineError(f"Header keys should not be equal to the null marker '{self.null_marker}'")
        except LineError as error:
            if len(texts) == 1:
                return _no_headers(0), LineError(f"{error} on line number {line_number}")
            return self._headers_until_error(texts, line_number)
        headers = pa.StructArray.from_arrays([keys, self._nulled(values)], fields=list(_HEADERS_TYPE.value_type))
        return pa.ListArray.from_arrays(pairs.offsets, headers, type=_HEADERS_TYPE), None

    def _headers_until_error(self, texts: pa.Array, line_number: int) -> tuple[pa.Array, LineError | None]:
        """Parse by bisection until the text with the error is found."""
        middle = len(texts) // 2
        first, error = self._headers(texts[:middle], line_number)
        if error is not None:
            return first, error
        second, error = self._headers(texts[middle:], line_number + middle)
        return pa.concat_arrays([first, second]), error

    def _pairs(self, texts: pa.Array) -> pa.ListArray:
        """The parts between the separators; empty parts at the end are dropped, as by Java's split."""
        if self.headers_separator in _PLAIN_SEPARATORS:
            lists = pc.split_pattern(texts, pattern=self.headers_separator)
        else:
            lists = pc.split_pattern_regex(texts, pattern=self.headers_separator)
        if not pc.any(pc.equal(pc.binary_length(lists.values), 0)).as_py():
            return pa.ListArray.from_arrays(_dense_offsets(lists), lists.flatten())
        kept = [None if each is None else _without_empty_end(each) for each in lists.to_pylist()]
        lists = pa.array(kept, pa.list_(pa.binary()))
        return pa.ListArray.from_arrays(_dense_offsets(lists), lists.flatten())

    def _split_pairs(self, pairs: pa.Array) -> tuple[pa.Array, pa.Array, Any]:
        """Header keys (text), values (null without a separator), and whether there is a separator."""
        parts = pc.split_pattern(pairs, pattern=self.headers_key_separator, max_splits=1)
        has_both = pc.list_value_length(parts).to_numpy(zero_copy_only=False) == 2
        first = parts.offsets.to_numpy()[:-1]
        values = parts.values.take(pa.array(first + 1, mask=~has_both))
        return _as_text(parts.values.take(pa.array(first))), values, has_both


def _dense_offsets(lists: pa.ListArray) -> pa.Array:
    """Offsets of the lists in `lists.flatten()`, which omits null lists."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _without_empty_end(pairs: list[bytes]) -> list[bytes]:
    if len(pairs) == 1:
        return pairs
    while pairs and not pairs[-1]:
        pairs.pop()
    return pairs


def _as_text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("utf-8", "replace") for each in keys.to_pylist()], pa.string())


def _text(value: pa.Scalar) -> str:
    return str(value.as_py().decode("utf-8", "replace"))


def _no_headers(count: int) -> pa.Array:
    return pa.array([None] * count, _HEADERS_TYPE)


#: Converts binary data to UTF-8 text, as binary; null stays null. Raises InvalidRecordError.
Deserializer = Callable[[pa.Array], pa.Array]

_PACKAGE: Final = "org.apache.kafka.common.serialization."


def deserializer(name: str) -> Deserializer:
    """The deserializer for a class name, with or without its package. Raises UsageError."""
    found = _DESERIALIZERS.get(name.removeprefix(_PACKAGE))
    if found is None:
        raise UsageError(f"deserializer {name} is not known; known are {', '.join(_DESERIALIZERS)} of {_PACKAGE[:-1]}")
    return found


def _as_it_is(data: pa.Array) -> pa.Array:
    return data


def _string(data: pa.Array) -> pa.Array:
    """UTF-8 with U+FFFD for invalid bytes, as Java decodes it."""
    try:
        data.cast(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return _each(lambda value: decode_utf8(value), data)
    return data


def _integer(name: str, dtype: np.dtype, data: pa.Array) -> pa.Array:
    _check_sizes(name, dtype.itemsize, data)
    filled = pc.fill_null(data, bytes(dtype.itemsize))
    numbers = np.frombuffer(b"".join(filled.to_pylist()), dtype).astype(np.int64)
    texts = pa.array(numbers).cast(pa.string()).cast(pa.binary())
    return pc.if_else(pc.is_null(data), pa.scalar(None, pa.binary()), texts)


def _real(name: str, layout: struct.Struct, data: pa.Array) -> pa.Array:
    _check_sizes(name, layout.size, data)
    return _each(lambda value: _java_real(float(layout.unpack(value)[0]), layout.size), data)


def _java_real(value: float, size_bytes: int) -> str:
    """Java's Float.toString or Double.toString: the fewest digits that distinguish the number from its neighbours."""
    shortest = float(str(np.float32(value))) if size_bytes == 4 and np.isfinite(value) else value
    return json_text(shortest).strip('"')


def _boolean(data: pa.Array) -> pa.Array:
    _check_sizes("BooleanDeserializer", 1, data)

    def text(value: bytes) -> str:
        if value not in (b"\x00", b"\x01"):
            raise InvalidRecordError(f"Unexpected byte received by BooleanDeserializer: {value[0]}")
        return "true" if value == b"\x01" else "false"

    return _each(text, data)


def _uuid(data: pa.Array) -> pa.Array:
    def text(value: bytes) -> str:
        try:
            return str(uuid.UUID(value.decode("ascii")))
        except ValueError as error:
            raise InvalidRecordError(f"Error parsing data into UUID: {decode_utf8(value)}") from error

    return _each(text, data)


def _bytes(data: pa.Array) -> pa.Array:
    """Printable ASCII unchanged, other bytes as \\xHH, like toString of org.apache.kafka.common.utils.Bytes."""
    return _each(lambda value: "".join(chr(b) if 0x20 <= b < 0x7F else f"\\x{b:02X}" for b in value), data)


def _byte_buffer(data: pa.Array) -> pa.Array:
    return _each(lambda value: f"java.nio.HeapByteBuffer[pos=0 lim={len(value)} cap={len(value)}]", data)


def _check_sizes(name: str, size_bytes: int, data: pa.Array) -> None:
    if pc.any(pc.not_equal(pc.binary_length(data), size_bytes)).as_py():
        raise InvalidRecordError(f"Size of data received by {name} is not {size_bytes}")


def _each(text: Callable[[bytes], str], data: pa.Array) -> pa.Array:
    texts = [None if value is None else text(value).encode("utf-8", "replace") for value in data.to_pylist()]
    return pa.array(texts, pa.binary())


_DESERIALIZERS: Final[Mapping[str, Deserializer]] = {
    "StringDeserializer": _string,
    "ByteArrayDeserializer": _as_it_is,
    "BytesDeserializer": _bytes,
    "ByteBufferDeserializer": _byte_buffer,
    "ShortDeserializer": partial(_integer, "ShortDeserializer", np.dtype(">i2")),
    "IntegerDeserializer": partial(_integer, "IntegerDeserializer", np.dtype(">i4")),
    "LongDeserializer": partial(_integer, "LongDeserializer", np.dtype(">i8")),
    "FloatDeserializer": partial(_real, "FloatDeserializer", struct.Struct(">f")),
    "DoubleDeserializer": partial(_real, "DoubleDeserializer", struct.Struct(">d")),
    "BooleanDeserializer": _boolean,
    "UUIDDeserializer": _uuid,
}


_OFFSET_COMMITS: Final = frozenset({0, 1})
_GROUP_METADATA: Final = frozenset({2})

#: By class name: the schemas, and the record types that are printed (None: all).
FORMATTERS: Final[Mapping[str, tuple[str, frozenset[int] | None]]] = {
    "OffsetsMessageFormatter": ("group_coordinator", _OFFSET_COMMITS),
    "GroupMetadataMessageFormatter": ("group_coordinator", _GROUP_METADATA),
    "TransactionLogMessageFormatter": ("transaction_coordinator", None),
}


class CoordinatorFormat:
    """Prints the records of one of the internal topics; `name` is one of FORMATTERS."""

    def __init__(self, name: str) -> None:
        schema_file, self._types = FORMATTERS[name]
        self._decoder = CoordinatorDecoder(schema_file)

    def columns(self) -> list[str]:
        """Columns of RECORD_SCHEMA that `text` needs."""
        return ["key", "value", "offset"]

    def text(self, batch: pa.RecordBatch) -> bytes:
        """The JSON of the records in `batch`, one object per line. Raises InvalidRecordError."""
        keys, values, offsets = (batch.column(name).to_pylist() for name in self.columns())
        lines = (self._line(*record) for record in zip(keys, values, offsets, strict=True))
        return "".join(lines).encode("utf-8", "replace")

    def _line(self, key: bytes | None, value: bytes | None, offset: int) -> str:
        if key is None:
            return ""
        try:
            record = self._decoder.decode(key, value)
        except UnknownRecordTypeError:
            return ""
        except KafkalogError as error:
            raise InvalidRecordError(f"Could not read record at offset {offset} due to: {error}") from error
        if self._types is not None and record.record_type not in self._types:
            return ""
        tree = {"key": {"type": record.record_type, "data": record.key}, "value": None}
        if record.value is not None:
            tree["value"] = {"version": record.version, "data": record.value}
        return json_text(tree) + "\n"


_TIMESTAMP_TYPES: Final = pa.array([b"NoTimestampType", b"CreateTime", b"LogAppendTime"], pa.binary())  # from -1 on
_NO_TIMESTAMP: Final = b"NO_TIMESTAMP"

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
            deserializers=deserializers_of(properties),
        )

    def columns(self) -> list[str]:
        """Columns of RECORD_SCHEMA that `text` needs."""
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
            times_ms = batch.column("timestamp").cast(pa.int64())
            types = batch.column("timestampType")
            texts = pc.binary_join_element_wise(_type_names(types), _number_text(times_ms), b":")
            return pc.if_else(pc.less(types, 0), pa.scalar(_NO_TIMESTAMP, pa.binary()), texts)
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
        lines = pc.binary_join(pa.ListArray.from_arrays(_list_offsets(headers), texts), self.headers_separator)
        return pc.if_else(pc.equal(lengths, 0), pa.scalar(b"NO_HEADERS", pa.binary()), lines)


def _number_text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _joined(lines: pa.Array, separator: bytes) -> bytes:
    offsets = pa.array([0, len(lines)], pa.int32())
    joined: bytes = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), separator)[0].as_py()
    return joined


class FormatString:
    """The format of kcat's option -f: text with escapes (\\n, \\t, \\r, \\xHH) and the tokens of `TOKENS`.

    As in kcat, nothing is printed between records that the format does not contain, a null key or value is an empty
    text (or `null_literal`), its length -1, and headers are `name=value,name=value` with NULL for a null value.
    """

    def __init__(self, text: str, deserializers: Mapping[str, Deserializer], null_literal: bytes = b"") -> None:
        self._pieces = list(_format_pieces(text))
        self._deserializers = deserializers
        self._null_literal = null_literal

    def columns(self) -> list[str]:
        """Columns of RECORD_SCHEMA that `text` needs."""
        return [TOKENS[each] for each in self._pieces if isinstance(each, str)]

    def text(self, batch: pa.RecordBatch) -> bytes:
        """The text of all records in `batch`. Raises InvalidRecordError for data that a deserializer rejects."""
        if not len(batch):
            return b""
        if not self.columns():
            return b"".join(each for each in self._pieces if isinstance(each, bytes)) * len(batch)
        parts = [
            pa.scalar(each, pa.binary()) if isinstance(each, bytes) else self._token(each, batch)
            for each in self._pieces
        ]
        return _joined(pc.binary_join_element_wise(*parts, b""), b"")

    def _token(self, token: str, batch: pa.RecordBatch) -> pa.Array:
        data = batch.column(TOKENS[token])
        if token in "ks":
            deserialize = self._deserializers.get(TOKENS[token])
            return pc.fill_null(data if deserialize is None else deserialize(data), self._null_literal)
        if token in "KSR":
            lengths = pc.fill_null(pc.binary_length(data), -1)
            return _big_endian(lengths) if token == "R" else _number_text(lengths)
        if token == "T":
            return _number_text(data.cast(pa.int64()))
        if token == "h":
            return _headers_text(data)
        return data.cast(pa.binary()) if token == "t" else _number_text(data)


#: The tokens of a format string, %t and so on, each with the column that it needs.
TOKENS: Final = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "k": "key",
    "s": "value",
    "K": "key",
    "S": "value",
    "R": "value",
    "T": "timestamp",
    "h": "headers",
}
_ESCAPE: Final = re.compile(rb"\\(x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def _format_pieces(text: str) -> Iterator[bytes | str]:
    """Literal bytes, and the letters of tokens. Raises UsageError for a % that begins no token."""
    literal, *rest = re.split(r"%(.|\Z)", text, flags=re.DOTALL)
    pieces: list[bytes | str] = [_unescaped(literal)]
    for token, literal in zip(rest[::2], rest[1::2], strict=True):
        if token != "%" and token not in TOKENS:
            known = " ".join(f"%{each}" for each in TOKENS)
            raise UsageError(f"--format has the unknown token %{token}; known are {known} and %%")
        pieces += [b"%" if token == "%" else token, _unescaped(literal)]
    return (each for each in pieces if each)


def _unescaped(text: str) -> bytes:
    def character(match: re.Match[bytes]) -> bytes:
        name = match[1]
        return bytes([int(name[1:], 16)]) if len(name) > 1 else _ESCAPES.get(name, name)

    return _ESCAPE.sub(character, text.encode("utf-8", "surrogateescape"))


def _big_endian(numbers: pa.Array) -> pa.Array:
    """Each number as four bytes, the highest first."""
    data = numbers.to_numpy(zero_copy_only=False).astype(">i4").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(numbers), [None, pa.py_buffer(data)]).cast(
        pa.binary()
    )


def _headers_text(headers: pa.Array) -> pa.Array:
    pairs = headers.flatten()
    values = pc.fill_null(pairs.field("value"), b"NULL")
    texts = pc.binary_join_element_wise(pairs.field("key").cast(pa.binary()), values, b"=")
    return pc.binary_join(pa.ListArray.from_arrays(_list_offsets(headers), texts), b",")


def _list_offsets(lists: pa.ListArray) -> pa.Array:
    """Offsets of the lists in `lists.flatten()`, which omits null lists."""
    offsets = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    return pa.concat_arrays([pa.array([0], pa.int32()), offsets.cast(pa.int32())])


class JsonFormat:
    """One JSON object a record. Null keys and values are null; bytes that are not UTF-8 are {"base64": "..."}."""

    def __init__(self, deserializers: Mapping[str, Deserializer]) -> None:
        self._deserializers = deserializers

    def columns(self) -> list[str]:
        """Columns of RECORD_SCHEMA that `text` needs: all."""
        return list(RECORD_SCHEMA.names)

    def text(self, batch: pa.RecordBatch) -> bytes:
        """The lines of all records in `batch`. Raises InvalidRecordError for data that a deserializer rejects."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
        columns["timestampType"] = _type_names(columns["timestampType"]).cast(pa.string())
        for name in ("key", "value"):
            if name in self._deserializers:
                columns[name] = self._deserializers[name](columns[name])
        records = pa.RecordBatch.from_pydict(columns).to_pylist()
        return "".join(json_line(_record_tree(each)) for each in records).encode()


def _type_names(types: pa.Array) -> pa.Array:
    return _TIMESTAMP_TYPES.take(pc.add(types, 1))


def _record_tree(record: Mapping[str, Any]) -> dict[str, Any]:
    tree = {name: record[name] for name in ("topic", "partition", "offset", "timestamp", "timestampType")}
    headers = [{"key": each["key"], "value": _text_or_base64(each["value"])} for each in record["headers"] or ()]
    tree |= {"key": _text_or_base64(record["key"]), "value": _text_or_base64(record["value"])}
    return {**tree, "headers": headers} if headers else tree


def _text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def deserializers_of(properties: Mapping[str, str]) -> dict[str, Deserializer]:
    """The deserializers that key.deserializer and so on name, by `key`, `value` and `headers`. Raises UsageError."""
    return {
        name: deserializer(properties[f"{name}.deserializer"])
        for name in ("key", "value", "headers")
        if f"{name}.deserializer" in properties
    }


#: How deserializers of numbers store a number.
_NUMBERS: Final = {
    "ShortDeserializer": struct.Struct(">h"),
    "IntegerDeserializer": struct.Struct(">i"),
    "LongDeserializer": struct.Struct(">q"),
}
_TEXTS: Final = ("StringDeserializer", "ByteArrayDeserializer", "UUIDDeserializer")


def key_bytes(text: str, deserializer_name: str) -> bytes:
    """The stored form of a key: UTF-8, or that of a number. Raises UsageError."""
    name = deserializer_name.removeprefix(_PACKAGE)
    if name in _NUMBERS:
        try:
            return _NUMBERS[name].pack(int(text))
        except (ValueError, struct.error):
            raise UsageError(f"--key {text}: expected a number, as stored for {name}") from None
    if name not in _TEXTS:
        raise UsageError(f"--key searches keys of {', '.join((*_TEXTS, *_NUMBERS))}, not of {name}")
    return text.encode("utf-8", "surrogateescape")
