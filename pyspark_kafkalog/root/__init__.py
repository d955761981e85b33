"""Log directories as a whole: native ones and brokers', their topics, partitions and writes.

In reading order:

- protocol: `Root`, what the rest of the package needs of a log directory
- snapshot, planned, reads: topics and partitions as of one time, and what a reader does not get of them; partitions as
  of a plan; their readers and leader epochs
- native, file_root: a native log directory, as of its commit log, that may follow a leader; one on a file system
- kinds: what to do for the kind of a root, the one decision by it outside this package
- object_root, object_log, object_producers: one in an object store; a partition's log as of an image, and what a
  LogReader reads of it, inline data too; the producers of partitions
- bootstrap: creates a native log directory
- admin: records that change topics and broker-level settings
- directories: the partitions' directories, which follow the commits
- writes: transactional ids of writes, and the result of their commit
- commit: commits of appends, truncations and log starts: of writes, of a server, and of a follower
- internal_topic: follows the records of a coordinator's topic
- transactions: states of transactional ids, transactions that are open, and how they end
- brokers: roots that are only read: the directories of brokers, and their remote storage
- adopt: converts a broker's directory into a native one
"""
