"""Kills a query between its sink's commit and Spark's checkpoint commit, restarts it, and counts duplicate records.

    python benchmarks/bench_stream_replay.py SINK SOURCE CHECKPOINT WHERE SCRATCH

As a script, this module is the query: it copies the topic in the root SOURCE, in small micro-batches, to the root WHERE
(SINK kafkalog) or to the broker at WHERE (SINK kafka). `run` starts it, watches its sink, kills it with SIGKILL as soon
as a chosen micro-batch is in the sink, restarts it, and finally lets it finish and counts the records.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_peers import Broker, start_spark

from pyspark_kafkalog import LogDir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "replayed"
PARTITIONS = 4
RECORDS_A_TRIGGER = 1000
TRIGGERS = 12
KILL_AT = (1, 4, 7)
WAIT_S_MAX = 120


@dataclass(frozen=True, slots=True)
class Sink:
    """`count` says how many records are there, committed."""

    kind: str
    where: str
    count: Callable[[], int]
    rows: Callable[[SparkSession], DataFrame]


def main() -> None:
    kind, source, checkpoint, where, scratch = sys.argv[1:6]
    standin = os.environ.get("KAFKALOG_BENCH_STANDIN_JAR")
    spark = start_spark(Path(scratch), Path(standin) if standin else None, cores=2)
    rows = spark.readStream.format("kafkalog").option("path", source).option("subscribe", TOPIC)
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", RECORDS_A_TRIGGER).load()
    copy = rows.select("key", "value").writeStream.format(kind).option("topic", TOPIC)
    copy = copy.option("path" if kind == "kafkalog" else "kafka.bootstrap.servers", where)
    copy.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def run(spark: SparkSession, scratch: Path, broker: Broker | None, standin: Path | None) -> list[str]:
    """Kill and restart a query with each sink; a line when ours has a record twice, or lost one."""
    root = scratch / "replay-source"
    _make_source(root)
    sinks = [_our_sink(scratch / "replay-sink")]
    if broker:
        sinks.append(_kafka_sink(broker))
    print(
        f"\nKilled between the sink's commit and Spark's, started again  ({RECORDS_A_TRIGGER * TRIGGERS:,} records in "
        f"micro-batches of {RECORDS_A_TRIGGER:,})"
    )
    missed = []
    for sink in sinks:
        hits = _kill_and_finish(sink, root, scratch, standin)
        rows = sink.rows(spark)
        total, distinct = rows.count(), rows.distinct().count()
        twice, lost = total - distinct, RECORDS_A_TRIGGER * TRIGGERS - distinct
        print(
            f"  {sink.kind:<18}{hits} kills of {len(KILL_AT)} hit: {twice:,} records twice, {lost:,} lost", flush=True
        )
        if sink.kind == "kafkalog" and (twice or lost or not hits):
            missed.append(f"Killed queries: {hits} kills hit, {twice:,} records twice, {lost:,} lost")
    return missed


def _make_source(root: Path) -> None:
    import pyarrow as pa

    log_dir = LogDir.create(root)
    log_dir.create_topic(TOPIC, partitions=PARTITIONS)
    numbers = [b"%d" % number for number in range(RECORDS_A_TRIGGER * TRIGGERS)]
    column = pa.array(numbers, pa.binary())
    log_dir.append(TOPIC, pa.table({"key": column, "value": column}))


def _our_sink(root: Path) -> Sink:
    log_dir = LogDir.create(root)
    log_dir.create_topic(TOPIC, partitions=PARTITIONS)

    def count() -> int:
        log_dir.refresh()
        return sum(each.high_watermark for each in log_dir.topic(TOPIC).partitions)

    def rows(spark: SparkSession) -> DataFrame:
        return spark.read.format("kafkalog").option("subscribe", TOPIC).load(str(root)).select("value")

    return Sink("kafkalog", str(root), count, rows)


def _kafka_sink(broker: Broker) -> Sink:
    from confluent_kafka import Consumer, TopicPartition

    broker.start().create_topic(TOPIC, PARTITIONS)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "replay"})
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]

    def count() -> int:
        return sum(consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions)

    def rows(spark: SparkSession) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
        return reader.option("subscribe", TOPIC).load().select("value")

    return Sink("kafka", broker.bootstrap, count, rows)


def _kill_and_finish(sink: Sink, source: Path, scratch: Path, standin: Path | None) -> int:
    """The number of kills that happened at the intended time."""
    checkpoint = scratch / f"replay-checkpoint-{sink.kind}"
    hits = 0
    for batch_id in KILL_AT:
        with _query(sink, source, checkpoint, scratch, standin) as process:
            before = _wait_until(lambda: (checkpoint / "offsets" / str(batch_id)).exists(), sink.count, process)  # noqa: B023
            _wait_until(lambda: sink.count() >= before + RECORDS_A_TRIGGER, sink.count, process)  # noqa: B023
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        hits += not (checkpoint / "commits" / str(batch_id)).exists()
    with _query(sink, source, checkpoint, scratch, standin) as process:
        if process.wait(WAIT_S_MAX):
            raise RuntimeError(f"the query failed, see {scratch}/replay.log:\n{_log_tail(scratch)}")
    return hits


def _wait_until(is_true: Callable[[], bool], then: Callable[[], int], process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_true():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the query ended, or hung, before it was killed (exit code {process.poll()})")
        time.sleep(0.0005)
    return then()


@contextlib.contextmanager
def _query(
    sink: Sink, source: Path, checkpoint: Path, scratch: Path, standin: Path | None
) -> Iterator[subprocess.Popen[bytes]]:
    """The query in a session of its own processes; none of them is left."""
    command = [sys.executable, __file__, sink.kind, str(source), str(checkpoint), sink.where]
    environment = {**os.environ, **({"KAFKALOG_BENCH_STANDIN_JAR": str(standin)} if standin else {})}
    with tempfile.TemporaryDirectory(dir=scratch) as own, (scratch / "replay.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, own], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _log_tail(scratch: Path) -> str:
    return "\n".join((scratch / "replay.log").read_text(errors="replace").splitlines()[-20:])


if __name__ == "__main__":
    main()
