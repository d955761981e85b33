"""Replicas: a root that follows a live Kafka cluster or another root, byte for byte, and its promotion.

Reading order:

    leader.py          `LeaderEndPoint`: what a follower asks a leader, whatever it is
    partition_state.py one followed partition: what an answer means, and what to do where the logs differ
    root_leader.py     another root as a leader
    root_batches.py    whole batches of a root's partitions by bytes
    cluster/           a live Kafka cluster as a leader
"""
