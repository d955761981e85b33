"""Log directories in an object store. In reading order:

- extents: a partition's log as of an image, and what a LogReader reads of it
"""
