"""Staged files: records that a task has written and that are not committed yet. In reading order:

staged_file   one staged file: its name, its writer, its table of batches; removal of abandoned ones
stager        joins, checks, partitions and encodes the records of one topic into staged files
"""
