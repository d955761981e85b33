"""Verification of a log directory.

verify      a whole verification: plan units, check each, combine the outcomes
findings    one fault at one place, with advice
scope       what a partition is verified against
root        the commit log, meta.properties, checkpoints
objects     a log directory in an object store: its commit log, objects, runs and segments
partition   a partition's directory, its small files, the order of its segments
replicas    the replicas of a partition in several directories of brokers, batch by batch
segment     one segment: its `.log` and every file derived from it
batches     walking a `.log` to its end, whatever it contains
indexes     offset and time index against the batches
remote      remote storage: the objects, what brokers noted of them, the batches in them
own_remote  what a root on a file system has copied to remote storage
producers   producer snapshots and transaction index against the batches
job         verification of all partitions in tasks, and the repair that may follow
"""
