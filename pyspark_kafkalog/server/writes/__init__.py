"""Produce: batches of clients become units of the next commit.

In reading order:

- produce: the handler: checks of a request, one unit a partition, the answer
- batch_checks: checks of batches that take long to decompress, before the commit
- read_only: the handler of a server that only reads
"""
