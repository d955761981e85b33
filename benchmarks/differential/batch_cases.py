"""The table of batch cases: options of a read, and the operations on the DataFrame.

Reports and `known_differences.py` use a case's name. The topics are those of `broker_topics.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from .broker_topics import CODECS, FIRST_MS, STEP_MS

HOUR_MS: Final = 3_600_000
_PLAIN: Final = {"subscribe": "plain"}


@dataclass(frozen=True, slots=True)
class BatchCase:
    """`query`: rows, tasks (how many the read is cut into), schema, or an SQL condition that rows are filtered by.

    `columns` selects some of the columns; topic and partition are always among them.
    """

    name: str
    options: Mapping[str, str]
    query: str = "rows"
    columns: tuple[str, ...] = ()
    load_schema: str | None = field(default=None)


def batch_cases() -> list[BatchCase]:
    """All of them, in order; names are unique."""
    return [
        *_subscriptions(),
        *_offsets(),
        *_timestamps(),
        *_data_loss(),
        *_tasks(),
        *_headers(),
        *_isolation(),
        *_spelling(),
        *_bad_values(),
        *_queries(),
    ]


def _at(ms: int) -> str:
    return str(FIRST_MS + ms)


def _json(**offsets: Mapping[int, int] | list[int]) -> str:
    """{"topic": {"0": 5}}; a topic name's dots and dashes are written as __."""
    named = {topic.replace("__", "-"): found for topic, found in offsets.items()}
    return json.dumps({topic: found if isinstance(found, list) else dict(found) for topic, found in named.items()})


def _subscriptions() -> Iterator[BatchCase]:
    topics = ("plain", *(f"codec-{codec}" for codec in CODECS), "txn", "txn-closed", "txn-all-aborted", "compacted")
    topics += ("append-time", "wild", "nulls", "deleted-head", "all-deleted", "part-deleted", "empty", "half-empty")
    for topic in (*topics, "many", "big", "a.b_c-d"):
        yield BatchCase(f"subscribe {topic}", {"subscribe": topic})
    for text in (
        "plain,nulls",
        " plain , nulls ",
        "plain,plain",
        "plain,",
        ",",
        "",
        " ",
        "plain,missing",
        "missing",
        "__consumer_offsets",
        "plain,__consumer_offsets",
        "PLAIN",
        "plain*",
        "a.b_c-d,many",
    ):
        yield BatchCase(f"subscribe {text!r}", {"subscribe": text})
    for text in (
        "plain",
        "pl",
        "lain$",
        "^codec-.*",
        "codec-(gzip|zstd)",
        "deleted",
        "no-such-topic",
        "__consumer.*",
        "(?i)PLAIN",
        "a.b",
        r"a\.b_c-d",
        "",
        "(",
        "[a-z&&[^t]]+n$",
        r"\p{Alpha}+",
        r"\Qa.b\E.*",
        "plain|nulls",
        "txn-[a-c].*",
        "^(?!codec).*ed-.*$",
        "*",
    ):
        yield BatchCase(f"subscribePattern {text!r}", {"subscribePattern": text})
    for text in (
        _json(plain=[0]),
        _json(plain=[2, 0]),
        _json(plain=[0, 0]),
        _json(plain=[0, 1, 2], nulls=[0]),
        _json(plain=[7]),
        _json(plain=[0, 7]),
        _json(missing=[0]),
        _json(plain=[]),
        _json(plain=[-1]),
        _json(__consumer_offsets=[0]).replace("-consumer", "__consumer"),
        _json(many=[23]),
        "{}",
        "",
        "plain",
        '{"plain":0}',
        '{"plain":["0"]}',
        '{"plain":[0.5]}',
        '{"plain":[0]',
        "[]",
    ):
        yield BatchCase(f"assign {text}", {"assign": text})
    yield BatchCase("subscribe and assign", {"subscribe": "plain", "assign": _json(plain=[0])})
    yield BatchCase("subscribe and subscribePattern", {"subscribe": "plain", "subscribePattern": "plain"})
    yield BatchCase("no subscription", {})


_STARTS: Final = {
    "earliest": "earliest",
    "latest": "latest",
    "5,5,5": _json(plain={0: 5, 1: 5, 2: 5}),
    "-2,10,-2": _json(plain={0: -2, 1: 10, 2: -2}),
    "-1,0,0": _json(plain={0: -1, 1: 0, 2: 0}),
    "at the ends": _json(plain={0: 40, 1: 30, 2: 20}),
    "above an end": _json(plain={0: 5, 1: 31, 2: 5}),
    "two of three": _json(plain={0: 5, 1: 5}),
    "-3,0,0": _json(plain={0: -3, 1: 0, 2: 0}),
}
_ENDS: Final = {
    "none": None,
    "earliest": "earliest",
    "20,20,20": _json(plain={0: 20, 1: 20, 2: 20}),
    "-1,12,-1": _json(plain={0: -1, 1: 12, 2: -1}),
    "-2,5,5": _json(plain={0: -2, 1: 5, 2: 5}),
    "3,3,3": _json(plain={0: 3, 1: 3, 2: 3}),
    "above an end": _json(plain={0: 41, 1: 30, 2: 20}),
    "two of three": _json(plain={0: 20, 1: 20}),
}


def _offsets() -> Iterator[BatchCase]:
    for (start, starting), (end, ending) in product(_STARTS.items(), _ENDS.items()):
        options = {"subscribe": "plain", "startingOffsets": starting}
        if ending is not None:
            options["endingOffsets"] = ending
        yield BatchCase(f"offsets {start} to {end}", options)
    yield BatchCase("offsets EARLIEST to LATEST", {**_PLAIN, "startingOffsets": "EARLIEST", "endingOffsets": "LATEST"})
    for name, text in {
        "one more topic": _json(plain={0: 5, 1: 5, 2: 5}, nulls={0: 0}),
        "one more partition": _json(plain={0: 5, 1: 5, 2: 5, 3: 0}),
        "another topic": _json(nulls={0: 0}),
        "a partition twice": '{"plain":{"0":5,"0":6,"1":5,"2":5}}',
        "a partition as 00": '{"plain":{"00":5,"1":5,"2":5}}',
        "an offset as text": '{"plain":{"0":"5","1":5,"2":5}}',
        "an offset with a fraction": '{"plain":{"0":5.5,"1":5,"2":5}}',
        "beyond 64 bits": '{"plain":{"0":9223372036854775808,"1":5,"2":5}}',
        "spaces around": f"  {_json(plain={0: 5, 1: 5, 2: 5})}  ",
        "not JSON": "plain:0:5",
        "empty text": "",
        "empty object": "{}",
        "a word": "first",
        "spaces around a word": " earliest ",
    }.items():
        yield BatchCase(f"startingOffsets {name}", {"subscribe": "plain", "startingOffsets": text})
        yield BatchCase(f"endingOffsets {name}", {"subscribe": "plain", "endingOffsets": text})
    assigned = {"assign": _json(plain=[0, 2])}
    yield BatchCase("offsets of assigned partitions", {**assigned, "startingOffsets": _json(plain={0: 5, 2: 5})})
    yield BatchCase(
        "offsets of more than is assigned", {**assigned, "startingOffsets": _json(plain={0: 5, 1: 5, 2: 5})}
    )
    for topic, start, end in (
        ("compacted", 1, 110),
        ("compacted", 15, 16),
        ("txn-closed", 5, 7),
        ("deleted-head", 15, 16),
        ("deleted-head", -2, 20),
        ("empty", 0, 0),
        ("big", 333, 334),
        ("big", 0, 999),
    ):
        starting, ending = json.dumps({topic: {0: start}}), json.dumps({topic: {0: end}})
        options = {"assign": json.dumps({topic: [0]}), "startingOffsets": starting, "endingOffsets": ending}
        yield BatchCase(f"offsets of {topic}: {start} to {end}", options)


def _timestamps() -> Iterator[BatchCase]:
    starts = {"before all": _at(-HOUR_MS), "at record 10": _at(10 * STEP_MS), "between records": _at(10 * STEP_MS + 1)}
    starts |= {"in some only": _at(35 * STEP_MS), "after all": _at(HOUR_MS), "zero": "0"}
    ends: dict[str, str | None] = {"none": None, "at record 15": _at(15 * STEP_MS), "after all": _at(HOUR_MS)}
    ends["before all"] = _at(-HOUR_MS)
    for (start, starting), (end, ending), strategy in product(starts.items(), ends.items(), ("", "latest")):
        if strategy and start not in ("in some only", "after all"):
            continue
        options = {"subscribe": "plain", "startingTimestamp": starting}
        if ending is not None:
            options["endingTimestamp"] = ending
        if strategy:
            options["startingOffsetsByTimestampStrategy"] = strategy
        yield BatchCase(f"timestamps {start} to {end}{strategy and ', strategy latest'}", options)
    for start, end in ((4_000, 5_000), (FIRST_MS, FIRST_MS + 1), (1, 2), (FIRST_MS + 2, None), (6_000, FIRST_MS - 1)):
        options = {"subscribe": "wild", "startingTimestamp": str(start)}
        if end:
            options["endingTimestamp"] = str(end)
        yield BatchCase(f"timestamps of wild: {start} to {end}", options)
    for topic in ("empty", "half-empty", "all-deleted", "deleted-head", "txn", "append-time", "compacted"):
        for strategy in ("error", "latest"):
            options = {"subscribe": topic, "startingTimestamp": _at(3 * STEP_MS)}
            options["startingOffsetsByTimestampStrategy"] = strategy
            yield BatchCase(f"startingTimestamp of {topic}, strategy {strategy}", options)
    ten, fifteen = FIRST_MS + 10 * STEP_MS, FIRST_MS + 15 * STEP_MS
    by_partition = {0: ten, 1: ten, 2: ten}
    for name, start_json, end_json in (
        ("all partitions", _json(plain=by_partition), None),
        ("two of three", _json(plain={0: ten, 1: ten}), None),
        ("one too many", _json(plain={**by_partition, 3: ten}), None),
        ("one after all", _json(plain={0: ten, 1: ten, 2: ten + HOUR_MS}), None),
        ("a start and an end", _json(plain=by_partition), _json(plain=dict.fromkeys(range(3), fifteen))),
        ("an end before its start", _json(plain=by_partition), _json(plain={0: ten, 1: ten, 2: ten - 1})),
        ("other partitions at the end", _json(plain=by_partition), _json(plain={0: ten})),
        ("-1", _json(plain={0: -1, 1: ten, 2: ten}), None),
        ("-2", _json(plain={0: -2, 1: ten, 2: ten}), None),
        ("not JSON", "1700000000000", None),
    ):
        options = {"subscribe": "plain", "startingOffsetsByTimestamp": start_json}
        if end_json is not None:
            options["endingOffsetsByTimestamp"] = end_json
        yield BatchCase(f"startingOffsetsByTimestamp {name}", options)
    yield BatchCase(
        "startingTimestamp goes before the others",
        {
            "subscribe": "plain",
            "startingTimestamp": str(fifteen),
            "startingOffsetsByTimestamp": _json(plain=by_partition),
            "startingOffsets": _json(plain={0: 1, 1: 1, 2: 1}),
        },
    )
    yield BatchCase(
        "startingOffsetsByTimestamp goes before startingOffsets",
        {
            "subscribe": "plain",
            "startingOffsetsByTimestamp": _json(plain=by_partition),
            "startingOffsets": _json(plain={0: 1, 1: 1, 2: 1}),
        },
    )
    yield BatchCase(
        "a timestamp to start and an offset to end",
        {
            "subscribe": "plain",
            "startingTimestamp": str(ten),
            "endingOffsets": _json(plain={0: 12, 1: 12, 2: 12}),
        },
    )
    yield BatchCase(
        "a timestamp to start after an offset to end",
        {
            "subscribe": "plain",
            "startingTimestamp": str(fifteen),
            "endingOffsets": _json(plain={0: 12, 1: 12, 2: 12}),
        },
    )


def _data_loss() -> Iterator[BatchCase]:
    for fail, (topic, start, end) in product(
        ("true", "false"),
        (
            ("deleted-head", 0, None),
            ("deleted-head", 5, 10),
            ("deleted-head", 5, 20),
            ("deleted-head", 14, None),
            ("deleted-head", 15, None),
            ("deleted-head", 15, 60),
            ("deleted-head", 50, None),
            ("deleted-head", 50, 60),
            ("all-deleted", 0, None),
            ("all-deleted", 20, None),
            ("all-deleted", 5, 10),
            ("all-deleted", 21, None),
            ("empty", 5, None),
            ("compacted", 0, 500),
            ("big", 990, 1_010),
        ),
    ):
        options = {"assign": json.dumps({topic: [0]}), "failOnDataLoss": fail}
        options["startingOffsets"] = json.dumps({topic: {0: start}})
        if end is not None:
            options["endingOffsets"] = json.dumps({topic: {0: end}})
        yield BatchCase(f"failOnDataLoss {fail}: {topic} {start} to {end}", options)
    yield BatchCase("failOnDataLoss false: a missing topic", {"subscribe": "missing", "failOnDataLoss": "false"})
    missing = {"assign": _json(plain=[0, 7]), "failOnDataLoss": "false"}
    yield BatchCase("failOnDataLoss false: a missing partition", missing)


def _tasks() -> Iterator[BatchCase]:
    for topic, name, number in product(("big", "plain"), ("minPartitions", "maxRecordsPerPartition"), (1, 2, 7, 40)):
        options = {"subscribe": topic, name: str(number)}
        yield BatchCase(f"{name} {number} of {topic}", options)
        if name == "minPartitions" or number > 2:
            yield BatchCase(f"{name} {number} of {topic}: tasks", options, "tasks")
    both = {"subscribe": "plain", "minPartitions": "9", "maxRecordsPerPartition": "15"}
    yield BatchCase("minPartitions and maxRecordsPerPartition", both)
    yield BatchCase("minPartitions and maxRecordsPerPartition: tasks", both, "tasks")
    ranges = {"startingOffsets": _json(plain={0: 0, 1: 28, 2: 19}), "endingOffsets": _json(plain={0: 40, 1: 30, 2: 20})}
    skewed = {"subscribe": "plain", "minPartitions": "6", **ranges}
    yield BatchCase("minPartitions of skewed ranges: tasks", skewed, "tasks")
    specific = {"subscribe": "plain", "maxRecordsPerPartition": "10", **ranges}
    yield BatchCase("maxRecordsPerPartition of given ranges: tasks", specific, "tasks")
    for topic in ("half-empty", "empty", "many", "compacted"):
        yield BatchCase(f"tasks of {topic}", {"subscribe": topic}, "tasks")
        yield BatchCase(f"minPartitions 5 of {topic}: tasks", {"subscribe": topic, "minPartitions": "5"}, "tasks")


def _headers() -> Iterator[BatchCase]:
    for topic, value in product(("nulls", "plain", "codec-zstd"), ("true", "false", "TRUE")):
        yield BatchCase(f"includeHeaders {value} of {topic}", {"subscribe": topic, "includeHeaders": value})
    for value in ("true", "false"):
        options = {"subscribe": "nulls", "includeHeaders": value}
        yield BatchCase(f"includeHeaders {value}: schema", options, "schema")
    for value in ("yes", "", "1", " true "):
        yield BatchCase(f"includeHeaders {value!r}", {"subscribe": "nulls", "includeHeaders": value})


def _isolation() -> Iterator[BatchCase]:
    for topic, level in product(
        ("txn", "txn-closed", "txn-all-aborted", "plain"), ("read_committed", "read_uncommitted")
    ):
        options = {"subscribe": topic, "kafka.isolation.level": level}
        yield BatchCase(f"isolation {level} of {topic}", options)
    for start, end in ((0, 12), (5, 8), (6, 12), (12, -1), (18, -1), (18, 20), (22, -1)):
        options = {"assign": _json(txn=[0]), "kafka.isolation.level": "read_committed"}
        options |= {"startingOffsets": _json(txn={0: start}), "endingOffsets": _json(txn={0: end})}
        yield BatchCase(f"isolation read_committed of txn {start} to {end}", options)
    options = {
        "assign": _json(txn=[0]),
        "kafka.isolation.level": "read_committed",
        "startingOffsets": _json(txn={0: 20}),
    }
    yield BatchCase("isolation read_committed of txn 20 to the latest", options)
    options = {"subscribe": "txn", "kafka.isolation.level": "read_committed", "startingTimestamp": _at(4 * STEP_MS)}
    yield BatchCase("isolation read_committed with a startingTimestamp", options)
    options = {"subscribe": "txn", "kafka.isolation.level": "read_committed", "minPartitions": "6"}
    yield BatchCase("isolation read_committed with minPartitions", options)
    for level in ("READ_COMMITTED", "committed", ""):
        yield BatchCase(f"isolation {level!r}", {"subscribe": "txn", "kafka.isolation.level": level})


def _spelling() -> Iterator[BatchCase]:
    five = _json(plain={0: 5, 1: 5, 2: 5})
    for options in (
        {"SUBSCRIBE": "plain"},
        {"Subscribe": "plain", "STARTINGOFFSETS": five},
        {"subscribepattern": "^plain$", "endingoffsets": five},
        {"ASSIGN": _json(plain=[1]), "MinPartitions": "4"},
        {"subscribe": "nulls", "INCLUDEHEADERS": "true"},
        {"subscribe": "plain", "startingtimestamp": _at(10 * STEP_MS)},
        {"subscribe": "plain", "STARTINGOFFSETSBYTIMESTAMP": _json(plain=dict.fromkeys(range(3), FIRST_MS))},
        {"subscribe": "deleted-head", "FAILONDATALOSS": "FALSE", "startingOffsets": '{"deleted-head":{"0":0}}'},
        {"subscribe": "big", "MAXRECORDSPERPARTITION": "100"},
        {"subscribe": "txn", "KAFKA.ISOLATION.LEVEL": "read_committed"},
        {"subscribe": "txn", "Kafka.Isolation.Level": "read_committed"},
    ):
        named = ", ".join(options)
        yield BatchCase(f"spelling of {named}", options)
    for name, value in {
        "startingOffset": five,
        "failOnDataLos": "false",
        "kafka.group.id": "some-group",
        "groupIdPrefix": "some-prefix",
        "kafka.fetch.max.bytes": "1000",
        "kafka.max.poll.records": "3",
        "kafka.session.timeout.ms": "20000",
        "kafka.client.id": "me",
        "fetchOffset.numRetries": "2",
        "kafkaConsumer.pollTimeoutMs": "20000",
        "maxOffsetsPerTrigger": "5",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "1m",
        "topic": "nulls",
        "kafka.auto.offset.reset": "latest",
        "kafka.enable.auto.commit": "true",
        "kafka.key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "kafka.interceptor.classes": "",
        "kafka.no.such.setting": "1",
        "isolationLevel": "read_committed",
    }.items():
        yield BatchCase(f"also {name}", {**_PLAIN, name: value})


def _bad_values() -> Iterator[BatchCase]:
    for name, values in {
        "minPartitions": ("0", "-1", "x", "", "1.5", "99999999999", " 2 "),
        "maxRecordsPerPartition": ("0", "-5", "x", ""),
        "failOnDataLoss": ("yes", "", "1"),
        "startingTimestamp": ("x", "", "-1", "1.5", " 5 ", "99999999999999999999"),
        "endingTimestamp": ("x", "-1"),
        "startingOffsetsByTimestampStrategy": ("ERROR", "Latest", "earliest", ""),
        "maxOffsetsPerTrigger": ("x", "-1"),
    }.items():
        for value in values:
            yield BatchCase(f"{name} {value!r}", {**_PLAIN, name: value})
    strategy = {"startingTimestamp": _at(HOUR_MS), "startingOffsetsByTimestampStrategy": "LATEST"}
    yield BatchCase("strategy LATEST with a timestamp after all", {**_PLAIN, **strategy})


def _queries() -> Iterator[BatchCase]:
    yield BatchCase("schema", _PLAIN, "schema")
    for condition in (
        "partition = 1",
        "offset >= 35 AND partition = 0",
        "timestamp >= timestamp_millis(1700000035000)",
        "key = CAST('key-3' AS BINARY)",
        "topic = 'nulls'",
        "value IS NULL",
        "offset % 10 = 0 OR partition > 1",
    ):
        yield BatchCase(f"where {condition}", _PLAIN, condition)
    for columns in (("offset",), ("key", "value"), ("timestampType", "timestamp")):
        yield BatchCase(f"select {', '.join(columns)}", _PLAIN, "rows", columns)
    yield BatchCase("where value is null, of nulls", {"subscribe": "nulls"}, "value IS NULL")
    yield BatchCase("a schema of some columns", _PLAIN, load_schema="topic string, partition int, value binary")
