"""The metadata of a root on a file system. In reading order:

- log: one commit, one file; the link as compare-and-set; the reserve for a full disk
- backend: the directory as the metadata store uses it: snapshots, retention and leftovers after a commit
"""
