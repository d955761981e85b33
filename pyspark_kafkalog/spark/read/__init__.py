"""Batch reads, and what streaming reads share with them.

- reader: the reader that Spark calls, and the read of a range, in a task
- plan: from a subscription to one range of offsets for each task
- filters: pushed-down filters
"""
