"""Compiled loops over bytes of record batches."""
