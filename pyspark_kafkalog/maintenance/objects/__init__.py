"""Maintenance of log directories in object stores. In reading order:

merge      turns the runs of data objects into segment objects
clean_up   deletes what commits have dropped, and what abandoned writes and merges have left
jobs       merge-segments and retention of the whole root, with the reports of file roots
"""
