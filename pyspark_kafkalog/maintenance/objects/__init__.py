"""Maintenance of log directories in object stores. In reading order:

merge_plan which partitions a task merges, and which runs a round of it takes
merge      turns the runs of data objects into segment objects
clean_up   deletes what commits have dropped, and what abandoned writes and merges have left
jobs       merge-segments and the clean-up with a root's settings
reindex    rebuilds the indexes of segment objects
replace    commits that new segment objects take the place of extents
stored     sizes and times of a partition's extents
"""
