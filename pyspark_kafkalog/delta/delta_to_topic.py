"""The change feed of a Delta table into a topic, as keyed records, each change once.

The table needs delta.enableChangeDataFeed. Without a starting version the query begins with the current rows of the
table, as inserts, and continues with later changes; with a starting version, it begins with the changes from that
version on.

Each micro-batch is one commit of the topic, with the query's id and the batch's number. A batch that is replayed, after
a kill between the commit and Spark's checkpoint of it, finds its number in the commit log and writes nothing. Only the
first batch may create the log directory; a later one that does not find the query's id in it fails, as with the
streaming sink. The query uses foreachBatch rather than the streaming sink because each batch is first sorted by key and
version, which Spark allows in batch mode only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_kafkalog.delta.batch_identity import BatchIdentity
from pyspark_kafkalog.delta.change_records import ChangeRecords
from pyspark_kafkalog.delta.job import start
from pyspark_kafkalog.maintenance.jobs.delta_session import is_path
from pyspark_kafkalog.spark.options.parse import locate
from pyspark_kafkalog.spark.write.stream import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class DeltaToTopic:
    """The query. `table` is a path or a name. `continuous` is a trigger interval; None processes what is available and
    ends.

    `keys`, `value_columns`, `value_column` and `timestamp_column` as in ChangeRecords. `source_options` are passed to
    Delta's source, `sink_options` to the topic's sink (compression.type, flush).
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
        """Start the query. Raises InvalidOptionError for columns that do not fit the table."""
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
