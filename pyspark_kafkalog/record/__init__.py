"""Kafka's record format v2: batches, records, compression, control records, and Arrow on the other side."""
