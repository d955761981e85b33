"""Deletion of old records: by time, by size, and below a given offset.

delete_records  Kafka's DeleteRecords; the files below a log start offset, and Kafka's files that depend on it
plan            which segments are deleted by Kafka's rules
delete          retention: the logs of either kind of root, the commit, the job over all partitions
"""
