"""Topics to Delta tables and back, each record once: the queries of `kafkalog topic-to-delta` and `delta-to-topic`.

- topic_to_delta: the query from a topic to a table, appending or by key; records as the columns of the table
- delta_to_topic: the query from a table's change feed to a topic, with the changes as keyed records
- delta_target: a table by path or name: create, append, merge by key, each micro-batch once; the start of a query
"""
