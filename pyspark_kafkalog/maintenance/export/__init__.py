"""Copies of a log directory, and its return to a broker.

export              in place, as a copy, or into a broker's directory
copy                a copy as of one commit
object_copy         the same of a log directory on an object store
broker_differences  what a broker's own metadata log does not know
"""
