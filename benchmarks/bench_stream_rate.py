"""Source to sink: a streaming query that copies a topic, from its start to its end, and stops."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench_data import KEY_BYTES, TOPIC, VALUE_BYTES, orders, write_ours
from bench_runs import OURS, Contender, Goal, measure, report
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

from pyspark_kafkalog import LogDir

if TYPE_CHECKING:
    from bench_peers import Broker

CONNECTOR, CEILING, TWO_COLUMNS = "spark-sql-kafka", "transport ceiling", "2 columns read"
PARTITIONS = 4
TRIGGERS = 8
GOALS = (Goal(CONNECTOR, 3.0),)
CODECS = ("none", "lz4")


@dataclass
class RateBench:
    """One run; each copy has a checkpoint and a sink of its own."""

    spark: SparkSession
    scratch: Path
    broker: Broker | None
    records: int
    rounds: int
    codec: str
    per_trigger: int | None
    _copies: list[str] = field(default_factory=list)

    @property
    def source(self) -> Path:
        return self.scratch / f"source-{self.codec}"

    def ours(self) -> None:
        self._copy_ours(self._read("kafkalog"))

    def ours_of_two_columns(self) -> None:
        """Asked for no more than the copy needs. Spark's Kafka source always gives all seven columns."""
        self._copy_ours(self._read("kafkalog").schema("key BINARY, value BINARY"))

    def _copy_ours(self, reader: DataStreamReader) -> None:
        name = self._next()
        root = self.scratch / name
        LogDir.create(root).create_topic(TOPIC, partitions=PARTITIONS)
        rows = reader.option("path", str(self.source)).option("subscribe", TOPIC).load()
        copy = rows.select("key", "value").writeStream.format("kafkalog").option("path", str(root))
        self._run(copy.option("topic", TOPIC).option("compression.type", self.codec), name)

    def kafka(self) -> None:
        assert self.broker is not None
        name = self._next()
        self.broker.create_topic(name, PARTITIONS)
        rows = self._read("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        copy = rows.option("subscribe", self.source.name).load().select("key", "value").writeStream.format("kafka")
        copy = copy.option("kafka.bootstrap.servers", self.broker.bootstrap).option("topic", name)
        self._run(copy.option("kafka.compression.type", self.codec), name)

    def ceiling(self) -> None:
        name = self._next()
        rows = self._read("ready_batches").options(
            records=self.records, partitions=PARTITIONS, keyBytes=KEY_BYTES, valueBytes=VALUE_BYTES
        )
        self._run(rows.load().select("key", "value").writeStream.format("count_only"), name)

    def check_ours(self) -> None:
        """The copy must be whole, and of as many micro-batches as were asked for; then it goes."""
        name = self._copies[-1]
        log_dir = LogDir.open(self.scratch / name)
        copied = sum(each.high_watermark for each in log_dir.topic(TOPIC).partitions)
        assert copied == self.records, f"{copied} of {self.records} records were copied"
        self._check_triggers(name)
        shutil.rmtree(self.scratch / name)

    def check_kafka(self) -> None:
        assert self.broker is not None
        name = self._copies[-1]
        rows = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        copied = rows.option("subscribe", name).load().count()
        assert copied == self.records, f"{copied} of {self.records} records were copied"
        self._check_triggers(name)

    def _check_triggers(self, name: str) -> None:
        done = sum(each.name.isdigit() for each in self._checkpoint(name).joinpath("commits").iterdir())
        assert (done > 1) == (self.per_trigger is not None), f"{done} micro-batches"

    def _next(self) -> str:
        limited = "all" if self.per_trigger is None else "limited"
        self._copies.append(f"copy-{self.codec}-{limited}-{len(self._copies)}")
        return self._copies[-1]

    def _checkpoint(self, name: str) -> Path:
        return self.scratch / "checkpoints" / name

    def _read(self, source: str) -> DataStreamReader:
        rows = self.spark.readStream.format(source).option("startingOffsets", "earliest")
        return rows if self.per_trigger is None else rows.option("maxOffsetsPerTrigger", self.per_trigger)

    def _run(self, copy: DataStreamWriter, name: str) -> None:
        query = copy.option("checkpointLocation", str(self._checkpoint(name))).trigger(availableNow=True).start()
        query.awaitTermination()


def run(spark: SparkSession, scratch: Path, broker: Broker | None, *, records: int, rounds: int) -> list[str]:
    """Measure with each codec, in one micro-batch and in several; lines for goals missed."""
    missed = []
    for codec in CODECS:
        _make_source(spark, scratch, broker, codec, records)
        for per_trigger in (None, -(-records // TRIGGERS)):
            bench = RateBench(spark, scratch, broker, records, rounds, codec, per_trigger)
            contenders = {
                OURS: Contender(bench.ours, bench.check_ours),
                TWO_COLUMNS: Contender(bench.ours_of_two_columns, bench.check_ours),
                CEILING: Contender(bench.ceiling),
            }
            if broker:
                contenders[CONNECTOR] = Contender(bench.kafka, bench.check_kafka)
            medians = measure(contenders, rounds=rounds)
            size = "one micro-batch" if per_trigger is None else f"micro-batches of {per_trigger:,}"
            missed += report(f"Source to sink, {codec}, {size}", medians, records=records, goals=GOALS)
    return missed


def _make_source(spark: SparkSession, scratch: Path, broker: Broker | None, codec: str, records: int) -> None:
    """The topic in a root, and the very same files in the broker."""
    root = scratch / f"source-{codec}"
    LogDir.create(root).create_topic(TOPIC, partitions=PARTITIONS)
    write_ours(orders(spark, records, PARTITIONS), root, codec)
    if broker:
        for partition in range(PARTITIONS):
            shutil.copytree(root / f"{TOPIC}-{partition}", scratch / "mount" / f"{root.name}-{partition}")
        broker.mount(scratch / "mount", {root.name: PARTITIONS})
