"""Appending to a root as a follower of a leader does: batches keep the leader's offsets and epochs.

In reading order:

- staged_batches, runs: batches that a task has put into the store of a root, and how it puts them
- changes: what a follower changes in a partition, and `FollowerWriter`, which commits it
- plan: what the writers of both kinds of roots decide alike
- cut_files: the files of what truncations cut
- file_writer: the writer of roots on a file system
- object_writer, object_truncation: the writer of roots in an object store, and how it truncates
- open: begins following, and makes the writer of a root
- promote: ends following: the root takes writes
"""
