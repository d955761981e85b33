"""Tiering: copying closed segments of a root on a file system to remote storage.

plan    which segments of a partition are copied
copy    puts them and commits that they are there; the job
"""
