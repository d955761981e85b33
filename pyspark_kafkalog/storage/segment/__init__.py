"""One segment of a log. In reading order:

segment         a segment's files, open for their writer
kernels_index   Kafka's rules for index entries and for rolling, compiled, for a table of batches at once
recovery        re-reading a segment: truncation at damage, and rebuilding its indexes; the batches of a closed segment
reader          what readers read: extents of a log, and the sources of their bytes; reading one without a lock
stored          a partition's segments with their sizes and timestamps
"""
