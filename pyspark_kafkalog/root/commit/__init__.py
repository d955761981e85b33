"""Commits of changes of partitions: what is appended or truncated, planned on the newest image, stored, and published.

- changes, follower_changes: what a producer, a coordinator or a follower changes
- plan, follower_plan: the plan of a commit, decided before anything is stored
- file_engine, open_logs: commits to logs on a file system, and the logs that stay open between them
- object_engine: commits to an object store
- staged_write, staged_objects: the commit of a write's staged records
- log_starts: increases of log start offsets
"""
