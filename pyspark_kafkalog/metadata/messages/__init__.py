"""Kafka's message schemas as data, their codec, and metadata records.

In reading order:

- schema: what fields a message has, in which versions, of which type; primitive encodings
- codec: encodes and decodes the messages of all schemas
- json_form: messages as the JSON that Kafka's tools print
- records: records of the metadata log
"""
