"""The command dump-log: prints the contents of a log's files as kafka-dump-log does.

log         the command, and dumps of .log, .checkpoint and .staged files
walk        iterates over batches and records, tolerating damage; of objects, by scratch files
indexes     dumps of indexes and producer snapshots, and the mismatches found
printers    the output as text or JSON
decoders    records of internal topics as JSON
java_text   text formatting of Java and Scala
"""
