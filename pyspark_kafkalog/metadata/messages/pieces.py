"""Encoded messages as pieces, so that records are sent from where they lie.

A response with records is mostly records. Its pieces are the bytes between them, in one buffer, and the records as the
message holds them: a view of a request, a mapped file, or a `RecordsSlice`, which may be read only when its turn comes.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias


class RecordsSlice(Protocol):
    """Bytes of records that lie elsewhere, in a file for instance: the sender of the message fetches them."""

    @property
    def size_bytes(self) -> int: ...


#: The value of a field of type `records`.
Records: TypeAlias = bytes | memoryview | RecordsSlice
#: What an encoded message consists of.
Piece: TypeAlias = bytes | bytearray | memoryview | RecordsSlice


class MessageWriter(bytearray):
    """The bytes of an encoded message, except records: those keep their place and are not copied."""

    def __init__(self) -> None:
        super().__init__()
        self._outside: list[tuple[int, Records]] = []
        self._outside_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The size of the whole message."""
        return len(self) + self._outside_bytes

    def add_records(self, records: Records, size_bytes: int) -> None:
        """Put records of this size at the end."""
        self._outside.append((len(self), records))
        self._outside_bytes += size_bytes

    def pieces(self) -> list[Piece]:
        """The whole message, in order."""
        if not self._outside:
            return [self]
        found: list[Piece] = []
        start = 0
        view = memoryview(self)
        for at, records in self._outside:
            if at > start:
                found.append(view[start:at])
            found.append(records)
            start = at
        if start < len(self):
            found.append(view[start:])
        return found
