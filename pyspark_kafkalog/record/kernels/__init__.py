"""Compiled loops over bytes of record batches.

cache     compiles kernels and caches their machine code
native    raw memory access, varints, and C functions that kernels call: CRC-32C, zstd
scan      batch headers and CRCs of a run of bytes
decode    the fields of one record, checked; records to columns
encode    columns to batches
validate  checks of the records that clients send
zstd      zstd frames of many batches
"""
