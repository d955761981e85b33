"""Numbers with their nouns."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """`count` with its noun, as "1 batch" or "3 batches"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
