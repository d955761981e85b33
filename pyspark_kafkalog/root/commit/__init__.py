"""Commits of changes of partitions: planned on the newest image, carried out where the records are, and published.

- changes: what a leader, or a follower, changes in partitions
- checked_batches: batches of clients that were checked before their commit
- leader_plan: what each partition gets by a leader's commit
- committer: the writers that plan a commit and have an engine carry it out
- file_engine, open_logs: commits on a file system, and the logs that stay open between them
- object_engine, runs: commits in an object store, truncations in one, and the runs that commits name
- cut_files: the files of what truncations drop
- staging, staged_write: where a task of a write puts its records, and their commit
- log_starts: increases of log start offsets
"""
