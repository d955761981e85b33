"""A Delta table's change feed into a topic, as keyed records, every change once.

The table needs delta.enableChangeDataFeed. Without a starting version the query begins with the table's rows as they
are, as inserts, and goes on with what changes; with one, with the changes from that version on.

Each micro-batch is one commit of the topic, with the query's id and the batch's number: one that comes again, after a
kill between the commit and Spark's note of it, finds its number there and writes nothing. It goes through foreachBatch,
not the streaming sink, since a batch is sorted by key and version first, which Spark grants to batches only.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_kafkalog.delta.batch_identity import BatchIdentity
from pyspark_kafkalog.delta.change_records import ChangeRecords
from pyspark_kafkalog.delta.job import add_query_arguments, named_values, run_job, start
from pyspark_kafkalog.spark.delta_session import is_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class DeltaToTopic:
    """The query. `table` is a path or a name; `continuous` a trigger interval, None to end with what there is.

    `keys`, `value_columns`, `value_column` and `timestamp_column` as in ChangeRecords. `source_options` go to Delta's
    source, `sink_options` to the topic's (compression.type, flush).
    """

    table: str
    path: str
    topic: str
    checkpoint: str
    keys: Sequence[str]
    value_columns: Sequence[str] = ()
    value_column: str | None = None
    timestamp_column: str | None = None
    starting_version: int | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    continuous: str | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query. Raises InvalidOptionError."""
        reader = spark.readStream.format("delta").options(**self.source_options).option("readChangeFeed", "true")
        if self.starting_version is not None:
            reader = reader.option("startingVersion", self.starting_version)
        changes = reader.load(self.table) if is_path(self.table) else reader.table(self.table)
        records = ChangeRecords.of(
            changes.schema,
            self.keys,
            value_columns=self.value_columns,
            value_column=self.value_column,
            timestamp_column=self.timestamp_column,
        )

        def write(batch: DataFrame, batch_id: int) -> None:
            identity = BatchIdentity.of(batch, batch_id)
            writer = records.apply(batch).write.format("kafkalog").mode("append").options(**self.sink_options)
            writer = writer.option("topic", self.topic).option("txnAppId", identity.query_id)
            writer.option("txnVersion", identity.batch_id).save(self.path)

        return start(changes, write, checkpoint=self.checkpoint, continuous=self.continuous)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's options."""
    parser.add_argument("--table", required=True, metavar="TABLE", help="the Delta table: a path, or a name")
    parser.add_argument("--topic", required=True, metavar="NAME", help="the topic to write, made if need be")
    parser.add_argument("--key", required=True, metavar="COLUMN[,COLUMN]", help="the columns that make the key")
    parser.add_argument("--value-columns", default="", metavar="COLUMN[,COLUMN]", help="of the JSON (default: all)")
    parser.add_argument("--value-column", metavar="COLUMN", help="the one column that is the value, as it is")
    parser.add_argument("--timestamp-column", metavar="COLUMN", help="the records' time (default: when written)")
    parser.add_argument("--starting-version", type=int, metavar="N", help="changes from there on, no rows before")
    parser.add_argument(
        "--source-option", action="append", default=[], metavar="NAME=VALUE", help="such as maxFilesPerTrigger=100"
    )
    parser.add_argument(
        "--sink-option", action="append", default=[], metavar="NAME=VALUE", help="such as compression.type=zstd"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`jobs/delta_to_topic.py`: run the query until it is done, or told to end. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="delta_to_topic",
        description="Write a Delta table's changes to a topic as keyed records, every change once.",
        allow_abbrev=False,
    )
    add_query_arguments(parser)
    add_arguments(parser)
    options = parser.parse_args(arguments)

    def begin(spark: SparkSession) -> StreamingQuery:
        query = DeltaToTopic(
            table=options.table,
            path=options.path,
            topic=options.topic,
            checkpoint=options.checkpoint,
            keys=[name for name in options.key.split(",") if name],
            value_columns=[name for name in options.value_columns.split(",") if name],
            value_column=options.value_column,
            timestamp_column=options.timestamp_column,
            starting_version=options.starting_version,
            source_options=named_values("--source-option", options.source_option),
            sink_options=named_values("--sink-option", options.sink_option),
            continuous=options.continuous,
        )
        return query.start(spark)

    return run_job("delta_to_topic", begin)
