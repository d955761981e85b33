"""Batch and streaming writes.

- batch, stream: the writers that Spark calls
- task: what a task writes, and the plan that it gets
"""
