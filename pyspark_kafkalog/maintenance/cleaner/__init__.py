"""Compaction of logs: Kafka's log cleaner."""
