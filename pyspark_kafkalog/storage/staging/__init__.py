"""Staged files: records that a task has written and that are not committed yet."""
