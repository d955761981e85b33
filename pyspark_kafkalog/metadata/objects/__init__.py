"""The metadata of a root in an object store. In reading order:

- log: one commit, one object; put-if-absent as compare-and-set; the oldest commit, and when a process looks at it
- host: what the processes of one host share: one turn, and the newest commit
- turns: when a writer commits, and when it gives way to others
- backend: the store as the metadata store uses it: snapshots and retention after a commit
"""
