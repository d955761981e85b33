"""Kafka's message schemas as data, their codec, and metadata records."""
