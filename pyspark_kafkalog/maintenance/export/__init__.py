"""Copies of a log directory, and its return to a broker.

export              in place, as a copy, into a broker's directory, or as the directory of a new broker
copy                a copy in a directory: where its logs come from, and what makes a root of them
file_copy           the logs of a log directory on a file system, as of one commit
object_copy         the same of a log directory in an object store
broker_copy         the same of a stopped broker's directory
broker_directory    what makes the directory of a new broker of copied logs
broker_differences  what a broker's own metadata log does not know
"""
