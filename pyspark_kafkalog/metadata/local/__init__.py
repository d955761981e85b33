"""The metadata of a root on a file system. In reading order:

- offset_hint: a hint about the log: one offset in a small file
- reserve: files that give a full disk room for the commits that free space
- log: one commit, one file; the link as compare-and-set
- snapshots: their files, and the pointer to the newest
- housekeeping: snapshots, retention and leftovers after a commit
- place: the directory as the metadata store uses it
"""
