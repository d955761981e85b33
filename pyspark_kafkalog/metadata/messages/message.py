"""Encode, decode and print Kafka's messages from their schemas (schema.py), as Kafka's generated classes do.

A message is a dict of field name to value: int, float, bool, str, bytes, a Uuid as Kafka's 22 character text, None
for null, a tuple for an array, a dict for a struct. Decoding fills in defaults for fields the version lacks, so the
dict is whole; encoding takes defaults for names left out. Tagged fields of tags that the schema lacks are kept under
`UNKNOWN_TAGS`, a tuple of (tag, bytes), and written back in their place. Hostile bytes raise CorruptRecordError,
whatever they are.

Source of the rules: org.apache.kafka.message.MessageDataGenerator and the classes that it generated for Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pyspark_kafkalog.errors import InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.codec import StructCodec
from pyspark_kafkalog.metadata.messages.json_form import struct_to_json
from pyspark_kafkalog.metadata.messages.schema import UNKNOWN_TAGS, MessageSpec, find_spec
from pyspark_kafkalog.metadata.messages.wire import MessageReader
from pyspark_kafkalog.record.header import Buffer

__all__ = ["UNKNOWN_TAGS", "Fields", "MessageSchema"]

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
