"""The requests of Kafka's admin tools and AdminClients: topics, configurations, and what describes the cluster.

In reading order:

- mutation_quota: how many partitions a client may create or delete a second
- topics: creating and deleting topics, adding partitions
- delete_records: deleting records below an offset
- config_resources: what can be configured, and who may see or change it
- describe_configs: configurations with their sources, types and documentation
- alter_configs: changing configurations, as a whole or one by one
- cluster: the servers, the topics with their partitions, and the resources that have configurations
- log_dirs: sizes of partitions, by directory
- quorum: the metadata log as a quorum, and feature levels
- replicas: leader elections and reassignments, which a root without replicas does not need
"""
