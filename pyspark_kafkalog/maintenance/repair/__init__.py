"""Repair after a verification: rebuilding what can be derived.

repair   the steps that findings require, in order: what each writes, and under which lock
reindex  rebuilding indexes and producer snapshots from the `.log` files
"""
