"""The metadata of a native root: its commit log, the image that the commits add up to, and the loop that commits.

In reading order:

- messages: Kafka's message schemas as data, their codec, metadata records
- acl: access control entries and their records; addresses of clients in one form, and ranges of them
- users: credentials of users, quotas of users, clients and addresses, and their records
- extents: where in an object store the data of partitions is
- image: the immutable state that all commits add up to, and the records that rebuild it
- commit_log: one commit, one record batch under a name that can be created once
- stored_partitions: the partitions of a snapshot, decoded a run at a time
- extent_changes: what a commit changes in extents and objects
- delta: how each record type changes the image
- invariants: what must hold for every commit, and what others may not change in a root that follows a leader
- snapshots: their format, loading the newest
- root_format: the marker of a native root and the version of its format
- root_lock: one writer at a time
- backend: what the store needs of the place that a root is at; when a snapshot is due
- local: the backend on a file system
- store: the image kept up to date, and the loop that commits to it
- history: the retained commits, as `kafkalog history` lists them
"""
