"""Cases that query one DataFrame, view or table twice, while the topic changes in between."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_processes.oracle import Broker
from pyspark.sql import DataFrame, SparkSession

from .batch_run import KAFKA_SOURCE
from .broker_topics import delete_records, send, wait_for_checkpoints
from .outcomes import Outcome, observe, rows_by_partition
from .report import Compared

_APPENDED: Final = 7
_DELETED_BEFORE: Final = 12


@dataclass(frozen=True, slots=True)
class RepeatedQuery:
    """`queried` is what both queries are made on: one DataFrame, a temporary view, a table, or a new load() for each.

    `change` is what happens to the topic between them.
    """

    name: str
    queried: str = "dataframe"
    change: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)


def repeated_queries() -> list[RepeatedQuery]:
    """All of them; names are unique."""
    return [
        RepeatedQuery("a DataFrame, nothing in between", change="nothing"),
        RepeatedQuery("a DataFrame, then an append"),
        RepeatedQuery("a DataFrame, then delete-records", change="delete-records"),
        RepeatedQuery(
            "a DataFrame, then delete-records, failOnDataLoss false",
            change="delete-records",
            options={"failOnDataLoss": "false"},
        ),
        RepeatedQuery("a temporary view, then an append", queried="view"),
        RepeatedQuery("a table, then an append", queried="table"),
        RepeatedQuery("a table, then delete-records", queried="table", change="delete-records"),
        RepeatedQuery("load() again after an append", queried="load"),
        RepeatedQuery("load() again after delete-records", queried="load", change="delete-records"),
    ]


def run_repeated_queries(spark: SparkSession, broker: Broker, only: re.Pattern[str]) -> Iterator[Compared]:
    """Compare all cases in whose names `only` is found, each with a topic of its own."""
    for at, case in enumerate(repeated_queries()):
        if not only.search(case.name):
            continue
        topic = f"repeated-{at}"
        broker.create_topic(topic)
        send(broker, topic, 0, 20)
        wait_for_checkpoints(broker)
        options = {"subscribe": topic, **case.options}
        sides = {
            "kafka": {"kafka.bootstrap.servers": broker.bootstrap, **KAFKA_SOURCE, **options},
            "kafkalog": {"path": str(broker.data), **options},
        }
        queries = {source: _query(spark, source, topic, case, given) for source, given in sides.items()}
        first = {source: observe(query, _rows) for source, query in queries.items()}
        _change(broker, topic, case.change)
        second = {source: observe(query, _rows) for source, query in queries.items()}
        both = [_both(first[source], second[source]) for source in sides]
        yield Compared(case.name, *both)


def _query(
    spark: SparkSession, source: str, topic: str, case: RepeatedQuery, options: Mapping[str, str]
) -> Callable[[], DataFrame]:
    """A function that returns the DataFrame of each query."""
    name = f"{source}_{topic.replace('-', '_')}"

    def load() -> DataFrame:
        return spark.read.format(source).options(**options).load()

    if case.queried == "load":
        return load
    if case.queried == "table":
        listed = ", ".join(f"`{option}` '{value}'" for option, value in options.items())
        spark.sql(f"CREATE TABLE {name} USING {source} OPTIONS ({listed})")
        return lambda: spark.sql(f"SELECT * FROM {name}")
    loaded = load()
    if case.queried == "view":
        loaded.createOrReplaceTempView(name)
        return lambda: spark.sql(f"SELECT * FROM {name}")
    return lambda: loaded


def _rows(loaded: DataFrame) -> Any:
    # A DataFrame of its own for each query: one that was collected keeps its plan, whatever the source.
    return rows_by_partition(loaded.where("offset >= 0").collect())


def _change(broker: Broker, topic: str, change: str) -> None:
    if change == "append":
        send(broker, topic, 0, _APPENDED, first=20)
    elif change == "delete-records":
        delete_records(broker, topic, 0, _DELETED_BEFORE)
    wait_for_checkpoints(broker)


def _both(first: Outcome, second: Outcome) -> Outcome:
    """The rows of both queries, and the failure of the first one that fails."""
    return Outcome([first.value, second.value], first.failure or second.failure)
