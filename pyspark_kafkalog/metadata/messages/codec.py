"""Encode, decode and print Kafka's messages from their schemas (schema.py), as Kafka's generated classes do.

A message has one of two forms:

- a dict of field name to value, for any schema: what the dump of internal topics prints
- an instance of a class that scripts/make_messages.py has generated from the schema: what the rest of the package
  reads and writes. Its fields have snake_case names

Values are int, float, bool, str, bytes, a Uuid as Kafka's 22 character text, None for null, a tuple for an array, a
dict or an instance for a struct. Decoded records are a view of the message's bytes; they are encoded from bytes, a view
or a `RecordsSlice`, see schema.py. Decoding fills in defaults for fields that the version lacks, so a
message is complete; encoding a dict takes defaults for missing names. Tagged fields with tags that the schema lacks are
kept under `UNKNOWN_TAGS` (in an instance: `unknown_tags`), a tuple of (tag, bytes), and written back in their place.
Hostile bytes raise CorruptRecordError, whatever they are.

Source of the rules: org.apache.kafka.message.MessageDataGenerator and the classes that it generated for Kafka 4.1.

*JSON.* `struct_to_json` and `json_text` print messages as Kafka's tools do. Fields have their declared order; a Uuid is
its text, bytes are base64, null is null. Fields that the version lacks, and tagged fields with their default, are
omitted.

Source: the *JsonConverter classes of Kafka 4.1; for the text, Jackson's ObjectNode.toString: no blanks; only control
characters, quotes and backslashes are escaped; doubles as Java prints them.

*Classes.* `Frozen` is the base of immutable classes of typed fields, frozen dataclasses that cost little to import:

    class TopicRecord(Frozen):
        name: str = ""
        topic_id: str = ZERO_UUID

`dataclass` compiles the methods of each class at import, half a millisecond for a class: too much for dozens of
messages in processes that live for a tenth of a second. Here the methods are those of `Frozen`, and only the
constructor of a class is compiled, with its first instance. Type checkers see frozen dataclasses with keyword-only
fields.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar

from pyspark_kafkalog.errors import InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.schema import (
    UNKNOWN_TAGS,
    FieldSpec,
    MessageReader,
    MessageSpec,
    UnknownTags,
    find_spec,
    is_default,
)
from pyspark_kafkalog.metadata.messages.struct_codec import StructCodec, StructForm

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer  # loads numpy, which parsing options does not need

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # typing has it from Python 3.11
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        return lambda cls: cls


_F = TypeVar("_F", bound="Frozen")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class FrozenType(type):
    """Turns the annotated attributes of a class, and the `COMMON_FIELDS` of its base after them, into slots.

    A class that states its `__slots__` stays as it is.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> FrozenType:
        if "__slots__" not in namespace:
            own = [*namespace.get("__annotations__", ())]
            common = {name: getattr(base, name) for base in bases for name in getattr(base, "COMMON_FIELDS", ())}
            names = (*own, *common)
            namespace |= {
                "__slots__": names,
                "FIELDS": names,
                "DEFAULTS": {name: namespace.pop(name) for name in own} | common,
                "values_of": staticmethod(_values_getter(names)),
                "_builder": None,
            }
        return super().__new__(mcs, name, bases, namespace)

    def __call__(cls: type[_F], **values: Any) -> _F:  # type: ignore[misc]  # a metaclass of Frozen and its subclasses
        instance: _F = (cls._builder or cls.builder())(**values)
        instance.__class__ = cls
        return instance


def _values_getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:  # attrgetter returns no tuple for one name
        return lambda instance: (getattr(instance, names[0]),)
    return attrgetter(*names)


class _BuilderType(FrozenType):
    __call__ = type.__call__


class Frozen(metaclass=FrozenType):
    """Base of these classes: equality, hash, text and pickling by the values of the fields.

    Every field of a subclass has a default. A subclass has no fields of other subclasses.
    """

    __slots__ = ()

    #: Class attributes that are fields of every subclass, after its own, with these defaults.
    COMMON_FIELDS: ClassVar[tuple[str, ...]] = ()

    FIELDS: ClassVar[tuple[str, ...]] = ()
    #: The default of each field, in the order of `FIELDS`.
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    #: A function that returns the values of an instance, in the order of `FIELDS`.
    values_of: ClassVar[Callable[[Any], tuple[Any, ...]]]
    #: A mutable class of the same layout, see `builder`; None before the first instance.
    _builder: ClassVar[type | None] = None

    @classmethod
    def own_fields(cls) -> tuple[str, ...]:
        """The fields without those that all subclasses have in common."""
        return cls.FIELDS[: len(cls.FIELDS) - len(cls.COMMON_FIELDS)]

    @classmethod
    def builder(cls) -> Callable[..., Any]:
        """A mutable class of the same layout, whose instances become ones of `cls` by assigning `__class__`.

        It takes the values by position or name. Setting the slots of an immutable class one by one takes three times as
        long.
        """
        if cls._builder is None:
            names = cls.FIELDS
            assignments = "; ".join(f"self.{name} = {name}" for name in names)
            compiled: dict[str, Any] = {}
            exec(f"def __init__(self, {', '.join(names)}): {assignments}", compiled)
            compiled["__init__"].__defaults__ = tuple(cls.DEFAULTS.values())
            members = {
                "__slots__": names,
                "__init__": compiled["__init__"],
                "__setattr__": object.__setattr__,
                "__delattr__": object.__delattr__,
            }
            cls._builder = _BuilderType(cls.__name__, cls.__bases__, members)
        return cls._builder

    def replace(self: _F, **changes: Any) -> _F:
        """A copy with other values of the named fields."""
        cls = type(self)
        return cls(**{**dict(zip(cls.FIELDS, cls.values_of(self), strict=True)), **changes})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Frozen) and other.__class__ is self.__class__:
            return type(self).values_of(self) == type(self).values_of(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(type(self).values_of(self))

    def __repr__(self) -> str:
        cls = type(self)
        values = ", ".join(f"{name}={value!r}" for name, value in zip(cls.FIELDS, cls.values_of(self), strict=True))
        return f"{cls.__qualname__}({values})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), type(self).values_of(self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


def _restore(cls: type[_F], values: tuple[Any, ...]) -> _F:
    instance: _F = cls.builder()(*values)
    instance.__class__ = cls
    return instance


Fields = Mapping[str, Any]
_M = TypeVar("_M", bound="Message")

_ADVICE: Final = "a later version of pyspark_kafkalog or of Kafka wrote it: upgrade pyspark_kafkalog"


def _element(annotation: str) -> str:
    """The name of the class in an annotation of a field, as `Topic` of `tuple[Topic, ...] | None`."""
    return annotation.removesuffix(" | None").removeprefix("tuple[").removesuffix(", ...]")


class Message(Frozen):
    """Base of the generated classes; a subclass has the name of its message in the schemas."""

    __slots__ = ()

    COMMON_FIELDS: ClassVar = ("unknown_tags",)
    #: The tagged fields that the schema does not have, as (tag, bytes).
    unknown_tags: UnknownTags = ()

    @classmethod
    @cache
    def structs(cls) -> Mapping[str, type[Message]]:
        """The classes of the fields that are structs or arrays of structs, by attribute."""
        known = vars(sys.modules[cls.__module__])
        elements = {name: known.get(_element(annotation)) for name, annotation in cls.__annotations__.items()}
        return {name: each for name, each in elements.items() if isinstance(each, type) and issubclass(each, Message)}

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

    @property
    def written_version(self) -> int:
        """The newest version that Kafka 4.1 knows, which metadata.version 27 allows, and that roots and exports have.

        Of a message that came later it is the newest.
        """
        known = [each for each in self.spec.versions if each not in self.spec.since]
        return known[-1] if known else self.highest_version

    def codec(self, version: int, *, form: type[Message] | None = None) -> StructCodec:
        """The codec of `version` for messages of the class `form`, or dicts. Raises InvalidRecordError."""
        codec = self._codecs.get((version, form))
        if codec is None:
            if version not in self.spec.versions:
                raise InvalidRecordError(f"{self.name} has no version {version}, only {self._versions_text()}")
            fields = self.spec.fields
            structs: StructForm = _DictForm(self.name, fields) if form is None else _ClassForm(form)
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


# The two forms of a struct, see struct_codec.py.


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

    def nested(self, what: str, field: FieldSpec) -> StructForm:
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
        return self._class.DEFAULTS[field.attribute]  # the very object that an instance without the value has

    def nested(self, what: str, field: FieldSpec) -> StructForm:
        return _ClassForm(self._class.structs()[field.attribute])


def struct_to_json(fields: tuple[FieldSpec, ...], version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A struct's values as a JSON object. Names missing in `values` have their defaults."""
    node: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions:
            continue
        value = values.get(field.name, field.default)
        if field.tag is None or not is_default(field, value):
            node[field.name] = _field_to_json(field, version, value)
    return node


def _field_to_json(field: FieldSpec, version: int, value: Any) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_value_to_json(field, version, element) for element in value]
    return _value_to_json(field, version, value)


def _value_to_json(field: FieldSpec, version: int, value: Any) -> Any:
    if field.struct is not None:
        return struct_to_json(field.struct, version, value)
    if field.element == "bytes":
        return base64.b64encode(value).decode("ascii")
    if field.element == "records":
        return ""  # Kafka prints records as an empty binary node
    return value


def json_text(node: Any) -> str:
    """`node` (dict, list, str, int, float, bool, None) as Jackson prints it."""
    if isinstance(node, dict):
        return "{" + ",".join(f"{_string_text(name)}:{json_text(value)}" for name, value in node.items()) + "}"
    if isinstance(node, (list, tuple)):
        return "[" + ",".join(json_text(value) for value in node) + "]"
    if isinstance(node, str):
        return _string_text(node)
    if isinstance(node, float):
        return _double_text(node)
    return json.dumps(node)


_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)} | {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    ord("\b"): "\\b",
    ord("\f"): "\\f",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


def _string_text(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _double_text(value: float) -> str:
    """Java's Double.toString: plain from 10^-3 to 10^7, else d.dddE±x; NaN and infinities are quoted."""
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"
