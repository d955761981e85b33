"""Quoting of column names for Spark's expressions."""

from __future__ import annotations


def quoted(name: str) -> str:
    """`name` in backticks, with backticks in it doubled, so that any name is a single identifier."""
    return "`" + name.replace("`", "``") + "`"
