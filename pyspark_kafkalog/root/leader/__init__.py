"""Writes of Kafka's protocol server: batches of clients and coordinators, appended as a partition's leader does.

In reading order:

- units: what goes into one commit together, and `LeaderWriter`, which makes the commits
"""
