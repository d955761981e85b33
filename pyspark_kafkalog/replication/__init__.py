"""Replicas: a root that follows a live Kafka cluster or another root, byte for byte, and its promotion.

Reading order:

    leader.py          `LeaderEndPoint`: what a follower asks a leader, whatever it is
    cluster/           a live Kafka cluster as a leader
"""
