"""Deletion of old records: by time, by size, and below a given offset.

delete_records  Kafka's DeleteRecords; the files below a log start offset, and Kafka's files that depend on it
plan            which segments are deleted by Kafka's rules
files           what retention does to the files of a log
delete          retention: the commit, the job over all partitions
"""
