"""The group coordinator: consumer groups of both protocols, and their committed offsets.

The records of `__consumer_offsets` are the only lasting state; any server reads it from there. The groups that they
make, classic_group and consumer_group, are in the package groups. In reading order:

- classic: what requests and timeouts do to a group of the classic protocol
- heartbeat, assignors: what a heartbeat does to a group of the consumer protocol
- migration: members of the classic protocol in such a group, and how a group becomes one or ceases to be one
- shard: the groups of one partition, and how they are written; local_shard: those of a read-only server
- coordinator: the partitions that are coordinated here, their timers, and offsets that are too old
- subscribed_regexes: the topics of regular expressions
- membership, offsets, describing: the requests
"""
