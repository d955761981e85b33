"""The group coordinator: consumer groups of both protocols, and their committed offsets.

The records of `__consumer_offsets` are the only lasting state; any server reads it from there. In reading order:

- timers: what happens at which time, without a clock of its own
- classic_group, classic: a group of the classic protocol, and what requests and timeouts do to it
- consumer_protocol: a group of the consumer protocol, its assignors, and what a heartbeat does
- migration: members of the classic protocol in such a group, and how a group becomes one or ceases to be one
- shard: the groups of one partition, and how they are written; local_shard: those of a read-only server
- expiry: offsets that are too old
- coordinator: the partitions that are coordinated here, and their timers
- subscribed_regexes: the topics of regular expressions
- membership, offsets, describing: the requests
"""
