"""Appending to a root as a follower of a leader does: batches keep the leader's offsets and epochs.

Reading order:

    changes.py         what a follower changes in a partition; `FollowerWriter`
    open.py            begins following, and makes the writer of a root
"""
