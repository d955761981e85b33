"""Replicas: a root that follows a live Kafka cluster or another root, byte for byte, and its promotion.

Reading order:

    leader.py          `LeaderEndPoint`: what a follower asks a leader, whatever it is
    partition_state.py one followed partition: what an answer means, and what to do where the logs differ
    cluster/           a live Kafka cluster as a leader
"""
