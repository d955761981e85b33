"""Constants of zstd frames and their blocks (RFC 8878), shared by the plain and the compiled code."""

from __future__ import annotations

MAGIC = 0xFD2FB528
MAX_BLOCK_BYTES = 128 * 1024
RAW, RUN, COMPRESSED = 0, 1, 2
BLOCK_HEADER_BYTES = 3
CHECKSUM_BYTES = 4
