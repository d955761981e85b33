"""Encode, decode and print Kafka's messages from their schemas (schema.py), as Kafka's generated classes do.

A message is a dict of field name to value: int, float, bool, str, bytes, a Uuid as Kafka's 22 character text, None
for null, a tuple for an array, a dict for a struct. Decoding fills in defaults for fields the version lacks, so the
dict is whole; encoding takes defaults for names left out. Tagged fields of tags that the schema lacks are kept under
`UNKNOWN_TAGS`, a tuple of (tag, bytes), and written back in their place. Hostile bytes raise CorruptRecordError,
whatever they are.

Source of the rules: org.apache.kafka.message.MessageDataGenerator and the classes that it generated for Kafka 4.1.

Readers and writers of one struct in one version, made once from its fields.

Runs of fixed-width fields are unpacked together: replaying a large metadata log is mostly this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from pyspark_kafkalog.errors import InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.json_form import struct_to_json
from pyspark_kafkalog.metadata.messages.schema import (
    INTEGER_FORMATS,
    UNKNOWN_TAGS,
    FieldSpec,
    MessageReader,
    MessageSpec,
    find_spec,
    is_default,
    write_unsigned_varint,
)
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.names import decode_uuid
from pyspark_kafkalog.storage.names import encode_uuid as encode_one_uuid
from pyspark_kafkalog.units import INT16_MAX

Fields = Mapping[str, Any]

_ADVICE: Final = "a later version of pyspark_kafkalog or of Kafka wrote it: upgrade pyspark_kafkalog"


class MessageSchema:
    """One message type in all its versions; get it with `MessageSchema.load(name)`."""

    def __init__(self, spec: MessageSpec) -> None:
        self.spec = spec
        self._codecs: dict[int, StructCodec] = {}

    @staticmethod
    @cache
    def load(name: str) -> MessageSchema:
        """The schema of the message called `name` ("TopicRecord"). Raises KeyError for a name that is none."""
        return MessageSchema(find_spec(name))

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def api_key(self) -> int:
        """The record type's number; -1 for a message that has none."""
        return -1 if self.spec.api_key is None else self.spec.api_key

    @property
    def lowest_version(self) -> int:
        return self.spec.versions[0]

    @property
    def highest_version(self) -> int:
        return self.spec.versions[-1]

    def _codec(self, version: int) -> StructCodec:
        codec = self._codecs.get(version)
        if codec is None:
            if version not in self.spec.versions:
                raise InvalidRecordError(f"{self.name} has no version {version}, only {self._versions_text()}")
            codec = StructCodec(self.name, self.spec.fields, version, flexible=version in self.spec.flexible)
            self._codecs[version] = codec
        return codec

    def _versions_text(self) -> str:
        return f"{self.lowest_version} to {self.highest_version}"

    def decode(
        self,
        version: int,
        buffer: Buffer,
        *,
        file: str = "<message>",
        file_position: int = 0,
        allow_trailing: bool = False,
    ) -> dict[str, Any]:
        """The message that `buffer` holds in `version`, from its first byte to its last (unless `allow_trailing`).

        `file` and `file_position` name the bytes in errors. Raises CorruptRecordError, or UnsupportedFormatError for a
        version that the schema does not have.
        """
        reader = MessageReader(buffer, file=file, file_position=file_position)
        return self.decode_from(reader, version, allow_trailing=allow_trailing)

    def decode_from(self, reader: MessageReader, version: int, *, allow_trailing: bool = False) -> dict[str, Any]:
        """As `decode`, from where `reader` stands."""
        if version not in self.spec.versions:
            raise UnsupportedFormatError(
                file=reader.file,
                position=reader.file_position + reader.at,
                expected=f"{self.name} of version {self._versions_text()}",
                found=f"version {version}",
                advice=_ADVICE,
            )
        fields = self._codec(version).decode(reader)
        if reader.remaining and not allow_trailing:
            raise reader.error(expected=f"the end of {self.name}", found=f"{reader.remaining} more bytes")
        return fields

    def encode(self, version: int, fields: Fields) -> bytes:
        """`fields` in `version`. Raises InvalidRecordError for a name, value or version that the schema forbids."""
        out = bytearray()
        self.encode_to(out, version, fields)
        return bytes(out)

    def encode_to(self, out: bytearray, version: int, fields: Fields) -> None:
        """Append what `encode` returns to `out`."""
        self._codec(version).encode(out, fields)

    def to_json(self, version: int, fields: Fields) -> dict[str, Any]:
        """`fields` as the JSON object that Kafka's tools print for `version`; `json_text` makes it a string."""
        return struct_to_json(self.spec.fields, version, fields)


_STRING_MAX_BYTES: Final = INT16_MAX
_FORMATS: Final[Mapping[str, str]] = {**INTEGER_FORMATS, "bool": "?", "float64": "d", "uuid": "16s"}

#: The ids of topics come again in the record of each partition: one text for all of them.
encode_uuid = lru_cache(maxsize=1 << 14)(encode_one_uuid)

_Read = Callable[[MessageReader], Any]
_Write = Callable[[bytearray, Any], None]
_ReadInto = Callable[[MessageReader, dict[str, Any]], None]


class StructCodec:
    """Encodes and decodes a struct with `fields` in `version`."""

    def __init__(self, name: str, fields: tuple[FieldSpec, ...], version: int, *, flexible: bool) -> None:
        self._name = name
        self._flexible = flexible
        self._names = frozenset(field.name for field in fields) | {UNKNOWN_TAGS}
        here = [field for field in fields if version in field.versions]
        plain = [field for field in here if field.tag is None]
        tagged = sorted((field for field in here if field.tag is not None), key=lambda field: field.tag or 0)
        self._defaults = {field.name: field.default for field in fields if field not in plain}
        self._droppable = [field for field in fields if field not in here]
        self._readers = _plan_reads(name, plain, version, flexible)
        self._writers = [(field, _writer(name, field, version, flexible)) for field in plain]
        self._tag_readers = {
            field.tag: (field.name, _tagged_reader(name, field, version)) for field in tagged if field.tag is not None
        }
        self._tag_writers = [(field, _tagged_writer(name, field, version)) for field in tagged]

    def decode(self, reader: MessageReader) -> dict[str, Any]:
        fields = dict(self._defaults)
        for read in self._readers:
            read(reader, fields)
        if self._flexible:
            self._read_tags(reader, fields)
        return fields

    def _read_tags(self, reader: MessageReader, fields: dict[str, Any]) -> None:
        count = reader.unsigned_varint(f"the number of tagged fields of {self._name}")
        last_tag = -1
        unknown: list[tuple[int, bytes]] = []
        for _ in range(count):
            tag = reader.unsigned_varint("a tag")
            if tag <= last_tag:
                raise reader.error(expected=f"a tag of {self._name} above {last_tag}", found=str(tag))
            last_tag = tag
            size = reader.unsigned_varint("the size of a tagged field")
            start = reader.advance(size, f"tagged field {tag} of {self._name}")
            known = self._tag_readers.get(tag)
            if known is None:
                unknown.append((tag, reader.data[start : start + size]))
            else:
                fields[known[0]] = _read_within(reader, start, known[1], f"tagged field {known[0]}")
        if unknown:
            fields[UNKNOWN_TAGS] = tuple(unknown)

    def encode(self, out: bytearray, fields: Mapping[str, Any]) -> None:
        if not fields.keys() <= self._names:
            strange = sorted(fields.keys() - self._names)
            raise InvalidRecordError(f"{self._name} has no field {strange[0]!r}")
        for field in self._droppable:
            if not field.ignorable and fields.get(field.name, field.default) != field.default:
                raise InvalidRecordError(f"this version of {self._name} cannot hold its field {field.name}")
        for field, write in self._writers:
            write(out, fields.get(field.name, field.default))
        if self._flexible:
            self._write_tags(out, fields)
        elif fields.get(UNKNOWN_TAGS):
            raise InvalidRecordError(f"this version of {self._name} has no tagged fields")

    def _write_tags(self, out: bytearray, fields: Mapping[str, Any]) -> None:
        tags: list[tuple[int, bytes]] = list(fields.get(UNKNOWN_TAGS, ()))
        for field, write in self._tag_writers:
            value = fields.get(field.name, field.default)
            if not is_default(field, value):
                content = bytearray()
                write(content, value)
                tags.append((field.tag or 0, bytes(content)))
        tags.sort(key=lambda item: item[0])
        write_unsigned_varint(out, len(tags))
        for tag, data in tags:
            write_unsigned_varint(out, tag)
            write_unsigned_varint(out, len(data))
            out += data


def _read_within(reader: MessageReader, start: int, read: _Read, what: str) -> Any:
    """Read a value that must fill the bytes from `start` to the cursor exactly."""
    stop, end = reader.at, reader.end
    reader.at, reader.end = start, stop
    value = read(reader)
    if reader.at != stop:
        raise reader.error(expected=f"the end of {what}", found=f"{stop - reader.at} more bytes")
    reader.end = end
    return value


def _plan_reads(name: str, fields: list[FieldSpec], version: int, flexible: bool) -> list[_ReadInto]:
    reads: list[_ReadInto] = []
    run: list[FieldSpec] = []
    for field in fields:
        if not field.is_array and field.element in _FORMATS:
            run.append(field)
            continue
        if run:
            reads.append(_run_reader(name, run))
            run = []
        reads.append(_field_reader(field.name, _reader(name, field, version, flexible)))
    if run:
        reads.append(_run_reader(name, run))
    return reads


def _field_reader(field_name: str, read: _Read) -> _ReadInto:
    def read_into(reader: MessageReader, fields: dict[str, Any]) -> None:
        fields[field_name] = read(reader)

    return read_into


def _run_reader(name: str, run: list[FieldSpec]) -> _ReadInto:
    layout = struct.Struct(">" + "".join(_FORMATS[field.element] for field in run))
    names = tuple(field.name for field in run)
    uuids = tuple(field.name for field in run if field.element == "uuid")
    what = f"{name}.{names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")

    def read_into(reader: MessageReader, fields: dict[str, Any]) -> None:
        at = reader.advance(layout.size, what)
        fields.update(zip(names, layout.unpack_from(reader.data, at), strict=True))
        for uuid in uuids:
            fields[uuid] = encode_uuid(fields[uuid])

    return read_into


def _reader(name: str, field: FieldSpec, version: int, flexible: bool) -> _Read:
    """Reads one field's value as it stands among a struct's untagged fields."""
    what = f"{name}.{field.name}"
    nullable = version in field.nullable
    if field.is_array:
        if field.element in _FORMATS:
            return _fixed_array_reader(what, field.element, nullable, flexible)
        return _array_reader(what, _value_reader(what, field, version, flexible), nullable, flexible)
    if field.struct is not None and nullable:
        return _nullable_struct_reader(_value_reader(what, field, version, flexible), what)
    return _value_reader(what, field, version, flexible, nullable)


def _value_reader(what: str, field: FieldSpec, version: int, flexible: bool, nullable: bool = False) -> _Read:
    if field.element == "string":
        return _string_reader(what, nullable, flexible)
    if field.element in ("bytes", "records"):
        return _bytes_reader(what, nullable, flexible)
    if field.struct is not None:
        return StructCodec(what, field.struct, version, flexible=flexible).decode
    return _fixed_reader(what, field.element)


def _fixed_reader(what: str, element: str) -> _Read:
    layout = struct.Struct(">" + _FORMATS[element])
    is_uuid = element == "uuid"

    def read(reader: MessageReader) -> Any:
        value = layout.unpack_from(reader.data, reader.advance(layout.size, what))[0]
        return encode_uuid(value) if is_uuid else value

    return read


def _length_reader(what: str, nullable: bool, flexible: bool, layout: struct.Struct) -> Callable[[MessageReader], int]:
    """Reads a length and checks it against the bytes left; -1 for null."""
    label = f"the length of {what}"

    def read(reader: MessageReader) -> int:
        if flexible:
            length = reader.unsigned_varint(label) - 1
        else:
            length = layout.unpack_from(reader.data, reader.advance(layout.size, label))[0]
        if length < 0:
            if not nullable:
                raise reader.error(expected=f"{what}, which may not be null", found="null")
            return -1
        if length > reader.end - reader.at:
            raise reader.error(expected=f"{what} of length {length}", found=f"{reader.remaining} bytes left")
        return length

    return read


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def _string_reader(what: str, nullable: bool, flexible: bool) -> _Read:
    read_length = _length_reader(what, nullable, flexible, _INT16)

    def read(reader: MessageReader) -> str | None:
        length = read_length(reader)
        if length > _STRING_MAX_BYTES:
            raise reader.error(expected=f"{what} of at most {_STRING_MAX_BYTES} bytes", found=f"{length} bytes")
        return None if length < 0 else reader.take(length, what).decode("utf-8", errors="replace")

    return read


def _bytes_reader(what: str, nullable: bool, flexible: bool) -> _Read:
    read_length = _length_reader(what, nullable, flexible, _INT32)

    def read(reader: MessageReader) -> bytes | None:
        length = read_length(reader)
        return None if length < 0 else reader.take(length, what)

    return read


def _array_reader(what: str, read_element: _Read, nullable: bool, flexible: bool) -> _Read:
    # An element takes one byte or more in every schema, so a count above the bytes left is a lie.
    read_length = _length_reader(what, nullable, flexible, _INT32)

    def read(reader: MessageReader) -> tuple[Any, ...] | None:
        length = read_length(reader)
        return None if length < 0 else tuple([read_element(reader) for _ in range(length)])

    return read


def _fixed_array_reader(what: str, element: str, nullable: bool, flexible: bool) -> _Read:
    """Reads an array of elements of one width, all of them at once."""
    read_length = _length_reader(what, nullable, flexible, _INT32)
    layout = struct.Struct(">" + _FORMATS[element])
    is_uuid = element == "uuid"

    def read(reader: MessageReader) -> tuple[Any, ...] | None:
        length = read_length(reader)
        if length <= 0:
            return None if length < 0 else ()
        data = reader.take(length * layout.size, what)
        return tuple([encode_uuid(value) if is_uuid else value for (value,) in layout.iter_unpack(data)])

    return read


def _nullable_struct_reader(read_struct: _Read, what: str) -> _Read:
    def read(reader: MessageReader) -> Any:
        marker = reader.data[reader.advance(1, f"the null marker of {what}")]
        return None if marker >= 0x80 else read_struct(reader)

    return read


def _tagged_reader(name: str, field: FieldSpec, version: int) -> _Read:
    """As `_reader`; a nullable struct in a tagged field has a varint for its null marker."""
    if field.struct is None or field.is_array or version not in field.nullable:
        return _reader(name, field, version, flexible=True)
    read_struct = _value_reader(f"{name}.{field.name}", field, version, flexible=True)

    def read(reader: MessageReader) -> Any:
        return read_struct(reader) if reader.unsigned_varint(f"the null marker of {field.name}") else None

    return read


def _writer(name: str, field: FieldSpec, version: int, flexible: bool) -> _Write:
    what = f"{name}.{field.name}"
    nullable = version in field.nullable
    if field.is_array:
        write_element = _value_writer(what, field, version, flexible, nullable=False)
        return _array_writer(what, write_element, nullable, flexible)
    if field.struct is not None and nullable:
        write_struct = _value_writer(what, field, version, flexible, nullable=False)

        def write(out: bytearray, value: Any) -> None:
            out += b"\xff" if value is None else b"\x01"
            if value is not None:
                write_struct(out, value)

        return write
    return _value_writer(what, field, version, flexible, nullable)


def _value_writer(what: str, field: FieldSpec, version: int, flexible: bool, nullable: bool) -> _Write:
    if field.element == "string":
        return _string_writer(what, nullable, flexible)
    if field.element in ("bytes", "records"):
        return _bytes_writer(what, nullable, flexible)
    if field.struct is not None:
        return _struct_writer(what, StructCodec(what, field.struct, version, flexible=flexible))
    return _fixed_writer(what, field.element)


def _struct_writer(what: str, codec: StructCodec) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise InvalidRecordError(f"{what} must be a struct, not {value!r}")
        codec.encode(out, value)

    return write


def _fixed_writer(what: str, element: str) -> _Write:
    layout = struct.Struct(">" + _FORMATS[element])
    is_uuid = element == "uuid"

    def write(out: bytearray, value: Any) -> None:
        try:
            out += layout.pack(decode_uuid(value) if is_uuid else value)
        except (struct.error, ValueError, TypeError) as error:
            raise InvalidRecordError(f"{what} must be of type {element}, not {value!r}") from error

    return write


def _write_length(
    out: bytearray, length: int, what: str, nullable: bool, flexible: bool, layout: struct.Struct
) -> None:
    if length < 0 and not nullable:
        raise InvalidRecordError(f"{what} may not be null")
    if flexible:
        write_unsigned_varint(out, length + 1)
    else:
        out += layout.pack(length)


def _string_writer(what: str, nullable: bool, flexible: bool) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if value is not None and not isinstance(value, str):
            raise InvalidRecordError(f"{what} must be a string, not {value!r}")
        data = b"" if value is None else value.encode("utf-8", errors="replace")
        if len(data) > _STRING_MAX_BYTES:
            raise InvalidRecordError(f"{what} has {len(data)} bytes, at most {_STRING_MAX_BYTES} are allowed")
        _write_length(out, -1 if value is None else len(data), what, nullable, flexible, _INT16)
        out += data

    return write


def _bytes_writer(what: str, nullable: bool, flexible: bool) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if value is not None and not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidRecordError(f"{what} must be bytes, not {value!r}")
        _write_length(out, -1 if value is None else len(value), what, nullable, flexible, _INT32)
        out += value or b""

    return write


def _array_writer(what: str, write_element: _Write, nullable: bool, flexible: bool) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if value is not None and not isinstance(value, (tuple, list)):
            raise InvalidRecordError(f"{what} must be a list or a tuple, not {value!r}")
        _write_length(out, -1 if value is None else len(value), what, nullable, flexible, _INT32)
        for element in value or ():
            write_element(out, element)

    return write


def _tagged_writer(name: str, field: FieldSpec, version: int) -> _Write:
    if field.struct is None or field.is_array or version not in field.nullable:
        return _writer(name, field, version, flexible=True)
    write_struct = _value_writer(f"{name}.{field.name}", field, version, flexible=True, nullable=False)

    def write(out: bytearray, value: Any) -> None:
        out.append(0 if value is None else 1)
        if value is not None:
            write_struct(out, value)

    return write
