"""A hint about a commit log on a file system: one offset in a small file, written without waiting for the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pyspark_kafkalog.record.header import crc32c
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import FileSystem, pread

_HINT_DIGITS: Final = 20
_HINT_BYTES: Final = _HINT_DIGITS + 10


def _hint_text(offset: int) -> bytes:
    digits = b"%020d" % offset
    return b"%s %08x\n" % (digits, crc32c(digits))


def _parsed(data: bytes) -> int | None:
    digits = data[:_HINT_DIGITS]
    if len(data) != _HINT_BYTES or not digits.isdigit() or data != _hint_text(int(digits)):
        return None
    return int(digits)


class OffsetHint:
    """A small file with one offset of the commit log as a hint; overwritten in place, without waiting for the disk.

        00000000000000000194 9b1c2f7e\\n     20 digits, a blank, the CRC-32C of the digits

    The offset may be behind but is never ahead: it is written after the change that it records. A crash or a power
    failure leaves the file unchanged, short, or mixed; content that does not match the CRC counts as no hint.
    """

    def __init__(self, path: Path, fs: FileSystem) -> None:
        self.path = path
        self._fs = fs
        self._known: tuple[bytes, int | None] = b"", None  # content that was read, and what it says

    def read(self) -> int | None:
        """The offset; None if the file is missing or its content invalid. Raises OSError if it cannot be read."""
        try:
            fd = open_file(self.path)
        except FileNotFoundError:
            return None
        try:
            data = pread(fd, _HINT_BYTES + 1, 0)
        finally:
            os.close(fd)
        if data != self._known[0]:
            self._known = data, _parsed(data)
        return self._known[1]

    def write(self, offset: int) -> None:
        """Replace the hint. Raises OSError."""
        fd = self._fs.open(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            self._fs.pwrite_all(fd, _hint_text(offset), 0)
        finally:
            self._fs.close(fd, self.path)
