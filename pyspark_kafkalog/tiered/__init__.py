"""Segments in remote storage (KIP-405), as part of their partitions' logs: copied by brokers, or by this package.

In reading order:

- segments: what is known of one copy of a segment, and which copies hold a partition's log
- remote_log_metadata: the copies that brokers noted in `__remote_log_metadata`, as they are read and written
- objects: the protocol SegmentLayout, where a storage plugin puts a segment's objects; reading objects of a store, or
  files of a directory; a `.log` in windows, ahead of the reader; indexes that a process keeps
- local_layout: that of Kafka's LocalTieredStorage
- aiven_layout, aiven_manifest: that of Aiven's plugin
- own_segments: segments that this package writes, and their layouts
- own_location: where a root may copy its own segments to, as its configurations say
- remote_storage: which store and which layout, as it travels to tasks
- remote_log: the segments of a partition in a store, brokers', tiered and merged ones alike; with the tail of the log,
  local segments or runs, they are one log
"""
