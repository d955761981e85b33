"""Kafka's record format v2: batches, records, compression, control records, and conversion to and from Arrow."""
