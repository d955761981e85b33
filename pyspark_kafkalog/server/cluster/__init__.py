"""The servers over one root: which are alive, and which of them clients are sent to.

In reading order:

- leaders: which server leads a partition or coordinates a group, by rendezvous hashing
- heartbeats: what a server leaves in the root to show that it runs
- membership: the live servers, by their heartbeats
"""
