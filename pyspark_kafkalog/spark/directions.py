"""What an option is for: reads and writes, batch and streaming."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Direction: TypeAlias = Literal["read", "stream", "write"]

#: In batch and streaming reads, in batch reads alone, in streaming reads alone, in writes of both kinds.
READ: Final[tuple[Direction, ...]] = ("read", "stream")
BATCH_READ: Final[tuple[Direction, ...]] = ("read",)
STREAM_READ: Final[tuple[Direction, ...]] = ("stream",)
EVERYWHERE: Final[tuple[Direction, ...]] = (*READ, "write")
WRITE: Final[tuple[Direction, ...]] = ("write",)
