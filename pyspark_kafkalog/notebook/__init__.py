"""Views for notebooks: topics and logs as Arrow, pandas, polars and DuckDB tables, with drawings and explanations.

- logs: a topic, a partition's log, a slice of it, records as they arrive
- tables: records, segments and record batches as tables; points in time
- seek: the steps of a lookup
- html: drawings
- plots: charts over time
- spark_helpers: helpers for Spark's DataFrames

    >>> import tempfile, pyarrow
    >>> from pyspark_kafkalog import LogDir
    >>> scratch = tempfile.TemporaryDirectory()
    >>> log_dir = LogDir.create(scratch.name + "/log")
    >>> _ = log_dir.append("orders", pyarrow.table({"key": ["a", "b", "a"], "value": ["1", "2", "3"]}))
    >>> log_dir.refresh()

A topic, a partition's log, and slices of it. Records are read only when a method needs them.

    >>> log_dir["orders"]
    TopicLog(orders, 1 partition)
    >>> log = log_dir["orders", 0]
    >>> log[-2:]
    PartitionLog(orders-0, offsets [1, 3))
    >>> log[-2:].to_arrow(["offset", "key", "value"], text=True).to_pylist()
    [{'offset': 1, 'key': 'b', 'value': '2'}, {'offset': 2, 'key': 'a', 'value': '3'}]
    >>> log["2000-01-01":"2000-01-02"].count()
    0
    >>> log[1]["value"]
    b'2'

The segments and batches of the log, and the steps of a lookup.

    >>> log.segments().select(["base_offset", "end_offset", "state"]).to_pylist()
    [{'base_offset': 0, 'end_offset': 3, 'state': 'active'}]
    >>> log.batches().select(["base_offset", "last_offset", "kind"]).to_pylist()
    [{'base_offset': 0, 'last_offset': 2, 'kind': 'data'}]
    >>> print(log.at(1).scan.found.base_offset)
    0

New records as they arrive; `tail` waits for them (here with a timeout of 0).

    >>> tail = log.tail(timeout_seconds=0, columns=["value"], text=True)
    >>> _ = log_dir.append("orders", pyarrow.table({"value": ["4"]}))
    >>> [batch.to_pylist() for batch in tail]
    [[{'value': '4'}]]
    >>> scratch.cleanup()
"""
