"""Names of columns as Spark's expressions take them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """`name` in backticks, its own doubled: whatever is in it, it is one name."""
    return "`" + name.replace("`", "``") + "`"
