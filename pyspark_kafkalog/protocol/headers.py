"""Frames of requests and responses: a size, a header, a message.

    request:   size (4) | api key (2) | api version (2) | correlation id (4) | client id | [tagged fields] | message
    response:  size (4) | correlation id (4) | [tagged fields] | message

Headers have tagged fields in the flexible versions of an API. Two exceptions: the client id has an int16 length in all
versions, and the response header of ApiVersions has no tagged fields in any, since its reader does not know yet which
versions the server has. A server closes the connection on a request that it cannot parse, and on one of an API or a
version that it does not have; only ApiVersions is answered in version 0 then (KIP-511).

Source of the rules: org.apache.kafka.common.requests.RequestHeader, ResponseHeader and RequestContext of Kafka 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeVar

from pyspark_kafkalog.errors import InvalidRecordError, UnsupportedApiError
from pyspark_kafkalog.metadata.messages.schema import FrameReader, MessageWriter, Piece, write_unsigned_varint
from pyspark_kafkalog.protocol.api import Api, ApiKey, find_api
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.units import INT16_MAX, INT32_MAX
from pyspark_kafkalog.values import quick_dataclass

_M = TypeVar("_M", bound=ApiMessage)

#: The elements that the arrays of a request have together at most; so many are read within a second. Kafka has no such
#: limit, but clients of a large cluster stay far below it.
REQUEST_ELEMENTS_MAX: Final = 250_000
#: The size of a frame, which precedes it and does not count itself.
FRAME_SIZE: Final = struct.Struct(">i")
_REQUEST_START: Final = struct.Struct(">hhi")
_CORRELATION_ID: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


@quick_dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request whose header is parsed; `reader` stands at its message.

    A null client id is "". `is_supported` is false for ApiVersions of an unknown version: it has no `body`, and its
    response is of version 0 and says UNSUPPORTED_VERSION.
    """

    api: Api
    api_version: int
    correlation_id: int
    client_id: str
    reader: FrameReader

    @property
    def is_supported(self) -> bool:
        return self.api_version in self.api.versions

    @property
    def has_many_elements(self) -> bool:
        """Whether `body` has found more elements than `parse_request` was to accept."""
        return self.reader.elements_left < 0

    def body(self) -> ApiMessage:
        """The message; its records are views of the frame. Raises CorruptRecordError. To be called once.

        As in Kafka, bytes that follow the message are ignored.
        """
        return self.api.request.decode_from(self.reader, self.api_version, allow_trailing=True)

    def encode_response(self, response: ApiMessage) -> list[Piece]:
        """The frame of the response to this request, its size included."""
        version = self.api_version if self.is_supported else 0
        return encode_response(self.api, version, self.correlation_id, response)


def parse_request(frame: bytes | bytearray | memoryview, *, elements_max: int = REQUEST_ELEMENTS_MAX) -> ParsedRequest:
    """A request from its frame, without the size that precedes it. Its arrays may have `elements_max` together.

    Raises CorruptRecordError, or UnsupportedApiError for an API or version that this package does not have.
    """
    reader = FrameReader(frame, file="<request>", elements_max=elements_max)
    start = reader.advance(_REQUEST_START.size, "the header of a request")
    api_key, api_version, correlation_id = _REQUEST_START.unpack_from(frame, start)
    api = find_api(api_key)
    if api_version not in api.versions and api.key != ApiKey.API_VERSIONS:
        raise UnsupportedApiError(f"{api.key.name} has no version {api_version}")
    reader.file = f"<{api.key.name} request of version {api_version}>"
    client_id = _read_client_id(reader)
    if api.is_flexible(api_version):
        skip_tagged_fields(reader)
    return ParsedRequest(api, api_version, correlation_id, client_id, reader)


def _read_client_id(reader: FrameReader) -> str:
    length = _INT16.unpack_from(reader.data, reader.advance(_INT16.size, "the length of the client id"))[0]
    if length < 0:
        return ""
    return reader.take(length, "the client id").decode("utf-8", errors="replace")


def skip_tagged_fields(reader: FrameReader) -> None:
    """Step over the tagged fields of a header, of which Kafka has none so far."""
    count = reader.unsigned_varint("the number of tagged fields")
    reader.claim(count, "the tagged fields of a header")
    last_tag = -1
    for _ in range(count):
        tag = reader.unsigned_varint("a tag")
        if tag <= last_tag:
            raise reader.error(expected=f"a tag above {last_tag}", found=str(tag))
        last_tag = tag
        reader.advance(reader.unsigned_varint("the size of a tagged field"), f"tagged field {tag}")


def encode_response(api: Api, api_version: int, correlation_id: int, response: ApiMessage) -> list[Piece]:
    """The frame of a response, its size included. Raises InvalidRecordError for values that the schema forbids."""
    out = MessageWriter()
    out += FRAME_SIZE.pack(0)
    out += _CORRELATION_ID.pack(correlation_id)
    if _has_tagged_fields_in_response_header(api, api_version):
        write_unsigned_varint(out, 0)
    return _finish(out, response, api_version)


def encode_request(
    api: Api, api_version: int, correlation_id: int, client_id: str | None, request: ApiMessage
) -> list[Piece]:
    """The frame of a request, its size included. Raises InvalidRecordError for values that the schema forbids."""
    out = MessageWriter()
    out += FRAME_SIZE.pack(0)
    out += _REQUEST_START.pack(api.key, api_version, correlation_id)
    client = b"" if client_id is None else client_id.encode("utf-8", errors="replace")
    if len(client) > INT16_MAX:
        raise InvalidRecordError(f"a client id has at most {INT16_MAX} bytes, not {len(client)}")
    out += _INT16.pack(-1 if client_id is None else len(client)) + client
    if api.is_flexible(api_version):
        write_unsigned_varint(out, 0)
    return _finish(out, request, api_version)


def _finish(out: MessageWriter, message: ApiMessage, api_version: int) -> list[Piece]:
    message.encode_to(out, api_version)
    size_bytes = out.size_bytes - FRAME_SIZE.size
    if size_bytes > INT32_MAX:
        raise InvalidRecordError(f"a frame has at most {INT32_MAX} bytes, not {size_bytes}")
    FRAME_SIZE.pack_into(out, 0, size_bytes)
    return out.pieces()


def decode_response(
    api: Api, api_version: int, frame: bytes | bytearray | memoryview, response: type[_M]
) -> tuple[int, _M]:
    """The correlation id and the message of a response, from its frame without the size. Raises CorruptRecordError."""
    reader = FrameReader(frame, file=f"<{api.key.name} response of version {api_version}>")
    start = reader.advance(_CORRELATION_ID.size, "the correlation id")
    correlation_id = _CORRELATION_ID.unpack_from(frame, start)[0]
    if _has_tagged_fields_in_response_header(api, api_version):
        skip_tagged_fields(reader)
    return correlation_id, response.decode_from(reader, api_version)


def _has_tagged_fields_in_response_header(api: Api, api_version: int) -> bool:
    return api.is_flexible(api_version) and api.key != ApiKey.API_VERSIONS


def joined(pieces: Sequence[Piece]) -> bytes:
    """The pieces of a message without slices of records as one. Raises InvalidRecordError for such a slice."""
    for piece in pieces:
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise InvalidRecordError(f"{piece!r} has no bytes")
    return b"".join(pieces)  # type: ignore[arg-type]  # checked above
