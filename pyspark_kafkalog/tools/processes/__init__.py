"""Commands that keep running until a signal.

commands   the commands and their options, and promote
serve      the server for Kafka's clients
follow     replicas of a cluster or of another log directory
metrics    Kafka's metrics for Prometheus
"""
