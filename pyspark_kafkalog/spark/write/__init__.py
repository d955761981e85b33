"""Batch and streaming writes.

- plan: the plan of a write, which travels from the driver to the tasks and to the commit
- task: what a task does: it stages its rows
- batch, stream: the writers that Spark calls; their commits
"""
