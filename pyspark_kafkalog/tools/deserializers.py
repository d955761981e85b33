"""Keys, values and headers as text, by the class names of Kafka's deserializers.

The text is that of Java's toString of the object, as kafka-console-consumer prints it. The exception is
ByteArrayDeserializer: Java prints only an address, this module the bytes. Source of the rules:
org.apache.kafka.common.serialization.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.messages.json_form import json_text
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.dump.java_text import decode_utf8

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
