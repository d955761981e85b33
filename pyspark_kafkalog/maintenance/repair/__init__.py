"""Repair after a verification: rebuilding what can be derived.

repair   the steps that findings require, in order, and their execution
steps    each step: what it writes, and under which lock
reindex  rebuilding indexes and producer snapshots from the `.log` files
"""
