"""Writes of Kafka's protocol server: batches of clients and coordinators, appended as a partition's leader does.

In reading order:

- units: what goes into one commit together, and `LeaderWriter`, which makes the commits
- plan: what each partition gets in a commit, checked before anything is stored
- file_writer: the writer of roots on a file system
- open_log_commits, open_logs: its commits of appends, the logs that it keeps open between them
- object_writer: the writer of roots in an object store
- open: makes the writer of a root
"""
