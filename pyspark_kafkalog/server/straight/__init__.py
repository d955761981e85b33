"""The usual requests of producers and consumers, read at fixed places; all others take the general way.

In reading order:

- produce: one batch for one partition, answered by one structure
- offsets: an OffsetCommit, whose records are made of the bytes of the request
- fetch: a Fetch, and its response, around the general handler
"""
