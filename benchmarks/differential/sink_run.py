"""Runs the sink cases: each through Spark's Kafka sink into a broker, and through kafkalog into a log directory.

The result is read with librdkafka from the broker, and with `LogDir.read` from the log directory. This does not rely on
either writer's own reader, because the batch cases check that both readers agree.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic
from kafka_processes.clients import consume
from kafka_processes.oracle import Broker
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir

from .outcomes import Failure, Outcome, failure_of
from .report import Compared
from .sink_cases import SinkCase, sink_cases

#: A topic that never comes is waited for as long, a minute unless it is set.
KAFKA_SINK: Final = {
    "kafka.max.block.ms": "3000",
    "kafka.delivery.timeout.ms": "60000",
    "kafka.request.timeout.ms": "9000",
}
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_ATTRIBUTES_AT: Final = 21  # in a record batch of version 2: two bytes, the codec in the last three bits
_LENGTH_AT: Final = 8
_BEFORE_LENGTH_COUNTS: Final = 12


def run_sinks(spark: SparkSession, broker: Broker, only: re.Pattern[str]) -> Iterator[Compared]:
    """Create the topics of all cases in whose names `only` is found on both sides, then compare the cases."""
    scratch = broker.home.parent / "sinks"
    root = scratch / "root"
    log_dir = LogDir.create(root)
    cases = [(f"sink-{at:03}", case) for at, case in enumerate(sink_cases()) if only.search(case.name)]
    _create_topics(broker, log_dir, cases)
    with ThreadPoolExecutor(1) as beside:
        for topic, case in cases:
            rows = spark.sql(_named(case.rows, topic)).coalesce(1)
            if case.stream:
                rows.write.parquet(str(scratch / topic / "rows"))
            ours = _write(spark, "kafkalog", {"path": str(root)}, scratch / topic, topic, case, rows)
            kafka_options = {"kafka.bootstrap.servers": broker.bootstrap, **KAFKA_SINK}
            theirs = beside.submit(_write, spark, "kafka", kafka_options, scratch / topic, topic, case, rows).result()
            yield Compared(
                case.name,
                _outcome(theirs, case, topic, lambda name: _consumed(broker, name), broker.data),
                _outcome(ours, case, topic, lambda name: _read(root, name), root),
            )


def _named(text: str, topic: str) -> str:
    return text.replace("{topic}", topic)


def _create_topics(broker: Broker, log_dir: LogDir, cases: list[tuple[str, SinkCase]]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = []
    for topic, case in cases:
        for name, partitions in case.topics.items():
            new.append(NewTopic(_named(name, topic), partitions, 1, config=dict(case.configs)))
            log_dir.create_topic(_named(name, topic), partitions=partitions, configs=dict(case.configs))
    for created in admin.create_topics(new).values():
        created.result(60)


def _write(
    spark: SparkSession,
    sink: str,
    where: Mapping[str, str],
    scratch: Path,
    topic: str,
    case: SinkCase,
    rows: DataFrame,
) -> Failure | None:
    options = {**where, **{name: _named(value, topic) for name, value in case.options.items()}}
    try:
        if case.stream:
            _stream(spark, sink, options, scratch, case, rows)
        else:
            writer = rows.write.format(sink).options(**options)
            if case.mode:
                writer = writer.mode(case.mode)
            writer.save()
    except Exception as error:
        return failure_of(error, "query")
    return None


def _stream(
    spark: SparkSession, sink: str, options: Mapping[str, str], scratch: Path, case: SinkCase, rows: DataFrame
) -> None:
    stream = spark.readStream.schema(rows.schema).parquet(str(scratch / "rows"))
    if case.stream != "append":
        stream = (
            stream.groupBy("key").agg({"value": "count"}).selectExpr("key", "CAST(`count(value)` AS STRING) AS value")
        )
    writer = stream.writeStream.format(sink).options(**options).outputMode(case.stream)
    writer = writer.option("checkpointLocation", str(scratch / f"checkpoint-{sink}"))
    writer.trigger(availableNow=True).start().awaitTermination(60)


def _outcome(
    failure: Failure | None, case: SinkCase, topic: str, read: Callable[[str], list[Any] | None], root: Path
) -> Outcome:
    """The current records of each of the case's topics, and the codecs of the batches on disk."""
    there: dict[str, Any] = {}
    for name in sorted({_named(each, topic) for each in (*case.topics, "{topic}", "{topic}-b")}):
        rows = read(name)
        if rows is None:
            continue
        if not case.is_placed:
            rows = sorted((row[1:] for row in rows), key=repr)
        there[name] = rows
        if "compression" in case.name:
            there[f"codecs of {name}"] = sorted(_codecs_on_disk(root, name))
    return Outcome(there, failure)


def _consumed(broker: Broker, topic: str) -> list[Any] | None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    if topic not in admin.list_topics(timeout=30).topics:
        return None
    return [
        (row.partition, row.key, row.value, list(row.headers), _when(row.timestamp_ms))
        for row in consume(broker.bootstrap, topic)
    ]


def _read(root: Path, topic: str) -> list[Any] | None:
    log_dir = LogDir.open(root)
    if topic not in log_dir.topics():
        return None
    rows = sorted(log_dir.read(topic).to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    return [
        (
            row["partition"],
            row["key"],
            row["value"],
            [(each["key"], each["value"]) for each in row["headers"] or ()],
            _when(round(row["timestamp"].timestamp() * 1000)),
        )
        for row in rows
    ]


def _when(timestamp_ms: int) -> object:
    return "now" if abs(time.time() * 1000 - timestamp_ms) < 3_600_000 else timestamp_ms


def _codecs_on_disk(root: Path, topic: str) -> set[str]:
    found = set()
    for path in root.glob(f"{topic}-[0-9]*/*.log"):
        content, at = path.read_bytes(), 0
        while at + _ATTRIBUTES_AT + 2 <= len(content):
            attributes = int.from_bytes(content[at + _ATTRIBUTES_AT : at + _ATTRIBUTES_AT + 2], "big")
            found.add(_CODECS[attributes & 7])
            at += _BEFORE_LENGTH_COUNTS + int.from_bytes(content[at + _LENGTH_AT : at + _LENGTH_AT + 4], "big")
    return found
