"""Verification of a log directory.

verify      a whole verification: what to check of each kind of root, plan units, check each, combine the outcomes
findings    one fault at one place, with advice; the outcomes of units
scope       what a partition in a directory is verified against
root        a root apart from its partitions: the commit log, meta.properties, checkpoints, entries of no partition
partition   a partition's directory, its small files, the order of its segments
replicas    the replicas of a partition in several directories of brokers, batch by batch
segment     one segment: its `.log` and every file derived from it
batches     walking a `.log` to its end, whatever it contains
indexes     offset and time index against the batches
producers   producer snapshots and transaction index against the batches
objects     what a root has in a store: the objects, segments and runs
remote      remote storage of brokers: the objects, what brokers noted of them, the batches in them
job         verification of all partitions in tasks, and the repair that may follow
"""
