"""Consumer groups: their records in `__consumer_offsets`, and the operations on them.

In reading order: offset_records (the records of committed offsets), group_state (how a group is described),
classic_group and consumer_group (a group of each protocol, made of its records), offsets_topic (reads and writes the
topic; which offsets expire), resets (targets of a reset), group (one group: fetch, commit, reset, delete, expire),
guarded_group (checks each operation; opens groups).
"""
