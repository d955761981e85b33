"""Kafka's wire protocol: its messages, headers, API versions and error codes, for servers and clients.

In reading order:

- api: the APIs by key, with their versions and message classes; frames of requests and responses
- messages: the classes of requests and responses, by area: records, cluster, replicas, topics, groups, offsets,
  consumer_groups, transactions, security. Generated from `schemas`, which are Kafka's own
- client_settings: the settings of a client's connections, from a properties file
- client: a client of one server, with TLS and SASL
- error_codes: the error codes
"""
