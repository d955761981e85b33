"""Batch reads, and what streaming reads share with them.

- batch: the reader that Spark calls
- plan: from a subscription to one range of offsets for each task
- filters: pushed-down filters
- task: the read of a range, in a task
"""
