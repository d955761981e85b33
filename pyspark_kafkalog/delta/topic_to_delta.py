"""A topic into a Delta table, every record once: appended, or as the latest value of each key.

Both modes write in foreachBatch, with the query's id and the batch's number in the commit that has the data (see
delta_target.py). Delta's own streaming sink does the same for appends. Here one way serves appends, merges and the
quarantine of bad records. Exactly once therefore needs no key, offset or hash column in the table: a batch that comes
again has the same offsets, and is not written again.

Upserts. Of the records that a batch has of a key the one with the highest offset counts. A key's records are in one
partition, so offsets order them, and batches come in the order of offsets; an older batch cannot come after a newer one
(its number is below the id's last one), so no offset has to be kept with a row to tell. The order is lost where Kafka
loses it too: when partitions are added to a topic, keys move. Where a batch then has a key in several partitions, the
latest timestamp among their last records counts.

A tombstone deletes the key's row. Appended with a schema it is a row whose value columns are null; raw, its value is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark_kafkalog.delta.bad_records import BadRecords, BadRecordsPolicy
from pyspark_kafkalog.delta.batch_identity import BatchIdentity
from pyspark_kafkalog.delta.column_names import quoted
from pyspark_kafkalog.delta.delta_target import DeltaTarget
from pyspark_kafkalog.delta.job import start
from pyspark_kafkalog.delta.record_shape import (
    BAD,
    DELETED,
    OFFSET,
    PARTITION,
    RECORD,
    TIMESTAMP,
    RecordShape,
)
from pyspark_kafkalog.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Mode = Literal["append", "upsert"]
MODES: Final = get_args(Mode)

_BESIDE: Final = (PARTITION, OFFSET, TIMESTAMP, DELETED, BAD, RECORD)
_ROW: Final = "__kafkalog_row"


@dataclass(frozen=True, kw_only=True)
class TopicToDelta:
    """The query. `table` is a path or a name; `continuous` a trigger interval, None to end with what there is.

    `schema` and `key_schema` are DDL, see record_shape.py; None for the source's columns. `source_options` go to the
    source, over `startingOffsets=earliest` and `isolationLevel=read_committed`. `partition_by` and `table_properties`
    count where the table is made.
    """

    path: str
    topic: str
    table: str
    checkpoint: str
    mode: Mode = "append"
    schema: str | None = None
    key_schema: str | None = None
    metadata_columns: bool = False
    bad_records: BadRecordsPolicy = "fail"
    bad_records_table: str | None = None
    merge_schema: bool = False
    partition_by: Sequence[str] = ()
    table_properties: Mapping[str, str] = field(default_factory=dict)
    source_options: Mapping[str, str] = field(default_factory=dict)
    continuous: str | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Make the table if need be, and start the query. Raises InvalidOptionError."""
        shape = RecordShape.parse(
            self.schema,
            self.key_schema,
            metadata_columns=self.metadata_columns,
            keys_needed=self.mode == "upsert",
        )
        bad_records = BadRecords(self.bad_records, self.bad_records_table)
        options = {"startingOffsets": "earliest", "isolationLevel": "read_committed", **self.source_options}
        records = spark.readStream.format("kafkalog").options(**options).option("subscribe", self.topic).load(self.path)
        target = DeltaTarget(self.table, merge_schema=self.merge_schema)
        if not target.exists(spark):
            schema = shape.apply(records).drop(*_BESIDE).schema
            missing = set(self.partition_by) - set(schema.names)
            if missing:
                raise InvalidOptionError(
                    f"the table cannot be partitioned by {min(missing)}: it has {', '.join(schema.names)}"
                )
            target.create(spark, schema, partition_by=self.partition_by, properties=self.table_properties)

        def write(batch: DataFrame, batch_id: int) -> None:
            identity = BatchIdentity.of(batch, batch_id)
            rows = shape.apply(batch)
            kept = rows.persist() if bad_records.reads_twice else None
            try:
                good = bad_records.keep_good(rows, identity)
                if self.mode == "append":
                    target.append(good.drop(*_BESIDE), identity)
                else:
                    target.merge_by_key(latest_by_key(good, shape.keys), shape.keys, DELETED, identity)
            finally:
                if kept is not None:
                    kept.unpersist()

        return start(records, write, checkpoint=self.checkpoint, continuous=self.continuous)


def latest_by_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row a key: its last, with the table's columns and DELETED. `rows` as RecordShape.apply gives them."""
    from pyspark.sql import functions as F

    columns = [name for name in rows.columns if name not in (*_BESIDE, *keys)]
    row = F.struct(TIMESTAMP, PARTITION, DELETED, *(F.col(quoted(name)) for name in columns))
    by = [F.col(quoted(key)) for key in keys]
    in_partition = rows.groupBy(*by, PARTITION).agg(F.max_by(row, F.col(OFFSET)).alias(_ROW))
    order = F.struct(f"{_ROW}.{TIMESTAMP}", f"{_ROW}.{PARTITION}")
    latest = in_partition.groupBy(*by).agg(F.max_by(F.col(_ROW), order).alias(_ROW))
    return latest.select(*by, *(f"{_ROW}.{quoted(name)}" for name in columns), f"{_ROW}.{DELETED}")
