"""The requests of Kafka's admin tools and AdminClients: topics, configurations, and what describes the cluster.

In reading order:

- topics: creating and deleting topics, adding partitions, deleting records, and the quota for it
- configs: configurations of topics, groups and brokers
- cluster: the servers, the topics with their partitions and replicas, the metadata quorum, feature levels
"""
