"""The directions that an option applies to: reads and writes, batch and streaming."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Direction: TypeAlias = Literal["read", "stream", "write"]

#: Batch and streaming reads, batch reads only, streaming reads only, batch and streaming writes.
READ: Final[tuple[Direction, ...]] = ("read", "stream")
BATCH_READ: Final[tuple[Direction, ...]] = ("read",)
STREAM_READ: Final[tuple[Direction, ...]] = ("stream",)
EVERYWHERE: Final[tuple[Direction, ...]] = (*READ, "write")
WRITE: Final[tuple[Direction, ...]] = ("write",)
