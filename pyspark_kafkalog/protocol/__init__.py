"""Kafka's wire protocol: its messages, headers, API versions and error codes, for servers and clients."""
