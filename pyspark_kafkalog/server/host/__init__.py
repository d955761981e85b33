"""One committer for all workers of a host: their batches meet in one process, which makes one commit of all.

In reading order:

- channel: what a worker and the committer tell each other, and the memory that they share
- committer: a worker's side, the committer of its requests
- process: the committer's side, a process of its own
"""
