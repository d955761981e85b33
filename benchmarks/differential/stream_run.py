"""Runs the streaming scripts: two queries follow one broker, through Spark's Kafka source and through kafkalog.

Each step compares the rows in their order by partition, the offsets in the checkpoint, and errors.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewPartitions
from kafka_processes.oracle import Broker
from pyspark.sql import DataFrame, SparkSession

from .batch_run import KAFKA_SOURCE, TRIES
from .broker_topics import delete_records, send, send_transaction, transactional, wait_for_checkpoints
from .outcomes import Outcome, failure_of, rows_by_partition, was_not_in_time
from .report import Compared
from .stream_scripts import (
    Action,
    AddPartitions,
    Create,
    DeleteRecords,
    DeleteTopic,
    EndOpen,
    Script,
    Send,
    Step,
    Transaction,
    stream_scripts,
)

_STEP_SECONDS_MAX: Final = 120


def run_streams(spark: SparkSession, broker: Broker, only: re.Pattern[str]) -> Iterator[Compared]:
    """Compare all steps of the scripts in whose names `only` is found."""
    scratch = broker.home.parent / "streams"
    with ThreadPoolExecutor(1) as beside:
        for at, script in enumerate(stream_scripts()):
            if not only.search(script.name):
                continue
            kafka_options = {"kafka.bootstrap.servers": broker.bootstrap, **KAFKA_SOURCE}
            kafka = Query(spark, "kafka", kafka_options, scratch / f"{at}-kafka")
            kafkalog = Query(spark, "kafkalog", {"path": str(broker.data)}, scratch / f"{at}-kafkalog")
            yield from _follow(broker, script, kafka, kafkalog, beside)


def _follow(
    broker: Broker, script: Script, kafka: Query, kafkalog: Query, beside: ThreadPoolExecutor
) -> Iterator[Compared]:
    operator = TopicOperator(broker)
    options = dict(script.options)
    try:
        for step in script.steps:
            for query in (kafka, kafkalog):
                if step.run != "live":
                    query.stop()
                query.forget()  # before the actions: an active query may read what the first of them sends at once
            for action in step.actions:
                operator.do(action)
            wait_for_checkpoints(broker)
            options |= step.options
            theirs = beside.submit(kafka.run, step, options)
            ours = kafkalog.run(step, options)
            yield Compared(f"{script.name}: {step.name}", theirs.result(), ours)
    finally:
        kafka.stop()
        kafkalog.stop()


class Query:
    """A streaming query from one source; its checkpoint is kept from run to run."""

    def __init__(self, spark: SparkSession, source: str, where: Mapping[str, str], checkpoint: Path) -> None:
        self._spark = spark
        self._source = source
        self._where = where
        self._checkpoint = checkpoint
        self._batches: dict[int, list[Any]] = {}  # a micro-batch that is made again takes its own place
        self._running: Any = None

    def forget(self) -> None:
        """Begin a step: what was read before is no part of its rows."""
        self._batches.clear()

    def run(self, step: Step, options: Mapping[str, str]) -> Outcome:
        """Start the query if it is not active, wait until it has read everything, and return what the step read."""
        return self._run(step, options, TRIES)

    def _run(self, step: Step, options: Mapping[str, str], tries: int) -> Outcome:
        try:
            if self._running is None:
                self._start(step, options)
            if step.run == "live":
                self._wait_for_all_available()
            elif not self._running.awaitTermination(_STEP_SECONDS_MAX):
                raise TimeoutError("the query did not end in time")
        except Exception as error:
            self.stop()
            outcome = Outcome(failure=failure_of(error, "query"))
            if tries > 1 and was_not_in_time(outcome):
                return self._run(step, options, tries - 1)
            return outcome
        if step.run != "live":
            self._running = None
        return Outcome({"rows": self._rows(step), "offsets": self._offsets()})

    def _wait_for_all_available(self) -> None:
        query = self._running
        timer = threading.Timer(_STEP_SECONDS_MAX, query.stop)  # processAllAvailable has no timeout
        timer.start()
        try:
            query.processAllAvailable()
        finally:
            timer.cancel()
        if not query.isActive:
            raise TimeoutError("the query did not end in time")

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _start(self, step: Step, options: Mapping[str, str]) -> None:
        loaded = self._spark.readStream.format(self._source).options(**self._where).options(**options).load()
        writer = loaded.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        if step.run == "now":
            writer = writer.trigger(availableNow=True)
        elif step.run == "once":
            writer = writer.trigger(once=True)
        self._running = writer.start()

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = batch.collect()

    def _rows(self, step: Step) -> Any:
        if step.is_by_batch:
            return [rows_by_partition(rows) for rows in self._batches.values() if rows]
        return rows_by_partition([row for rows in self._batches.values() for row in rows])

    def _offsets(self) -> dict[str, dict[str, int]]:
        """The newest offsets in the checkpoint; a key without partitions is not a topic."""
        newest = max((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name), default=None)
        if newest is None:
            return {}
        topics = json.loads(newest.read_text().splitlines()[-1])
        return {topic: dict(sorted(found.items())) for topic, found in sorted(topics.items()) if found}


class TopicOperator:
    """Carries out the actions of one script on the broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sent: Counter[tuple[str, int]] = Counter()
        self._open: list[Any] = []

    def do(self, action: Action) -> None:
        broker = self._broker
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        match action:
            case Send(topic, partition, count):
                send(broker, topic, partition, count, first=self._sent[topic, partition])
                self._sent[topic, partition] += count
            case Transaction(topic, partitions, count, end):
                producer = transactional(broker, f"{topic}-{time.monotonic_ns()}")
                send_transaction(producer, topic, partitions, count, end)
                if end == "open":
                    self._open.append(producer)
            case EndOpen(end):
                producer = self._open.pop()
                (producer.commit_transaction if end == "commit" else producer.abort_transaction)(30)
            case Create(topic, partitions):
                broker.create_topic(topic, partitions)
            case AddPartitions(topic, total):
                admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
                _wait_until(lambda: len(admin.list_topics(timeout=30).topics[topic].partitions) == total)
            case DeleteRecords(topic, partition, before_offset):
                delete_records(broker, topic, partition, before_offset)
            case DeleteTopic(topic):
                admin.delete_topics([topic])[topic].result(30)
                self._sent = Counter({each: count for each, count in self._sent.items() if each[0] != topic})
                _wait_until(lambda: not list(broker.data.glob(f"{topic}-[0-9]*")))


def _wait_until(is_so: Any, seconds_max: float = 30) -> None:
    deadline = time.monotonic() + seconds_max
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("the broker did not complete the action in time")
        time.sleep(0.1)
