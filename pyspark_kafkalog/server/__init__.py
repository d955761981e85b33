"""A server for Kafka's protocol over a root: unmodified Kafka clients read and write a log directory.

In reading order:

- context: what a handler gets: the request, the root, the committer, the cluster of servers
- sending: a response over its connection: memory, and slices of segment files by sendfile
"""
