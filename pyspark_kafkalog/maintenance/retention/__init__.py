"""Deletion of old records: by time, by size, and below a given offset.

plan            which segments are deleted, by Kafka's rules
delete          retention: the commit, the files, the job over all partitions
delete_records  Kafka's DeleteRecords; the files below a log start offset, and Kafka's files that depend on it
"""
