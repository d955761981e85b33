"""The group coordinator: consumer groups of both protocols, and their committed offsets.

The records of `__consumer_offsets` are the only lasting state; any server reads it from there. In reading order:

- timers: what happens at which time, without a clock of its own
- classic_group: a group of the classic protocol: members, generation, votes
- classic: the classic protocol: what each request and timeout does to such a group
"""
