"""Produce: batches of clients become units of the next commit.

In reading order:

- produce: the handler: checks of a request, one unit a partition, the answer
- handlers: the table of this handler
"""
