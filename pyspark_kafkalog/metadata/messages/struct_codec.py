"""Encode and decode structs: the message itself, and the structs in it.

A `StructCodec` has the readers and writers of one struct in one version, built once from its fields. Runs of
fixed-width fields are unpacked and packed together: replaying a large metadata log and answering a Fetch consist mostly
of this. A codec handles a list of a struct's values, in the order of its fields, and after them its unknown tagged
fields; a `StructForm` makes the struct of them, and takes it apart.

Source of the rules: org.apache.kafka.message.MessageDataGenerator and the classes that it generated for Kafka 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.messages.schema import (
    INTEGER_FORMATS,
    FieldSpec,
    MessageReader,
    MessageWriter,
    is_default,
    write_unsigned_varint,
)
from pyspark_kafkalog.storage.names import decode_uuid as decode_one_uuid
from pyspark_kafkalog.storage.names import encode_uuid as encode_one_uuid
from pyspark_kafkalog.units import INT16_MAX, INT32_MAX


class StructForm(Protocol):
    def build(self, values: list[Any]) -> Any:
        """The struct with these values."""

    def values(self, message: Any) -> Sequence[Any]:
        """The values of a struct. Raises InvalidRecordError if it is not one."""

    def default(self, field: FieldSpec) -> Any:
        """The default of a field."""

    def nested(self, what: str, field: FieldSpec) -> StructForm:
        """The form of a field that is a struct or an array of them; `what` names it in errors."""


_STRING_MAX_BYTES: Final = INT16_MAX
_FORMATS: Final[Mapping[str, str]] = {**INTEGER_FORMATS, "bool": "?", "float64": "d", "uuid": "16s"}

#: Each partition's record repeats its topic's id: all share one text.
encode_uuid = lru_cache(maxsize=1 << 14)(encode_one_uuid)
decode_uuid = lru_cache(maxsize=1 << 14)(decode_one_uuid)

_Read = Callable[[MessageReader], Any]
_Write = Callable[[bytearray, Any], None]
_ReadInto = Callable[[MessageReader, list[Any]], None]
_WriteFrom = Callable[[bytearray, Sequence[Any]], None]
_Indexed = tuple[int, FieldSpec]


class StructCodec:
    """Encodes and decodes a struct with `fields` in `version`, in the form `form`."""

    def __init__(
        self, name: str, fields: tuple[FieldSpec, ...], version: int, form: StructForm, *, flexible: bool
    ) -> None:
        self._name = name
        self._flexible = flexible
        self._build = form.build
        self._values = form.values
        present = [(i, field) for i, field in enumerate(fields) if version in field.versions]
        plain = [(i, field) for i, field in present if field.tag is None]
        tagged = sorted(
            ((field.tag, i, field) for i, field in present if field.tag is not None), key=lambda each: each[0]
        )
        self._defaults = [*map(form.default, fields), ()]
        self._droppable = [
            (i, field) for i, field in enumerate(fields) if (i, field) not in present and not field.ignorable
        ]
        self._readers = _plan_reads(name, plain, version, form, flexible)
        self._writers = _plan_writes(name, plain, version, form, flexible)
        self._tag_readers = {
            tag: (i, field.name, _tagged_reader(name, field, version, form)) for tag, i, field in tagged
        }
        #: Tags of fields that other versions have: Kafka refuses them, as it does not skip what it knows.
        self._tags_of_other_versions = frozenset(
            each.tag for each in fields if each.tag is not None and version not in each.versions
        )
        self._tags_what = f"the tagged fields of {name}"
        self._tag_writers = [(tag, i, field, _tagged_writer(name, field, version, form)) for tag, i, field in tagged]

    def decode(self, reader: MessageReader) -> Any:
        values = self._defaults.copy()
        for read in self._readers:
            read(reader, values)
        if self._flexible:
            self._read_tags(reader, values)
        return self._build(values)

    def _read_tags(self, reader: MessageReader, values: list[Any]) -> None:
        count = reader.unsigned_varint(self._tags_what)
        if count == 0:
            return
        reader.claim(count, self._tags_what)
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
                if tag in self._tags_of_other_versions:
                    raise reader.error(expected=f"a tag of this version of {self._name}", found=str(tag))
                unknown.append((tag, bytes(reader.data[start : start + size])))
            else:
                values[known[0]] = _read_within(reader, start, known[2], f"tagged field {known[1]}")
        if unknown:
            values[-1] = tuple(unknown)

    def encode(self, out: bytearray, message: Any) -> None:
        values = self._values(message)
        for i, field in self._droppable:
            if values[i] is not self._defaults[i] and values[i] != self._defaults[i]:
                raise InvalidRecordError(f"this version of {self._name} cannot hold its field {field.name}")
        for write_from in self._writers:
            write_from(out, values)
        if self._flexible:
            self._write_tags(out, values)
        elif values[-1]:
            raise InvalidRecordError(f"this version of {self._name} has no tagged fields")

    def _write_tags(self, out: bytearray, values: Sequence[Any]) -> None:
        tags: list[tuple[int, bytes]] = list(values[-1])
        for tag, i, field, write in self._tag_writers:
            value = values[i]
            if value is not self._defaults[i] and not is_default(field, value):
                content = bytearray()
                write(content, value)
                tags.append((tag, bytes(content)))
        if not tags:
            out.append(0)
            return
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


def _runs(fields: list[_Indexed]) -> Iterator[list[_Indexed]]:
    """Untagged fields by their kind: each run of adjacent fields of fixed width, and each other field."""
    run: list[_Indexed] = []
    for i, field in fields:
        is_fixed = _is_fixed(field)
        if run and not (is_fixed and run[-1][0] + 1 == i):
            yield run
            run = []
        if is_fixed:
            run.append((i, field))
        else:
            yield [(i, field)]
    if run:
        yield run


def _is_fixed(field: FieldSpec) -> bool:
    return not field.is_array and field.element in _FORMATS


def _plan_reads(name: str, fields: list[_Indexed], version: int, form: StructForm, flexible: bool) -> list[_ReadInto]:
    reads = []
    for run in _runs(fields):
        i, field = run[0]
        if _is_fixed(field):
            reads.append(_run_reader(name, run))
        else:
            reads.append(_field_reader(i, _reader(name, field, version, form, flexible)))
    return reads


def _plan_writes(name: str, fields: list[_Indexed], version: int, form: StructForm, flexible: bool) -> list[_WriteFrom]:
    writes = []
    for run in _runs(fields):
        writers = [(i, _writer(name, field, version, form, flexible)) for i, field in run]
        if len(run) > 1:
            writes.append(_run_writer(run, writers))
        else:
            writes.append(_field_writer(*writers[0]))
    return writes


def _field_reader(i: int, read: _Read) -> _ReadInto:
    def read_into(reader: MessageReader, values: list[Any]) -> None:
        values[i] = read(reader)

    return read_into


def _field_writer(i: int, write: _Write) -> _WriteFrom:
    def write_from(out: bytearray, values: Sequence[Any]) -> None:
        write(out, values[i])

    return write_from


def _layout(run: list[_Indexed]) -> struct.Struct:
    return struct.Struct(">" + "".join(_FORMATS[field.element] for _, field in run))


def _run_reader(name: str, run: list[_Indexed]) -> _ReadInto:
    layout = _layout(run)
    first, stop = run[0][0], run[-1][0] + 1
    uuids = tuple(i for i, field in run if field.element == "uuid")
    what = f"{name}.{run[0][1].name}" + (f" to {run[-1][1].name}" if len(run) > 1 else "")

    def read_into(reader: MessageReader, values: list[Any]) -> None:
        at = reader.advance(layout.size, what)
        values[first:stop] = layout.unpack_from(reader.data, at)
        for i in uuids:
            values[i] = encode_uuid(values[i])

    return read_into


def _run_writer(run: list[_Indexed], writers: list[tuple[int, _Write]]) -> _WriteFrom:
    pack = _layout(run).pack
    first, stop = run[0][0], run[-1][0] + 1
    uuids = tuple(i - first for i, field in run if field.element == "uuid")

    def write_from(out: bytearray, values: Sequence[Any]) -> None:
        each: Sequence[Any] = values[first:stop]
        try:
            if uuids:
                each = list(each)
                for i in uuids:
                    each[i] = decode_uuid(each[i])
            out += pack(*each)
        except (struct.error, ValueError, TypeError):
            for i, write in writers:  # one of them raises, and names its field
                write(bytearray(), values[i])
            raise

    return write_from


def _reader(name: str, field: FieldSpec, version: int, form: StructForm, flexible: bool) -> _Read:
    """Reads the value of an untagged field."""
    what = f"{name}.{field.name}"
    nullable = version in field.nullable
    if field.is_array:
        if field.element in _FORMATS:
            return _fixed_array_reader(what, field.element, nullable, flexible)
        read_element = _value_reader(what, field, version, form, flexible)
        return _array_reader(what, read_element, _element_bytes_min(field, version, flexible), nullable, flexible)
    if field.struct is not None and nullable:
        return _nullable_struct_reader(_value_reader(what, field, version, form, flexible), what)
    return _value_reader(what, field, version, form, flexible, nullable)


def _value_reader(
    what: str, field: FieldSpec, version: int, form: StructForm, flexible: bool, nullable: bool = False
) -> _Read:
    if field.element == "string":
        return _string_reader(what, nullable, flexible)
    if field.element == "bytes":
        return _bytes_reader(what, nullable, flexible)
    if field.element == "records":
        return _records_reader(what, nullable, flexible)
    if field.struct is not None:
        return StructCodec(what, field.struct, version, form.nested(what, field), flexible=flexible).decode
    return _fixed_reader(what, field.element)


def _fixed_reader(what: str, element: str) -> _Read:
    layout = struct.Struct(">" + _FORMATS[element])
    is_uuid = element == "uuid"

    def read(reader: MessageReader) -> Any:
        value = layout.unpack_from(reader.data, reader.advance(layout.size, what))[0]
        return encode_uuid(value) if is_uuid else value

    return read


def _element_bytes_min(field: FieldSpec, version: int, flexible: bool) -> int:
    """The bytes that a value of the field, or an element of the array, takes at least."""
    if field.element in _FORMATS:
        return struct.calcsize(">" + _FORMATS[field.element])
    if field.struct is None:
        return 1 if flexible else 2 if field.element == "string" else 4
    plain = (each for each in field.struct if version in each.versions and each.tag is None)
    return sum(_field_bytes_min(each, version, flexible) for each in plain) + flexible


def _field_bytes_min(field: FieldSpec, version: int, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.struct is not None and version in field.nullable:
        return 1
    return _element_bytes_min(field, version, flexible)


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


def _records_reader(what: str, nullable: bool, flexible: bool) -> _Read:
    read_length = _length_reader(what, nullable, flexible, _INT32)

    def read(reader: MessageReader) -> memoryview | None:
        length = read_length(reader)
        return None if length < 0 else reader.view(length, what)

    return read


def _array_reader(what: str, read_element: _Read, element_bytes_min: int, nullable: bool, flexible: bool) -> _Read:
    read_length = _length_reader(what, nullable, flexible, _INT32)

    def read(reader: MessageReader) -> tuple[Any, ...] | None:
        length = read_length(reader)
        if length <= 0:
            return None if length < 0 else ()
        if length * element_bytes_min > reader.end - reader.at:
            raise reader.error(expected=f"{what} of {length} elements", found=f"{reader.remaining} bytes left")
        reader.claim(length, what)
        return tuple([read_element(reader) for _ in range(length)])  # bounded: the bytes left, above

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
        reader.claim(length, what)
        data = reader.take(length * layout.size, what)
        return tuple([encode_uuid(value) if is_uuid else value for (value,) in layout.iter_unpack(data)])

    return read


def _nullable_struct_reader(read_struct: _Read, what: str) -> _Read:
    def read(reader: MessageReader) -> Any:
        marker = reader.data[reader.advance(1, f"the null marker of {what}")]
        return None if marker >= 0x80 else read_struct(reader)

    return read


def _tagged_reader(name: str, field: FieldSpec, version: int, form: StructForm) -> _Read:
    """As `_reader`; a nullable struct in a tagged field has a varint for its null marker."""
    if field.struct is None or field.is_array or version not in field.nullable:
        return _reader(name, field, version, form, flexible=True)
    read_struct = _value_reader(f"{name}.{field.name}", field, version, form, flexible=True)

    def read(reader: MessageReader) -> Any:
        return read_struct(reader) if reader.unsigned_varint(f"the null marker of {field.name}") else None

    return read


def _writer(name: str, field: FieldSpec, version: int, form: StructForm, flexible: bool) -> _Write:
    what = f"{name}.{field.name}"
    nullable = version in field.nullable
    if field.is_array:
        write_element = _value_writer(what, field, version, form, flexible, nullable=False)
        return _array_writer(what, write_element, nullable, flexible)
    if field.struct is not None and nullable:
        write_struct = _value_writer(what, field, version, form, flexible, nullable=False)

        def write(out: bytearray, value: Any) -> None:
            out += b"\xff" if value is None else b"\x01"
            if value is not None:
                write_struct(out, value)

        return write
    return _value_writer(what, field, version, form, flexible, nullable)


def _value_writer(
    what: str, field: FieldSpec, version: int, form: StructForm, flexible: bool, nullable: bool
) -> _Write:
    if field.element == "string":
        return _string_writer(what, nullable, flexible)
    if field.element == "bytes":
        return _bytes_writer(what, nullable, flexible)
    if field.element == "records":
        return _records_writer(what, nullable, flexible)
    if field.struct is not None:
        return StructCodec(what, field.struct, version, form.nested(what, field), flexible=flexible).encode
    return _fixed_writer(what, field.element)


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


def _records_writer(what: str, nullable: bool, flexible: bool) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            size_bytes = -1
        elif isinstance(value, (bytes, bytearray, memoryview)):
            size_bytes = len(value)
        else:
            size_bytes = getattr(value, "size_bytes", -1)
            if size_bytes < 0:
                raise InvalidRecordError(f"{what} must be bytes or a slice of records, not {value!r}")
        if size_bytes > INT32_MAX:
            raise InvalidRecordError(f"{what} has {size_bytes} bytes, at most {INT32_MAX} are allowed")
        _write_length(out, size_bytes, what, nullable, flexible, _INT32)
        if size_bytes <= 0:
            return
        if isinstance(out, MessageWriter):
            out.add_records(value, size_bytes)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            out += value
        else:
            raise InvalidRecordError(f"{what} is a slice of records, which has no bytes to encode")

    return write


def _array_writer(what: str, write_element: _Write, nullable: bool, flexible: bool) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if value is not None and not isinstance(value, (tuple, list)):
            raise InvalidRecordError(f"{what} must be a list or a tuple, not {value!r}")
        _write_length(out, -1 if value is None else len(value), what, nullable, flexible, _INT32)
        for element in value or ():
            write_element(out, element)

    return write


def _tagged_writer(name: str, field: FieldSpec, version: int, form: StructForm) -> _Write:
    if field.struct is None or field.is_array or version not in field.nullable:
        return _writer(name, field, version, form, flexible=True)
    write_struct = _value_writer(f"{name}.{field.name}", field, version, form, flexible=True, nullable=False)

    def write(out: bytearray, value: Any) -> None:
        out.append(0 if value is None else 1)
        if value is not None:
            write_struct(out, value)

    return write
