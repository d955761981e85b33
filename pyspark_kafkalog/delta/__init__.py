"""Topics to Delta tables and back, every record once: the queries of `kafkalog topic-to-delta` and `delta-to-topic`.

topic_to_delta.py   the query from a topic to a table, appending or by key
delta_to_topic.py   the query from a table's change feed to a topic
record_shape.py     a topic's records as the columns of a table
bad_records.py      what becomes of records that have not that shape
change_records.py   a table's changes as keyed records
delta_target.py     a table by path or name: make it, append, merge by key, each once
column_names.py     names of columns, quoted
batch_identity.py   by what a micro-batch is known when it comes again
job.py              a job around a query: session, trigger, signals, errors
"""
