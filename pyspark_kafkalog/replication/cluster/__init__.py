"""A live Kafka cluster as a leader to follow.

Reading order:

    end_point.py       `ClusterLeader`: the cluster as a `LeaderEndPoint`
"""
