"""What brokers with tiered storage (KIP-405) copied to remote storage, as part of their partitions' logs.

In reading order:

- segments: what is known of one copy of a segment
- remote_log_metadata: the copies that brokers noted in `__remote_log_metadata`
- lineage: which of them hold a partition's log
- objects: reading objects of a store, or files of a directory
- byte_source: reads of a remote `.log` in windows, ahead of the reader
- layouts: where storage plugins put a segment's objects, and how they write them
- index_cache: indexes that a process keeps
- remote_storage: which store and which layout, as it travels to tasks
- remote_log: the segments of a partition in a store, brokers', tiered and merged ones alike
- extents: these segments and the tail of the log, local segments or runs, as one log
- own_layouts: the layouts in which this package writes segments
- own_segments: segments that this package writes: merged runs of object roots, and tiered segments of file roots
- own_storage: where a root on a file system copies its closed segments to
- metadata_topic: `__remote_log_metadata` as it is written
"""
