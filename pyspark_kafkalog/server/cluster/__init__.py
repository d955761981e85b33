"""The servers over one root: which are alive, and which of them clients are sent to.

In reading order:

- heartbeats: the signs of life that servers leave in the root
- membership: the live servers by their heartbeats, and which of them leads a partition or coordinates a group
"""
