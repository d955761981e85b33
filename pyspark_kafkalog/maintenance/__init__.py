"""Maintenance of a log directory while readers and writers continue.

jobs/       how all of these run: over all partitions, in this process or as Spark tasks, with reports
swap        replacing and deleting the files of segments
retention/  deleting old records
cleaner/    compaction: Kafka's log cleaner
merge       merging small closed segments
tier        copying closed segments to remote storage
verify/     checking every byte
reindex     rebuilding indexes and producer snapshots from the `.log` of segments
repair      rebuilding derived files after a verification
export/     backups, and the return to a broker
objects/    merging and cleaning up in object stores
metrics     metrics under Kafka's names
"""
