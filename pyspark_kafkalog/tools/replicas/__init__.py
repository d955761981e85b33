"""The commands of a log directory that is a replica.

In reading order:

- follow: keeps a log directory as a replica of a cluster or of another log directory
- promote: ends following, so that the log directory takes writes
"""
