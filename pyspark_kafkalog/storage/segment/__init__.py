"""One segment of a log. In reading order:

segment         a segment's files, open for their writer
index_entries   Kafka's rules for index entries and for rolling, for a table of batches at once
kernels_index   these rules, compiled
recovery        re-reading a segment: truncation at damage, and rebuilding its indexes; the batches of a closed segment
reader          what readers read: extents of a log, and the sources of their bytes; reading one without a lock
stored          a partition's segments with their sizes and timestamps
"""
