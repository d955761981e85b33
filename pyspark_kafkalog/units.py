"""Limits of integers, units of time and size, and values as text."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, Final

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)

NS_PER_MS: Final = 1_000_000
US_PER_MS: Final = 1000
#: The last of Spark's timestamps, which are microseconds in 64 bits; the first is its negative.
MAX_SPARK_TIMESTAMP_MS: Final = INT64_MAX // US_PER_MS
SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
#: The start of timestamps.
EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: What an error shows of a file's content: so many pieces, and so many characters or bytes of each.
_PIECES_MAX: Final = 4
_PIECE_MAX: Final = 80
_NULS: Final = re.compile("\0+")
_NUL_BYTES: Final = re.compile(b"\0+")

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def plural(count: int, one: str, many: str | None = None) -> str:
    """`count` with its noun, as "1 batch" or "3 batches"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def iso_utc(timestamp_ms: int) -> str:
    """The time in UTC, to the millisecond; a number for a time that no calendar has."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def size_text(size_bytes: int) -> str:
    """A size in bytes with a binary unit, to two or three digits: 999 B, 1.5 MiB, 120 GiB."""
    size, unit = float(size_bytes), _SIZE_UNITS[0]
    for unit in _SIZE_UNITS:
        if size < KIB or unit == _SIZE_UNITS[-1]:
            break
        size /= KIB
    return f"{size:.1f} {unit}" if unit != _SIZE_UNITS[0] and size < 100 else f"{size:.0f} {unit}"


def content_text(content: str | bytes) -> str:
    """The beginning of `content` from a file for an error: quoted, with its NUL bytes counted.

    After a power failure a file can have its size and no content: only NUL bytes.
    """
    matches = _NULS.finditer(content) if isinstance(content, str) else _NUL_BYTES.finditer(content)
    pieces: list[str] = []
    at = 0
    for match in matches:
        if match.start() > at:
            pieces.append(repr(content[at : match.start()][:_PIECE_MAX]))
        pieces.append(plural(match.end() - match.start(), "NUL byte"))
        at = match.end()
        if len(pieces) >= _PIECES_MAX:
            break
    if at < len(content) or not pieces:
        pieces.append(repr(content[at:][:_PIECE_MAX]))
    return ", ".join(pieces[:_PIECES_MAX])


def json_line(tree: Any) -> str:
    """`tree` as JSON in one line that ends with a line feed: characters that are not printable are escaped.

    json.dumps alone leaves those above U+007E, such as U+009B, which begins a command of a terminal, and U+202E, which
    turns the direction of the text.
    """
    text = json.dumps(tree, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    return text + "\n"


def is_host(text: str) -> bool:
    """Whether the text can be the name or the address of a host: the resolver raises UnicodeError for others."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def printable(text: str, *, kept: str = "") -> str:
    """`text` with escapes for all characters that are not printable and not in `kept`.

    A name that a client has chosen can then neither begin a line, nor move a terminal's cursor.
    """
    plain = text
    for each in kept:
        plain = plain.replace(each, "")
    if plain.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
