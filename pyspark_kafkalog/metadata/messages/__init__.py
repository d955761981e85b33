"""Kafka's message schemas as data, their codec, and metadata records.

In reading order:

- schema: what fields a message has, in which versions, of which type; primitive encodings; pieces of messages
- codec: encodes and decodes the messages of all schemas, as dicts or as instances of classes; as JSON
- struct_codec: what `codec` compiles of a schema for structs and their fields
- metadata_records: the records of the metadata log as classes; generated
- internal_records: the records of the internal topics (of coordinators, of remote logs) as classes; generated
- records: the frame of a record of the metadata log
- usual_commits: the commit that most are, of a template
"""
