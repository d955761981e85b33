"""What brokers have written, as roots that are only read.

In reading order:

- image: the snapshots and batches of a broker's own metadata log; topics, configurations, access control entries
- quorum: leader, voters and observers of a metadata log
- read_only: what all these roots share
- broker_root: the directory of one broker
- broker_directories: the directories of several brokers as one root: which replica is read, where others differ
- remote_logs: segments in remote storage, as brokers' directories list them
- remote_storage_root: the bucket alone as a root
"""
