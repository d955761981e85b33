"""Compression codecs of record batches, with bounds on decompressed sizes.

codec     names, levels, limits, and the choice of a codec
gzip      one or more gzip members
snappy    Java's framing, or one raw block
lz4       one LZ4 frame of independent blocks
zstd      one or more zstd frames
"""
