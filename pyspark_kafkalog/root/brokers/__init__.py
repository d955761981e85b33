"""What brokers have written, as roots that are only read.

In reading order:

- metadata: a broker's own metadata log
- notices: the state of a broker's process, and what a reader of its directory does not get
- read_only: what all these roots share
- broker_root: the directory of one broker
- replicas: the directories of several brokers as one root
- remote: the remote storage of brokers with tiered storage
"""
