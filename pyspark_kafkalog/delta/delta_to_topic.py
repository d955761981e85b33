"""A Delta table's change feed into a topic, as keyed records, every change once.

The table needs delta.enableChangeDataFeed. Without a starting version the query begins with the table's rows as they
are, as inserts, and goes on with what changes; with one, with the changes from that version on.

Each micro-batch is one commit of the topic, with the query's id and the batch's number: one that comes again, after a
kill between the commit and Spark's note of it, finds its number there and writes nothing. Only the first may create the
log directory; a later one that does not find the query's id in it fails, as with the streaming sink. It goes through
foreachBatch, not the streaming sink, since a batch is sorted by key and version first, which Spark grants to batches
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_kafkalog.delta.batch_identity import BatchIdentity
from pyspark_kafkalog.delta.change_records import ChangeRecords
from pyspark_kafkalog.delta.job import start
from pyspark_kafkalog.spark.delta_session import is_path
from pyspark_kafkalog.spark.location import locate
from pyspark_kafkalog.spark.stream_writer import MicroBatch

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
            MicroBatch(identity.query_id, "", identity.batch_id).check_root(locate(self.path).root)
            writer = records.apply(batch).write.format("kafkalog").mode("append").options(**self.sink_options)
            writer = writer.option("topic", self.topic).option("txnAppId", identity.query_id)
            writer.option("txnVersion", identity.batch_id).save(self.path)

        return start(changes, write, checkpoint=self.checkpoint, continuous=self.continuous)
