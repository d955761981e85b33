"""The metadata of a root in an object store. In reading order:

- layout: the objects, what a commit's object holds, and requests that the others share
- boundary: the oldest commit, and when a process has to look at it
- log: one commit, one object; put-if-absent as compare-and-set
- snapshots: their objects, and the pointer to the newest
- housekeeping: snapshots and retention after a commit
- place: the store as the metadata store uses it
"""
