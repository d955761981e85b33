"""Text formatting of Java and Scala, so that the dump's text equals kafka-dump-log's byte for byte.

Covers path normalisation (java.io.File), UTF-8 decoding of malformed bytes (java.lang.String), number parsing and
wrapping, and the order in which scala.collection.mutable.HashMap lists its keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from pyspark_kafkalog.object_store.location import is_object_url
from pyspark_kafkalog.units import INT64_MAX

_LONG = re.compile(r"[+-]?\d+")
_REPEATED_SLASH = re.compile(r"/{2,}")
# Java treats an encoded surrogate (ED A0..BF and the next byte) as one malformed sequence, Python as one per byte.
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def wrap_int32(value: int) -> int:
    """`value` wrapped as in Java's int arithmetic."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def wrap_int64(value: int) -> int:
    """`value` wrapped as in Java's long arithmetic."""
    return ((value + 0x8000000000000000) & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


def parse_long(text: str) -> int | None:
    """Long.parseLong: the number, or None where Java throws NumberFormatException."""
    if not _LONG.fullmatch(text) or len(text) > 4096:
        return None
    value = int(text)
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None


def normalize_path(path: str) -> str:
    """java.io.File.toString of a path: repeated and trailing slashes removed, `.` and `..` kept. URLs stay as they
    are."""
    if is_object_url(path):
        return path
    path = _REPEATED_SLASH.sub("/", path)
    return path if path == "/" else path.removesuffix("/")


def absolute_path(path: str) -> str:
    """java.io.File.getAbsolutePath of a normalised path: prefixed with the working directory, nothing resolved."""
    if path.startswith("/") or is_object_url(path):
        return path
    return f"{os.getcwd()}/{path}" if path else os.getcwd()


def decode_utf8(data: bytes) -> str:
    """new String(data, UTF_8): one U+FFFD for each malformed sequence, as Java counts them."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


def split_files(text: str) -> list[str]:
    """String.split(","): as in Python, but without empty strings at the end."""
    names = text.split(",")
    if names == [""]:
        return names
    while names and not names[-1]:
        names.pop()
    return names


class ScalaHashOrder:
    """The keys of a scala.collection.mutable.HashMap[String, _], in its iteration order.

    kafka-dump-log keeps its findings by file name in such maps and prints them in table order, so the order of
    several files depends on their names' hash codes and on how often the table grew.
    """

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}
        self._table_size = 16

    def put(self, key: str) -> None:
        """As HashMap.put: the table may grow even if the key already exists."""
        if len(self._hashes) + 1 >= self._table_size * 3 // 4:
            self._table_size *= 2
        if key not in self._hashes:
            self._hashes[key] = _scala_hash(key)

    def __iter__(self) -> Iterator[str]:
        mask = self._table_size - 1
        return iter(sorted(self._hashes, key=lambda key: (self._hashes[key] & mask, self._hashes[key])))


def _scala_hash(key: str) -> int:
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return wrap_int32(code ^ (code >> 16))
