"""Kafka's files on disk, without a root's metadata. In reading order:

names        names of topics, partition directories and files
below_root   opening files and directories of a root without following links; several directories as one path
direct_io    writes past the page cache, and the memory for them
filesystem   the calls that change the file system; flush modes; file operations in threads; the clock
artefacts/   the small files of a partition directory and of a root, one format a module
segment/     one segment: its log file and its indexes
log/         a partition's log: its segments and producers; appending, loading, reading
staged_file  files of records that a write has put on disk but not committed; removal of abandoned ones
staged_parts each partition's batches in the staged files of all tasks of a write
stager       joins, checks, partitions and encodes the records of one topic into staged files
objects/     the same in an object store: batches of many partitions in one object, and how they are read
"""
