"""Message schemas as data, and the primitive encodings that all messages consist of.

`schemas/*.json` hold one object per message name:

    {"TopicRecord": {"apiKey": 2, "versions": "0", "flexible": "0+", "fields": [
        {"name": "name", "type": "string"}, ...]}}

- `versions`: the versions that exist
- `flexible`: the versions with compact lengths and tagged fields; "none" for no version
- `since`: the release of Kafka that has a version first, by version, where that is later than 4.1

Each field has:

- `name`
- `type`: bool int8 int16 uint16 int32 uint32 int64 float64 uuid string bytes records, `[]T` for an array; any other
  name is a struct whose `fields` follow
- `versions`: the versions with the field; all if omitted
- `nullable`: the versions in which it may be null; none if omitted
- `default`: zero or empty if omitted
- `tag`: its number if it is a tagged field
- `ignorable`: whether a version without the field may drop its value
- `since`: the release of Kafka that has the field first, of a tagged field that came without a new version

`cluster_metadata` are the records of `__cluster_metadata`, the coordinators' those of `__consumer_offsets`,
`__transaction_state` and `__share_group_state`, `remote_log_metadata` those of `__remote_log_metadata`; all as of Kafka
4.4. `kafkalog` are this project's own (see records.py). Kafka's requests and responses lie in `protocol/schemas`, in
the same form. Fields have the order of Kafka's JSON; on the wire, untagged fields come first, then tagged ones by tag.

On the wire: big-endian integers; unsigned varints of at most 5 bytes; strings and bytes with an int16 or int32 length
or, in flexible versions, with an unsigned varint of length + 1, where 0 is null. Source of the encodings:
org.apache.kafka.common.protocol.ByteBufferAccessor.

*Pieces.* `MessageWriter` keeps an encoded message as pieces, so that records are sent from where they lie. A response
with records is mostly records. Its pieces are the bytes between them, in one buffer, and the records as the
message holds them: a view of a request, a mapped file, or a `RecordsSlice`, which may be read only when its turn comes.
"""

from __future__ import annotations

import json
import pkgutil
import re
import struct
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.units import INT16_MAX, INT32_MAX
from pyspark_kafkalog.values import dataclass
from pyspark_kafkalog.version import KafkaVersion

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer  # loads numpy, which parsing options does not need

#: Tagged fields with tags that the schema lacks: (tag, bytes), by tag.
UnknownTags: TypeAlias = tuple[tuple[int, bytes], ...]
#: The key of a struct's dict for its UnknownTags.
UNKNOWN_TAGS: Final = "_unknownTaggedFields"
ZERO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
SCHEMA_FILES: Final = (
    "cluster_metadata",
    "kafkalog",
    "group_coordinator",
    "transaction_coordinator",
    "share_coordinator",
    "remote_log_metadata",
)
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_VERSION: Final = range(0)
_MAX_VERSION: Final = INT16_MAX
_ZERO_VALUES: Final[Mapping[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}
INTEGER_FORMATS: Final[Mapping[str, str]] = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
}
_PRIMITIVES: Final = frozenset(_ZERO_VALUES) | frozenset(INTEGER_FORMATS)


def _parse_versions(text: str) -> range:
    """ "2+", "1-3", "0" or "none" as a range."""
    if text == "none":
        return _NO_VERSION
    if text.endswith("+"):
        return range(int(text[:-1]), _MAX_VERSION + 1)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """One field. `element` is the array's element type or, without `is_array`, the field's own; `struct` its fields.

    `attribute` is its name in the message's class.
    """

    name: str
    attribute: str
    element: str
    is_array: bool
    struct: tuple[FieldSpec, ...] | None
    versions: range
    nullable: range
    default: Any
    tag: int | None
    ignorable: bool
    since: KafkaVersion | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpec:
    """One message: `versions` that exist, `flexible` ones among them, fields in declared order.

    `since` are the releases of Kafka that have a version first, by version; the others are older than all of these.
    """

    name: str
    api_key: int | None
    versions: range
    flexible: range
    since: Mapping[int, KafkaVersion]
    fields: tuple[FieldSpec, ...]


def _parse_field(source: Mapping[str, Any]) -> FieldSpec:
    is_array = source["type"].startswith("[]")
    element = source["type"].removeprefix("[]")
    struct = tuple(_parse_field(field) for field in source["fields"]) if element not in _PRIMITIVES else None
    if "default" in source:
        default = source["default"]
    elif is_array:
        default = ()
    elif struct is not None:
        default = default_struct(struct)
    else:
        default = _ZERO_VALUES.get(element, 0)
    return FieldSpec(
        name=source["name"],
        attribute=_WORD_START.sub("_", source["name"]).lower(),
        element=element,
        is_array=is_array,
        struct=struct,
        versions=_parse_versions(source.get("versions", "0+")),
        nullable=_parse_versions(source.get("nullable", "none")),
        default=default,
        tag=source.get("tag"),
        ignorable=source.get("ignorable", False),
        since=KafkaVersion.parse(source["since"]) if "since" in source else None,
    )


def default_struct(fields: tuple[FieldSpec, ...]) -> dict[str, Any]:
    """A struct with each field at its default."""
    return {field.name: field.default for field in fields}


def is_default(field: FieldSpec, value: Any) -> bool:
    """Whether a tagged field with this value is left out of the message and of its JSON."""
    if field.is_array and value is not None and field.default is not None:
        return len(value) == 0
    if field.struct is not None and value is not None and field.default is not None:
        if isinstance(value, Mapping):
            unknown_tags, values = (
                value.get(UNKNOWN_TAGS),
                [value.get(each.name, each.default) for each in field.struct],
            )
        else:
            unknown_tags, values = value.unknown_tags, [getattr(value, each.attribute) for each in field.struct]
        return not unknown_tags and all(map(is_default, field.struct, values))
    if isinstance(value, float):
        return struct.pack(">d", value) == struct.pack(">d", field.default)
    return bool(value == field.default)


@cache
def load_schema_file(file: str, package: str = __package__) -> Mapping[str, MessageSpec]:
    """Every message of `schemas/<file>.json` of a Python package by name, in the order of the file."""
    text = pkgutil.get_data(package, f"schemas/{file}.json")  # also in a zip; importlib.resources takes 3 ms to load
    assert text is not None, "loaders of packages read data"
    return {
        name: MessageSpec(
            name=name,
            api_key=source.get("apiKey"),
            versions=_parse_versions(source["versions"]),
            flexible=_parse_versions(source["flexible"]),
            since={int(version): KafkaVersion.parse(first) for version, first in source.get("since", {}).items()},
            fields=tuple(_parse_field(field) for field in source["fields"]),
        )
        for name, source in json.loads(text).items()
    }


def find_spec(name: str) -> MessageSpec:
    """The message called `name` of any schema file. Raises KeyError for an unknown name."""
    for file in SCHEMA_FILES:
        spec = load_schema_file(file).get(name)
        if spec is not None:
            return spec
    raise KeyError(f"no message schema is named {name!r}")


_VARINT_MAX_BYTES = 5


class MessageReader:
    """A cursor over one message's bytes. `file` and `file_position` (of byte 0) only appear in errors."""

    __slots__ = ("at", "data", "elements_left", "end", "file", "file_position")

    def __init__(self, data: Buffer, *, file: str, file_position: int = 0) -> None:
        self.data = bytes(data)
        self.at = 0
        self.end = len(self.data)
        self.elements_left = INT32_MAX
        self.file = file
        self.file_position = file_position

    @property
    def remaining(self) -> int:
        return self.end - self.at

    def error(self, *, expected: str, found: str) -> CorruptRecordError:
        """The error to raise for the bytes at the cursor."""
        return CorruptRecordError(file=self.file, position=self.file_position + self.at, expected=expected, found=found)

    def advance(self, size: int, what: str) -> int:
        """Step over `size` bytes and return their position; raises CorruptRecordError if fewer are left."""
        at = self.at
        if size < 0 or size > self.end - at:
            raise self.error(expected=f"{what} of {size} bytes", found=f"{self.end - at} bytes left")
        self.at = at + size
        return at

    def take(self, size: int, what: str) -> bytes:
        at = self.advance(size, what)
        return self.data[at : at + size]

    def claim(self, count: int, what: str) -> None:
        """Account for elements of an array, or tagged fields, before they are read."""
        self.elements_left -= count
        if self.elements_left < 0:
            raise self.error(expected="fewer elements in the whole message", found=f"{count} more in {what}")

    def view(self, size: int, what: str) -> memoryview:
        """As `take`, without a copy."""
        at = self.advance(size, what)
        return memoryview(self.data)[at : at + size].toreadonly()

    def unsigned_varint(self, what: str) -> int:
        """An unsigned varint of 0 to 2^31-1."""
        at = self.at
        if at < self.end and self.data[at] < 0x80:  # most of them are one byte
            self.at = at + 1
            return self.data[at]
        value = 0
        for shift in range(0, 7 * _VARINT_MAX_BYTES, 7):
            if at >= self.end:
                raise self.error(expected=f"a varint for {what}", found="the end of the message")
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > INT32_MAX:
                    raise self.error(expected=f"{what} of at most {INT32_MAX}", found=str(value))
                self.at = at
                return value
        raise self.error(expected=f"a varint of at most {_VARINT_MAX_BYTES} bytes for {what}", found="a longer one")


class FrameReader(MessageReader):
    """A cursor over a message that lies in a buffer of any kind, of which nothing is copied but what is decoded.

    Views of the buffer become part of the message, so the buffer must not change afterwards. `elements_max` bounds
    the elements of all arrays: those of a byte each are read much slower than they are sent.
    """

    __slots__ = ()

    data: Any  # bytes, bytearray or memoryview of bytes

    def __init__(self, data: Buffer, *, file: str, elements_max: int = INT32_MAX) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self.elements_left = elements_max
        self.file = file
        self.file_position = 0

    def error(self, *, expected: str, found: str) -> CorruptRecordError:
        return CorruptRecordError(
            file=self.file,
            position=self.at,
            expected=expected,
            found=found,
            advice="its sender does not keep to Kafka's protocol",
        )

    def take(self, size: int, what: str) -> bytes:
        at = self.advance(size, what)
        return bytes(self.data[at : at + size])


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Append `value` (0 to 2^31-1) as an unsigned varint."""
    if not 0 <= value <= INT32_MAX:
        raise InvalidRecordError(f"{value} does not fit an unsigned varint of 31 bits")
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


class RecordsSlice(Protocol):
    """Bytes of records that lie elsewhere, in a file for instance: the sender of the message fetches them."""

    @property
    def size_bytes(self) -> int: ...


#: The value of a field of type `records`.
Records: TypeAlias = bytes | memoryview | RecordsSlice
#: What an encoded message consists of.
Piece: TypeAlias = bytes | bytearray | memoryview | RecordsSlice


class MessageWriter(bytearray):
    """The bytes of an encoded message, except records: those keep their place and are not copied."""

    def __init__(self) -> None:
        super().__init__()
        self._outside: list[tuple[int, Records]] = []
        self._outside_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The size of the whole message."""
        return len(self) + self._outside_bytes

    def add_records(self, records: Records, size_bytes: int) -> None:
        """Put records of this size at the end."""
        self._outside.append((len(self), records))
        self._outside_bytes += size_bytes

    def pieces(self) -> list[Piece]:
        """The whole message, in order."""
        if not self._outside:
            return [self]
        found: list[Piece] = []
        start = 0
        view = memoryview(self)
        for at, records in self._outside:
            if at > start:
                found.append(view[start:at])
            found.append(records)
            start = at
        if start < len(self):
            found.append(view[start:])
        return found
