"""Human-readable numbers, with their nouns and units."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNIT_BYTES: Final = 1024


def plural(count: int, one: str, many: str | None = None) -> str:
    """`count` with its noun, as "1 batch" or "3 batches"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def size_text(size_bytes: int) -> str:
    """A size in bytes with a binary unit, to two or three digits: 999 B, 1.5 MiB, 120 GiB."""
    size, unit = float(size_bytes), _UNITS[0]
    for unit in _UNITS:
        if size < _UNIT_BYTES or unit == _UNITS[-1]:
            break
        size /= _UNIT_BYTES
    return f"{size:.1f} {unit}" if unit != _UNITS[0] and size < 100 else f"{size:.0f} {unit}"
