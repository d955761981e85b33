"""The command dump-log: prints the contents of a log's files as kafka-dump-log does.

log         the command, and dumps of .log, .checkpoint and .staged files
remote      what is in an object store, by URL or by partition and offset, as a scratch file
walk        iterates over batches and records, tolerating damage
indexes     dumps of indexes and producer snapshots, and the mismatches found
printers    the output as text or JSON
decoders    records of internal topics as JSON
java_text   text formatting of Java and Scala
"""
