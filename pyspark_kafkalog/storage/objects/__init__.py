"""Data objects: record batches of many partitions in one object of a store, as a write puts them there.

In reading order:

data_object       the format: runs of batches with their tables, and the footer; keys; checks of all of it
producer_batches  what commits say of the batches of producers in runs
upload            makes data objects from a task's staged files, or one small body that goes into the commit
compose           makes the body of a data object of batches in memory, for a server's commit
run_source        the bytes of neighbouring runs, with the offsets and leader epochs that the log gives their batches
run_extent        neighbouring runs as one extent of a partition's log
spool             data objects that several readers want parts of, each read once
"""
