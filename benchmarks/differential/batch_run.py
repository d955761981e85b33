"""Runs the batch cases: each through Spark's Kafka source and through kafkalog, on the files of the same broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from kafka_processes.oracle import Broker
from pyspark.sql import DataFrame, SparkSession

from .batch_cases import BatchCase, batch_cases
from .broker_topics import fill
from .outcomes import Outcome, observe, rows_by_partition, was_not_in_time
from .report import Compared

#: A record that never comes is waited for as long, two minutes unless it is set.
KAFKA_SOURCE: Final = {"kafkaConsumer.pollTimeoutMs": "4000"}
TRIES: Final = 3


def run_batches(spark: SparkSession, broker: Broker, only: re.Pattern[str]) -> Iterator[Compared]:
    """Fill the broker, then compare all cases in whose names `only` is found."""
    fill(broker)
    with ThreadPoolExecutor(1) as beside:
        for case in batch_cases():
            if only.search(case.name):
                kafka = beside.submit(read_kafka, spark, broker, case)
                kafkalog = read_kafkalog(spark, broker, case)
                yield Compared(case.name, kafka.result(), kafkalog)


def read_kafka(spark: SparkSession, broker: Broker, case: BatchCase) -> Outcome:
    where = {"kafka.bootstrap.servers": broker.bootstrap, **KAFKA_SOURCE}
    return _read(spark, "kafka", {**where, **case.options}, case)


def read_kafkalog(spark: SparkSession, broker: Broker, case: BatchCase) -> Outcome:
    return _read(spark, "kafkalog", {"path": str(broker.data), **case.options}, case)


def _read(spark: SparkSession, source: str, options: dict[str, str], case: BatchCase) -> Outcome:
    def load() -> DataFrame:
        reader = spark.read.format(source).options(**options)
        if case.load_schema is not None:
            reader = reader.schema(case.load_schema)
        return reader.load()

    for _ in range(TRIES - 1):
        outcome = observe(load, lambda loaded: _ask(loaded, case))
        if not was_not_in_time(outcome):
            return outcome
    return observe(load, lambda loaded: _ask(loaded, case))


def _ask(loaded: DataFrame, case: BatchCase) -> Any:
    if case.query == "schema":
        return loaded.schema.simpleString()
    if case.query == "tasks":
        return loaded.rdd.getNumPartitions()
    if case.query != "rows":
        loaded = loaded.where(case.query)
    if case.columns:
        loaded = loaded.select("topic", "partition", *case.columns)
    return rows_by_partition(loaded.collect())
