"""Consumer groups: their records in `__consumer_offsets`, and the operations on them.

In reading order: offset_records (the records of committed offsets), group_log (reads the topic), offsets_topic (writes
the topic; which offsets expire), group_state (kind, state and members from a broker's records), resets (targets of a
reset), group (one group: fetch, commit, reset, delete, expire), guarded_group (checks each operation; opens groups).
"""
