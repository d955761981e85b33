"""Roots with the remote storage of brokers (KIP-405).

In reading order:

- remote_logs: what brokers' directories say of segments in remote storage
- remote_storage_root: the bucket alone as a root
"""
