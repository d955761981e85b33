"""Encode, decode and print Kafka's messages from their schemas (schema.py), as Kafka's generated classes do.

A message has one of two forms:

- a dict of field name to value, for any schema: what the dump of internal topics prints
- an instance of a class that scripts/make_messages.py has generated from the schema: what the rest of the package
  reads and writes. Its fields have snake_case names

Values are int, float, bool, str, bytes, a Uuid as Kafka's 22 character text, None for null, a tuple for an array, a
dict or an instance for a struct. Decoded records are a view of the message's bytes; they are encoded from bytes, a view
or a `RecordsSlice`, see pieces.py. Decoding fills in defaults for fields that the version lacks, so a
message is complete; encoding a dict takes defaults for missing names. Tagged fields with tags that the schema lacks are
kept under `UNKNOWN_TAGS` (in an instance: `unknown_tags`), a tuple of (tag, bytes), and written back in their place.
Hostile bytes raise CorruptRecordError, whatever they are.

A `StructCodec` has the readers and writers of one struct in one version, built once from its fields. Runs of
fixed-width fields are unpacked together, because replaying a large metadata log consists mostly of this.

Source of the rules: org.apache.kafka.message.MessageDataGenerator and the classes that it generated for Kafka 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from pyspark_kafkalog.errors import InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.frozen import Frozen
from pyspark_kafkalog.metadata.messages.json_form import struct_to_json
from pyspark_kafkalog.metadata.messages.pieces import MessageWriter
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
from pyspark_kafkalog.storage.names import decode_uuid
from pyspark_kafkalog.storage.names import encode_uuid as encode_one_uuid
from pyspark_kafkalog.units import INT16_MAX

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer  # loads numpy, which parsing options does not need

Fields = Mapping[str, Any]
_M = TypeVar("_M", bound="Message")

_ADVICE: Final = "a later version of pyspark_kafkalog or of Kafka wrote it: upgrade pyspark_kafkalog"


class Message(Frozen):
    """Base of the generated classes; a subclass has the name of its message in the schemas."""

    __slots__ = ()

    #: The classes of the fields that are structs or arrays of structs, by attribute.
    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {}

    @classmethod
    def schema(cls) -> MessageSchema:
        return MessageSchema.load(cls.__name__)

    @classmethod
    def decode(
        cls: type[_M],
        version: int,
        buffer: Buffer,
        *,
        file: str = "<message>",
        file_position: int = 0,
        allow_trailing: bool = False,
    ) -> _M:
        """As `MessageSchema.decode`, as an instance of the class."""
        return cls.decode_from(
            MessageReader(buffer, file=file, file_position=file_position), version, allow_trailing=allow_trailing
        )

    @classmethod
    def decode_from(cls: type[_M], reader: MessageReader, version: int, *, allow_trailing: bool = False) -> _M:
        """As `decode`, from the position of `reader`."""
        message: _M = cls.schema().read(reader, version, form=cls, allow_trailing=allow_trailing)
        return message

    def encode(self, version: int) -> bytes:
        """The message in `version`. Raises InvalidRecordError for a value or version that the schema forbids."""
        out = bytearray()
        self.encode_to(out, version)
        return bytes(out)

    def encode_to(self, out: bytearray, version: int) -> None:
        """Append what `encode` returns to `out`."""
        self.schema().codec(version, form=type(self)).encode(out, self)


class MessageSchema:
    """One message type in all its versions; get it with `MessageSchema.load(name)`."""

    def __init__(self, spec: MessageSpec) -> None:
        self.spec = spec
        self._codecs: dict[tuple[int, type[Message] | None], StructCodec] = {}

    @staticmethod
    @cache
    def load(name: str) -> MessageSchema:
        """The schema of the message called `name` ("TopicRecord"). Raises KeyError for an unknown name."""
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

    def codec(self, version: int, *, form: type[Message] | None = None) -> StructCodec:
        """The codec of `version` for messages of the class `form`, or dicts. Raises InvalidRecordError."""
        codec = self._codecs.get((version, form))
        if codec is None:
            if version not in self.spec.versions:
                raise InvalidRecordError(f"{self.name} has no version {version}, only {self._versions_text()}")
            fields = self.spec.fields
            structs: _StructForm = _DictForm(self.name, fields) if form is None else _ClassForm(form)
            codec = StructCodec(self.name, fields, version, structs, flexible=version in self.spec.flexible)
            self._codecs[version, form] = codec
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
        """The message in `buffer`, of `version`, from its first byte to its last (unless `allow_trailing`).

        `file` and `file_position` name the bytes in errors. Raises CorruptRecordError, or UnsupportedFormatError for a
        version that the schema does not have.
        """
        reader = MessageReader(buffer, file=file, file_position=file_position)
        return self.decode_from(reader, version, allow_trailing=allow_trailing)

    def decode_from(self, reader: MessageReader, version: int, *, allow_trailing: bool = False) -> dict[str, Any]:
        """As `decode`, from the position of `reader`."""
        fields: dict[str, Any] = self.read(reader, version, form=None, allow_trailing=allow_trailing)
        return fields

    def read(self, reader: MessageReader, version: int, *, form: type[Message] | None, allow_trailing: bool) -> Any:
        """As `decode_from`, as an instance of the class `form` or, if that is None, as a dict."""
        if version not in self.spec.versions:
            raise UnsupportedFormatError(
                file=reader.file,
                position=reader.file_position + reader.at,
                expected=f"{self.name} of version {self._versions_text()}",
                found=f"version {version}",
                advice=_ADVICE,
            )
        message = self.codec(version, form=form).decode(reader)
        if reader.remaining and not allow_trailing:
            raise reader.error(expected=f"the end of {self.name}", found=f"{reader.remaining} more bytes")
        return message

    def encode(self, version: int, fields: Fields) -> bytes:
        """`fields` in `version`. Raises InvalidRecordError for a name, value or version that the schema forbids."""
        out = bytearray()
        self.codec(version).encode(out, fields)
        return bytes(out)

    def to_json(self, version: int, fields: Fields) -> dict[str, Any]:
        """`fields` as the JSON object that Kafka's tools print for `version`; `json_text` makes it a string."""
        return struct_to_json(self.spec.fields, version, fields)


# The two forms of a struct. Codecs read and write a list of its values, in the order of its fields, and after them its
# unknown tagged fields.


class _StructForm(Protocol):
    def build(self, values: list[Any]) -> Any:
        """The struct with these values."""

    def values(self, message: Any) -> Sequence[Any]:
        """The values of a struct. Raises InvalidRecordError if it is not one."""

    def default(self, field: FieldSpec) -> Any:
        """The default of a field."""

    def nested(self, what: str, field: FieldSpec) -> _StructForm:
        """The form of a field that is a struct or an array of them; `what` names it in errors."""


class _DictForm:
    def __init__(self, what: str, fields: tuple[FieldSpec, ...]) -> None:
        self._what = what
        self._fields = fields
        self._names = tuple(field.name for field in fields)
        self._known = frozenset(self._names) | {UNKNOWN_TAGS}

    def build(self, values: list[Any]) -> dict[str, Any]:
        message = dict(zip(self._names, values, strict=False))
        if values[-1]:
            message[UNKNOWN_TAGS] = values[-1]
        return message

    def values(self, message: Any) -> Sequence[Any]:
        if not isinstance(message, Mapping):
            raise InvalidRecordError(f"{self._what} must be a struct, not {message!r}")
        if not message.keys() <= self._known:
            unknown = sorted(message.keys() - self._known)
            raise InvalidRecordError(f"{self._what} has no field {unknown[0]!r}")
        values = [message.get(field.name, field.default) for field in self._fields]
        values.append(message.get(UNKNOWN_TAGS, ()))
        return values

    def default(self, field: FieldSpec) -> Any:
        return field.default

    def nested(self, what: str, field: FieldSpec) -> _StructForm:
        return _DictForm(what, field.struct or ())


class _ClassForm:
    def __init__(self, cls: type[Message]) -> None:
        self._class = cls
        self._get = cls.values_of
        self._builder = cls.builder()

    def build(self, values: list[Any]) -> Any:
        message = self._builder(*values)
        message.__class__ = self._class
        return message

    def values(self, message: Any) -> Sequence[Any]:
        if not isinstance(message, self._class):
            raise InvalidRecordError(f"expected a struct of the class {self._class.__name__}, found {message!r}")
        return self._get(message)

    def default(self, field: FieldSpec) -> Any:
        is_struct = field.struct is not None and not field.is_array and field.default is not None
        return self._class.STRUCTS[field.attribute]() if is_struct else field.default

    def nested(self, what: str, field: FieldSpec) -> _StructForm:
        return _ClassForm(self._class.STRUCTS[field.attribute])


_STRING_MAX_BYTES: Final = INT16_MAX
_FORMATS: Final[Mapping[str, str]] = {**INTEGER_FORMATS, "bool": "?", "float64": "d", "uuid": "16s"}

#: Each partition's record repeats its topic's id: all share one text.
encode_uuid = lru_cache(maxsize=1 << 14)(encode_one_uuid)

_Read = Callable[[MessageReader], Any]
_Write = Callable[[bytearray, Any], None]
_ReadInto = Callable[[MessageReader, list[Any]], None]
_Indexed = tuple[int, FieldSpec]


class StructCodec:
    """Encodes and decodes a struct with `fields` in `version`, in the form `form`."""

    def __init__(
        self, name: str, fields: tuple[FieldSpec, ...], version: int, form: _StructForm, *, flexible: bool
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
        self._writers = [(i, _writer(name, field, version, form, flexible)) for i, field in plain]
        self._tag_readers = {
            tag: (i, field.name, _tagged_reader(name, field, version, form)) for tag, i, field in tagged
        }
        self._tag_writers = [(tag, i, field, _tagged_writer(name, field, version, form)) for tag, i, field in tagged]

    def decode(self, reader: MessageReader) -> Any:
        values = self._defaults.copy()
        for read in self._readers:
            read(reader, values)
        if self._flexible:
            self._read_tags(reader, values)
        return self._build(values)

    def _read_tags(self, reader: MessageReader, values: list[Any]) -> None:
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
                unknown.append((tag, bytes(reader.data[start : start + size])))
            else:
                values[known[0]] = _read_within(reader, start, known[2], f"tagged field {known[1]}")
        if unknown:
            values[-1] = tuple(unknown)

    def encode(self, out: bytearray, message: Any) -> None:
        values = self._values(message)
        for i, field in self._droppable:
            if values[i] != self._defaults[i]:
                raise InvalidRecordError(f"this version of {self._name} cannot hold its field {field.name}")
        for i, write in self._writers:
            write(out, values[i])
        if self._flexible:
            self._write_tags(out, values)
        elif values[-1]:
            raise InvalidRecordError(f"this version of {self._name} has no tagged fields")

    def _write_tags(self, out: bytearray, values: Sequence[Any]) -> None:
        tags: list[tuple[int, bytes]] = list(values[-1])
        for tag, i, field, write in self._tag_writers:
            if not is_default(field, values[i]):
                content = bytearray()
                write(content, values[i])
                tags.append((tag, bytes(content)))
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


def _plan_reads(name: str, fields: list[_Indexed], version: int, form: _StructForm, flexible: bool) -> list[_ReadInto]:
    """The readers of untagged fields, one for each run of adjacent fields of fixed width and for each other field."""
    reads: list[_ReadInto] = []
    run: list[_Indexed] = []
    for i, field in fields:
        is_fixed = not field.is_array and field.element in _FORMATS
        if run and not (is_fixed and run[-1][0] + 1 == i):
            reads.append(_run_reader(name, run))
            run = []
        if is_fixed:
            run.append((i, field))
        else:
            reads.append(_field_reader(i, _reader(name, field, version, form, flexible)))
    if run:
        reads.append(_run_reader(name, run))
    return reads


def _field_reader(i: int, read: _Read) -> _ReadInto:
    def read_into(reader: MessageReader, values: list[Any]) -> None:
        values[i] = read(reader)

    return read_into


def _run_reader(name: str, run: list[_Indexed]) -> _ReadInto:
    layout = struct.Struct(">" + "".join(_FORMATS[field.element] for _, field in run))
    first, stop = run[0][0], run[-1][0] + 1
    uuids = tuple(i for i, field in run if field.element == "uuid")
    what = f"{name}.{run[0][1].name}" + (f" to {run[-1][1].name}" if len(run) > 1 else "")

    def read_into(reader: MessageReader, values: list[Any]) -> None:
        at = reader.advance(layout.size, what)
        values[first:stop] = layout.unpack_from(reader.data, at)
        for i in uuids:
            values[i] = encode_uuid(values[i])

    return read_into


def _reader(name: str, field: FieldSpec, version: int, form: _StructForm, flexible: bool) -> _Read:
    """Reads the value of an untagged field."""
    what = f"{name}.{field.name}"
    nullable = version in field.nullable
    if field.is_array:
        if field.element in _FORMATS:
            return _fixed_array_reader(what, field.element, nullable, flexible)
        return _array_reader(what, _value_reader(what, field, version, form, flexible), nullable, flexible)
    if field.struct is not None and nullable:
        return _nullable_struct_reader(_value_reader(what, field, version, form, flexible), what)
    return _value_reader(what, field, version, form, flexible, nullable)


def _value_reader(
    what: str, field: FieldSpec, version: int, form: _StructForm, flexible: bool, nullable: bool = False
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


def _array_reader(what: str, read_element: _Read, nullable: bool, flexible: bool) -> _Read:
    # An element takes one byte or more in every schema, so a count above the bytes left is wrong.
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


def _tagged_reader(name: str, field: FieldSpec, version: int, form: _StructForm) -> _Read:
    """As `_reader`; a nullable struct in a tagged field has a varint for its null marker."""
    if field.struct is None or field.is_array or version not in field.nullable:
        return _reader(name, field, version, form, flexible=True)
    read_struct = _value_reader(f"{name}.{field.name}", field, version, form, flexible=True)

    def read(reader: MessageReader) -> Any:
        return read_struct(reader) if reader.unsigned_varint(f"the null marker of {field.name}") else None

    return read


def _writer(name: str, field: FieldSpec, version: int, form: _StructForm, flexible: bool) -> _Write:
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
    what: str, field: FieldSpec, version: int, form: _StructForm, flexible: bool, nullable: bool
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


def _tagged_writer(name: str, field: FieldSpec, version: int, form: _StructForm) -> _Write:
    if field.struct is None or field.is_array or version not in field.nullable:
        return _writer(name, field, version, form, flexible=True)
    write_struct = _value_writer(f"{name}.{field.name}", field, version, form, flexible=True, nullable=False)

    def write(out: bytearray, value: Any) -> None:
        out.append(0 if value is None else 1)
        if value is not None:
            write_struct(out, value)

    return write
