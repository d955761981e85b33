"""What readers ask a server: Fetch, ListOffsets, OffsetForLeaderEpoch, over any root.

In reading order:

- fetch, fetch_plan: the request with its limits and its wait; the work on its partitions
- fetch_requests, fetch_sessions: which partitions a request reads; those that are kept between requests (KIP-227)
- list_offsets, leader_epochs: offsets at a time; leader epochs and their ends
- partitions: the partitions of the root as requests name them
- log_slices: whole batches of a partition at an offset, wherever its log lies
- segment_slices, segment_files: batches out of a local segment, for sendfile; the open segments
"""
