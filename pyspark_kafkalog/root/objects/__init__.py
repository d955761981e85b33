"""Log directories in an object store. In reading order:

- object_root: the root, and a partition of it as of a plan
- extents: a partition's log as of an image, and what a LogReader reads of it, inline data too
- producers: the producers of partitions: sequences and epochs for idempotence, and open transactions
"""
