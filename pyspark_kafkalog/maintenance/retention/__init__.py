"""Deletion of old records: by time, by size, and below a given offset.

delete          retention: which segments are deleted by Kafka's rules, the commit, the job over all partitions
delete_records  Kafka's DeleteRecords; the files below a log start offset, and Kafka's files that depend on it
"""
