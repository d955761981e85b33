"""Kafka's message schemas as data, their codec, and metadata records.

In reading order:

- schema: what fields a message has, in which versions, of which type; primitive encodings
- codec: encodes and decodes the messages of all schemas, as dicts or as dataclasses
- metadata_records: the records of the metadata log as dataclasses; generated
- coordinator_records: keys and values of the coordinators' records as dataclasses; generated
- records: the frame of a record of the metadata log
- json_form: messages as the JSON that Kafka's tools print
"""
