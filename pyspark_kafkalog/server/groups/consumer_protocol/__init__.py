"""A group of the consumer protocol (KIP-848): all of it is computed, nothing here waits or does I/O. In reading order:

- assignors: who gets which partitions
- layered_map, group_index: mappings that change a little at a time; what the members of a group have together
- consumer_group: such a group as its records say
- reconcile, heartbeat: a member's next step; what a heartbeat does
"""
