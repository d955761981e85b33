"""The error of all codecs for bad compressed bytes.

It has a position in the compressed bytes but no file; compression.py adds the file.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import KafkalogError


class BadCompressedDataError(KafkalogError, ValueError):
    """Compressed bytes break their format or the size limit; `at` is the position in them."""

    def __init__(self, *, at: int, expected: str, found: str) -> None:
        self.at = at
        self.expected = expected
        self.found = found
        super().__init__(f"at byte {at}: expected {expected}, found {found}")

    @classmethod
    def over_limit(cls, at: int, limit_bytes: int) -> BadCompressedDataError:
        """The error for content longer than a batch of this size may hold."""
        return cls(at=at, expected=f"at most {limit_bytes} bytes after decompression", found="more")
