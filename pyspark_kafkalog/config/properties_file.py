"""Java's properties files: `meta.properties` and `server.properties`.

A line holds a key, then `=`, `:` or blanks, then the value. Lines that begin with `#` or `!` are comments. A backslash
at the end of a line joins it to the next, whose leading blanks are removed; elsewhere it escapes (`\\t`, `\\n`, `\\r`,
`\\f`, `\\uXXXX`; any other character stands for itself). Bytes are ISO-8859-1. The last of equal keys counts. Source of
the rules: java.util.Properties (load, store).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES: Final = {character: f"\\{letter}" for letter, character in _ESCAPED.items()} | {
    special: f"\\{special}" for special in "\\=:#!"
}
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parse_properties(data: bytes, *, file: str) -> dict[str, str]:
    """Keys and values of a properties file's bytes. Raises DiskFormatError for a bad `\\u` escape, the only error."""
    properties = {}
    for line, position in _logical_lines(data.decode("latin-1")):
        key_end, value_start = _split(line)
        key = _unescape(line[:key_end], position, file)
        properties[key] = _unescape(line[value_start:], position, file)
    return properties


def format_properties(properties: Mapping[str, str], *, written_at: datetime | None = None) -> bytes:
    """The file that Java writes for `properties`, in the given order, with its comment and date lines on top."""
    at = (written_at or datetime.now(timezone.utc)).astimezone(timezone.utc)
    date = f"{_DAYS[at.weekday()]} {_MONTHS[at.month - 1]} {at:%d %H:%M:%S} UTC {at:%Y}"
    lines = ["#", f"#{date}"]
    lines += [f"{_escape(key, is_key=True)}={_escape(value, is_key=False)}" for key, value in properties.items()]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Each line with its continuations joined, and its position; comments and blank lines left out."""
    parts: list[str] = []
    start = position = 0
    for natural in _natural_lines(text):
        line, length = natural
        stripped = line.lstrip(_BLANKS)
        if not parts:
            start = position
            if not stripped or stripped[0] in "#!":
                position += length
                continue
        position += length
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            parts.append(stripped[:-1])
            continue
        yield "".join([*parts, stripped]), start
        parts = []
    if parts and "".join(parts):
        yield "".join(parts), start


def _natural_lines(text: str) -> Iterator[tuple[str, int]]:
    """Each line without its end, and its length with it."""
    at = 0
    for end in _LINE_END.finditer(text):
        yield text[at : end.start()], end.end() - at
        at = end.end()
    if at < len(text):
        yield text[at:], len(text) - at


def _split(line: str) -> tuple[int, int]:
    """The positions at which the key ends and the value starts."""
    key_end = 0
    while key_end < len(line) and line[key_end] not in "=:" + _BLANKS:
        key_end += 2 if line[key_end] == "\\" else 1
    key_end = min(key_end, len(line))
    rest = line[key_end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key_end, len(line) - len(rest)


def _unescape(text: str, position: int, file: str) -> str:
    if "\\" not in text:
        return text
    result = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            result.append(text[at])
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        at += 2
        if letter == "u":
            digits = text[at : at + 4]
            if not _UNICODE.fullmatch(digits):
                raise DiskFormatError(
                    file=file,
                    position=position,
                    expected="four hexadecimal digits after \\u in the line here",
                    found=repr(digits),
                    advice="correct the file",
                )
            result.append(chr(int(digits, 16)))
            at += 4
        else:
            result.append(_ESCAPED.get(letter, letter))
    # Characters beyond the first 65,536 come as two escapes, a surrogate pair.
    return "".join(result).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, is_key: bool) -> str:
    result = []
    for index, character in enumerate(text):
        if character == " ":
            result.append("\\ " if is_key or index == 0 else " ")
        elif character in _ESCAPES:
            result.append(_ESCAPES[character])
        elif " " < character < "\x7f":
            result.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            result += [f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2)]
    return "".join(result)
