"""Compiled loops over bytes of record batches.

cache     compiles kernels and caches their machine code
memory    raw memory access and varints
native    C functions that kernels call: CRC-32C, zstd
scan      batch headers and CRCs of a run of bytes
layout    the fields of one record, checked
decode    records to columns
encode    columns to batches
validate  checks of the records that clients send
zstd      zstd frames of many batches
"""
