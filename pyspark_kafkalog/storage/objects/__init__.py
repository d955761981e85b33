"""Data objects: record batches of many partitions in one object of a store, as a write puts them there.

In reading order:

data_object       the format: runs of batches with their tables, and the footer; keys; checks; rows of producers
upload            makes data objects from a task's staged files, and of a server's batches
run_source        neighbouring runs as one extent of a partition's log, with the log's offsets and leader epochs
spool             data objects that several readers want parts of, each read once
"""
