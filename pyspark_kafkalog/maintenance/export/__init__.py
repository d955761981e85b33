"""Copies of a log directory, and its return to a broker.

export              in place, as a copy, or into a broker's directory
file_copy           a copy as of one commit
object_copy         the same of a log directory on an object store
remote_part         what is in remote storage only, copied back
new_broker          as the directory of a new broker, and broker_directory, which makes it of copied logs
broker_copy         the same of a stopped broker's directory
remote_log_topic    `__remote_log_metadata` of the new broker
broker_differences  what a broker's own metadata log does not know
"""
