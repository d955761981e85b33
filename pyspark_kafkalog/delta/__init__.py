"""Topics to Delta tables and back, each record once: the queries of `kafkalog topic-to-delta` and `delta-to-topic`.

topic_to_delta.py   the query from a topic to a table, appending or by key
delta_to_topic.py   the query from a table's change feed to a topic
record_shape.py     a topic's records as the columns of a table
bad_records.py      the policy for records that do not have that shape
change_records.py   a table's changes as keyed records
delta_target.py     a table by path or name: create, append, merge by key, each micro-batch once
column_names.py     quoted column names
batch_identity.py   the identity of a micro-batch across replays
job.py              a job around a query: session, trigger, signals, errors
"""
