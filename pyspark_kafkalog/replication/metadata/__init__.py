"""A copy of a cluster's metadata log, `__cluster_metadata`, kept up to date as an observer of its controllers.

Reading order:

    observer.py        `MetadataObserver`: one step after the other from what the controllers have to the copy; the same
                       in a thread, as long as a block runs
    controllers.py     requests to the active controller, wherever it is
    log_copy.py        the copy on disk: appended, cut, begun at a snapshot
"""
