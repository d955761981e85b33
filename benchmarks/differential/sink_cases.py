"""The table of sink cases: rows, options, and the topics to write to.

`{topic}` in rows, options and names of topics stands for a topic that only this case uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

_KEYED: Final = "SELECT CAST(id % 5 AS STRING) AS key, CAST(id AS STRING) AS value FROM range(12)"
_TO_TOPIC: Final = {"topic": "{topic}"}
_THREE: Final = {"{topic}": 3}
_HEADERS: Final = "array(named_struct('key', 'a', 'value', X'01'), named_struct('key', 'b', 'value', X'02'))"


@dataclass(frozen=True, slots=True)
class SinkCase:
    """`rows` is SQL. `topics` are created before, each with so many partitions; `configs` are theirs.

    `is_placed` says that the partition of each row and the order in it are compared, else just which rows there are:
    where a record has no key and no partition, Kafka's producer and kafkalog place it as they like. `stream` is the
    output mode of a streaming write, empty for a batch write.
    """

    name: str
    rows: str = _KEYED
    options: Mapping[str, str] = field(default_factory=lambda: dict(_TO_TOPIC))
    topics: Mapping[str, int] = field(default_factory=lambda: dict(_THREE))
    configs: Mapping[str, str] = field(default_factory=dict)
    mode: str = "append"
    is_placed: bool = True
    stream: str = ""


def sink_cases() -> list[SinkCase]:
    """All of them, in order; names are unique."""
    return [
        *_keys_and_values(),
        *_column_types(),
        *_topics(),
        *_partitions(),
        *_headers(),
        *_timestamps(),
        *_options(),
        *_modes(),
        *_streams(),
    ]


def _keys_and_values() -> Iterator[SinkCase]:
    yield SinkCase("key and value")
    yield SinkCase("value alone", "SELECT CAST(id AS STRING) AS value FROM range(9)", is_placed=False)
    yield SinkCase(
        "value alone, one partition", "SELECT CAST(id AS STRING) AS value FROM range(9)", topics={"{topic}": 1}
    )
    yield SinkCase(
        "binary key and value", "SELECT CAST(CAST(id AS STRING) AS BINARY) AS key, X'FF00' AS value FROM range(9)"
    )
    yield SinkCase("binary value", "SELECT 'k' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value FROM range(9)")
    yield SinkCase(
        "some keys null",
        "SELECT IF(id % 2 = 0, CAST(id AS STRING), NULL) AS key, CAST(id AS STRING) AS value FROM range(9)",
        is_placed=False,
    )
    yield SinkCase(
        "all keys null",
        "SELECT CAST(NULL AS STRING) AS key, CAST(id AS STRING) AS value FROM range(9)",
        is_placed=False,
    )
    yield SinkCase("tombstones", "SELECT CAST(id AS STRING) AS key, CAST(NULL AS STRING) AS value FROM range(9)")
    yield SinkCase(
        "key and value null",
        "SELECT CAST(NULL AS BINARY) AS key, CAST(NULL AS BINARY) AS value FROM range(4)",
        is_placed=False,
    )
    yield SinkCase("empty key and value", "SELECT '' AS key, '' AS value FROM range(3)")
    yield SinkCase("text beyond ASCII", "SELECT concat('\u00e4\u4e2d', id) AS key, '\U0001f600' AS value FROM range(9)")
    yield SinkCase(
        "a thousand keys", "SELECT md5(CAST(id AS STRING)) AS key, CAST(id AS STRING) AS value FROM range(1000)"
    )
    yield SinkCase(
        "keys of all lengths, seven partitions",
        "SELECT repeat('x', CAST(id AS INT)) AS key, CAST(id AS STRING) AS value FROM range(40)",
        topics={"{topic}": 7},
    )
    yield SinkCase("no rows", "SELECT '' AS key, '' AS value FROM range(0)")
    yield SinkCase("a value of 900 kB", "SELECT 'k' AS key, repeat('v', 900000) AS value FROM range(2)")
    yield SinkCase("a value of 2 MB", "SELECT 'k' AS key, repeat('v', 2000000) AS value FROM range(2)")
    yield SinkCase(
        "a value above the topic's max.message.bytes",
        "SELECT 'k' AS key, repeat('v', 5000) AS value FROM range(1)",
        configs={"max.message.bytes": "2000"},
    )


def _column_types() -> Iterator[SinkCase]:
    for kind, expression in {
        "int": "CAST(id AS INT)",
        "bigint": "id",
        "double": "CAST(id AS DOUBLE)",
        "boolean": "id = 1",
        "date": "DATE'2024-01-01'",
        "array": "array(1)",
        "struct": "struct(id)",
        "void": "NULL",
        "char": "CAST('a' AS CHAR(3))",
        "varchar": "CAST('a' AS VARCHAR(3))",
    }.items():
        yield SinkCase(f"value of type {kind}", f"SELECT 'k' AS key, {expression} AS value FROM range(2)")
    yield SinkCase("key of type int", "SELECT CAST(id AS INT) AS key, 'v' AS value FROM range(2)")
    yield SinkCase("key of type void", "SELECT NULL AS key, 'v' AS value FROM range(2)", is_placed=False)
    yield SinkCase("no column value", "SELECT 'k' AS key FROM range(2)")
    yield SinkCase("no known column", "SELECT id FROM range(2)")
    yield SinkCase("one more column", "SELECT 'k' AS key, 'v' AS value, id AS other FROM range(2)")
    yield SinkCase("columns in upper case", "SELECT 'k' AS KEY, 'v' AS VALUE FROM range(2)")
    yield SinkCase("columns in another order", "SELECT 'v' AS value, 'k' AS key FROM range(2)")
    yield SinkCase("column value twice", "SELECT 'k' AS key, 'v' AS value, 'w' AS value FROM range(2)")


def _topics() -> Iterator[SinkCase]:
    two = {"{topic}": 2, "{topic}-b": 1}
    by_column = (
        "SELECT CAST(id AS STRING) AS key, 'v' AS value, IF(id % 3 = 0, '{topic}-b', '{topic}') AS topic FROM range(9)"
    )
    yield SinkCase("column topic", by_column, {}, two)
    yield SinkCase("column and option topic", by_column, _TO_TOPIC, two)
    yield SinkCase("neither column nor option topic", options={})
    null_topic = "SELECT 'k' AS key, 'v' AS value, IF(id = 1, NULL, '{topic}') AS topic FROM range(3)"
    yield SinkCase("null in column topic", null_topic, {})
    yield SinkCase("null in column topic, and option topic", null_topic)
    yield SinkCase("empty text in column topic", "SELECT 'k' AS key, 'v' AS value, '' AS topic FROM range(1)", {})
    yield SinkCase("column topic of type int", "SELECT 'k' AS key, 'v' AS value, 5 AS topic FROM range(1)", {})
    yield SinkCase(
        "column topic of type int, and option topic", "SELECT 'k' AS key, 'v' AS value, 5 AS topic FROM range(1)"
    )
    yield SinkCase("column topic of type binary", "SELECT 'k' AS key, 'v' AS value, X'41' AS topic FROM range(1)", {})
    yield SinkCase("option topic with spaces around", options={"topic": " {topic} "})
    yield SinkCase("option TOPIC", options={"TOPIC": "{topic}"})
    yield SinkCase("option topic empty", options={"topic": ""})
    yield SinkCase("option topic with a slash", options={"topic": "a/b"})
    yield SinkCase("option topic ..", options={"topic": ".."})
    yield SinkCase("option topic of 250 characters", options={"topic": "x" * 250})
    yield SinkCase("option topic with a comma", options={"topic": "{topic},{topic}-b"}, topics=two)
    yield SinkCase("a topic that does not exist", topics={})
    yield SinkCase("a topic that does not exist in column topic", by_column, {}, {"{topic}": 2})
    yield SinkCase("no rows for a topic that does not exist", "SELECT '' AS value FROM range(0)", topics={})


def _partitions() -> Iterator[SinkCase]:
    given = "SELECT CAST(id AS STRING) AS key, CAST(id AS STRING) AS value, {} AS partition FROM range(9)"
    for name, expression in {
        "by number": "CAST(2 - id % 3 AS INT)",
        "null": "CAST(NULL AS INT)",
        "null in some rows": "IF(id % 2 = 0, 1, NULL)",
        "out of range": "7",
        "out of range in one row": "IF(id = 8, 3, 0)",
        "negative": "-1",
        "of type bigint": "id % 3",
        "of type string": "'1'",
        "of type tinyint": "CAST(1 AS TINYINT)",
    }.items():
        yield SinkCase(f"partition {name}", given.replace("{}", expression))
    unkeyed = "SELECT CAST(id AS STRING) AS value, CAST(id % 2 AS INT) AS partition FROM range(9)"
    yield SinkCase("partition without a key", unkeyed)


def _headers() -> Iterator[SinkCase]:
    with_headers = "SELECT 'k' AS key, CAST(id AS STRING) AS value, {} AS headers FROM range(3)"
    for name, expression in {
        "two": _HEADERS,
        "null": "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)",
        "empty": "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)",
        "with a null value": "array(named_struct('key', 'a', 'value', CAST(NULL AS BINARY)))",
        "with a null key": "array(named_struct('key', CAST(NULL AS STRING), 'value', X'01'))",
        "with a null element": "array(CAST(NULL AS STRUCT<key: STRING, value: BINARY>))",
        "with the same key twice": f"concat({_HEADERS}, {_HEADERS})",
        "of type map": "map('a', X'01')",
        "of strings": "array('a')",
        "with text values": "array(named_struct('key', 'a', 'value', 'text'))",
        "with other field names": "array(named_struct('k', 'a', 'v', X'01'))",
        "with fields in another order": "array(named_struct('value', X'01', 'key', 'a'))",
        "with a field more": "array(named_struct('key', 'a', 'value', X'01', 'more', 1))",
    }.items():
        yield SinkCase(f"headers {name}", with_headers.replace("{}", expression))


def _timestamps() -> Iterator[SinkCase]:
    stamped = "SELECT 'k' AS key, CAST(id AS STRING) AS value, {} AS timestamp FROM range(3)"
    for name, expression in {
        "given": "timestamp_millis(1700000000000 + id)",
        "null": "CAST(NULL AS TIMESTAMP)",
        "as text": "'2024-01-01 00:00:00'",
        "as milliseconds": "1700000000000 + id",
        "without a zone": "TIMESTAMP_NTZ'2024-01-01 00:00:00'",
    }.items():
        yield SinkCase(f"timestamp {name}", stamped.replace("{}", expression))


def _options() -> Iterator[SinkCase]:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd", "GZIP", "brotli", ""):
        yield SinkCase(f"kafka.compression.type {codec!r}", options={**_TO_TOPIC, "kafka.compression.type": codec})
    for codec in ("zstd", "uncompressed"):
        yield SinkCase(
            f"kafka.compression.type gzip into a topic of {codec}",
            options={**_TO_TOPIC, "kafka.compression.type": "gzip"},
            configs={"compression.type": codec},
        )
    for name, value in {
        "kafka.acks": "0",
        "kafka.batch.size": "100",
        "kafka.linger.ms": "20",
        "kafka.enable.idempotence": "false",
        "kafka.max.request.size": "200000",
        "kafka.client.id": "me",
        "kafka.no.such.setting": "1",
        "noSuchOption": "1",
        "includeHeaders": "true",
        "kafka.partitioner.ignore.keys": "true",
        "kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
        "kafka.key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        "kafka.buffer.memory": "x",
    }.items():
        placed = "partitioner" not in name
        yield SinkCase(f"option {name}", options={**_TO_TOPIC, name: value}, is_placed=placed)


def _modes() -> Iterator[SinkCase]:
    for mode in ("", "overwrite", "ignore", "error"):
        yield SinkCase(f"mode {mode or 'not set'}", mode=mode)


def _streams() -> Iterator[SinkCase]:
    yield SinkCase("stream of keys and values", stream="append")
    yield SinkCase(
        "stream with column topic",
        "SELECT CAST(id AS STRING) AS key, 'v' AS value, IF(id % 3 = 0, '{topic}-b', '{topic}') AS topic FROM range(9)",
        {},
        {"{topic}": 2, "{topic}-b": 1},
        stream="append",
    )
    yield SinkCase(
        "stream with partitions and headers",
        f"SELECT 'v' AS value, CAST(id % 3 AS INT) AS partition, {_HEADERS} AS headers FROM range(9)",
        stream="append",
    )
    yield SinkCase("stream of bigint values", "SELECT 'k' AS key, id AS value FROM range(9)", stream="append")
    yield SinkCase("stream without a topic", options={}, stream="append")
    yield SinkCase("stream to a topic that does not exist", topics={}, stream="append")
    yield SinkCase(
        "stream with a partition out of range",
        "SELECT 'k' AS key, 'v' AS value, 9 AS partition FROM range(2)",
        stream="append",
    )
    yield SinkCase("stream in output mode update", stream="update")
    yield SinkCase("stream in output mode complete", is_placed=False, stream="complete")  # of any order
