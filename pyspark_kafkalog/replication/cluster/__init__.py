"""A live Kafka cluster as a leader to follow.

Reading order:

    end_point.py       `ClusterLeader`: the cluster as a `LeaderEndPoint`
    connections.py     connections to its nodes: opened again, slowed down by throttling, named in errors
    fetching.py        Fetch of many partitions, and what its answer means
    describing.py      brokers, topics and leaders, as Metadata says; configurations, access control entries, quotas
"""
