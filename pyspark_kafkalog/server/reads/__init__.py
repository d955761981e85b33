"""What readers ask a server: Fetch, ListOffsets, OffsetForLeaderEpoch, over any root.

In reading order:

- fetch, fetch_plan: the request with its limits and its wait; the work on its partitions
- fetch_sessions: which partitions are kept between requests (KIP-227)
- offsets: offsets at a time; leader epochs and their ends; the partitions of the root as requests name them
- log_slices: whole batches of a partition at an offset, wherever its log lies; the open segments, for sendfile
"""
