"""Batch and streaming writes.

- plan: the plan of a write, which travels from the driver to the tasks and to the commit
- writers: the batch and the streaming writer that Spark calls; what a task does: it stages its rows; the commits
"""
