"""Compaction of logs: Kafka's log cleaner.

clean            one cleaning of one partition, in one process or in several tasks
plan             which part of a log is dirty, whether a cleaning is due, and how segments are grouped
record_chunks    the records of a segment, and the hash of each key
offset_map       the latest offset of each key, and the records that survive by it
filter           which batches stay, by Kafka's rules, and the bytes of those that do
copy             copying the survivors of a group of segments into a new segment
kernels_cleaner  the compiled parts of the above
logs             the logs that a cleaning works on
objects          those of object roots
job              cleaning all partitions that are due, the filthiest first
run_record       what a run stores for its metrics: uncleanable partitions, and totals
"""
