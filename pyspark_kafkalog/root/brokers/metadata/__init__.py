"""A Kafka broker's own metadata log, which is only read.

In reading order:

- image: its snapshots and batches; topics, configurations and access control entries in it
- copy_marker: the mark of a copy of a metadata log
- quorum: leader, voters and observers of a metadata log
"""
