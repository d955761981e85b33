"""Staged files: records that a task has written and that are not committed yet. In reading order:

staged_file   one staged file: its name, its writer, its table of batches
row_buffer    joins Arrow batches until they fill record batches
stager        checks, partitions and encodes the records of one topic into staged files
cleanup       removes staged files that will not be committed any more
"""
