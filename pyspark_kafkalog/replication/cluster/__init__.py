"""A live Kafka cluster as a leader to follow.

Reading order:

    end_point.py       `ClusterLeader`: the cluster as a `LeaderEndPoint`
    connections.py     connections to its nodes: opened again, slowed down by throttling, named in errors
    answers.py         requests, and what the answers mean: brokers, topics and leaders; configurations, access control
                       entries, quotas; Fetch of many partitions
"""
