"""Several directories of brokers as one root.

- broker_replicas: which replica of a partition is read, and where another one differs from it
- broker_directories: the root
"""
