"""Deletion of old records: by time, by size, and below a given offset.

delete          retention: plan, commit, delete; the job over all partitions
plan            which segments are deleted, by Kafka's rules
log_start       the files below the log start offset, and Kafka's files that depend on it
delete_records  Kafka's DeleteRecords
"""
