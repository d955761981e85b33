"""Compression codecs of record batches, with bounds on decompressed sizes."""
