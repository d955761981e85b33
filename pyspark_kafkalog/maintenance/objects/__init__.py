"""Maintenance of log directories in object stores. In reading order:

merge      turns the runs of data objects into segment objects
clean_up   deletes what commits have dropped, and what abandoned writes and merges have left
segments   segments built on disk of batches, fetched, and committed in the place of extents
"""
