"""Roots with the remote storage of brokers (KIP-405).

In reading order:

- remote_logs: segments in remote storage, as brokers' directories list them
- remote_storage_root: the bucket alone as a root
"""
