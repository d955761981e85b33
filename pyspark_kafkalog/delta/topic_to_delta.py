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

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark_kafkalog.delta.bad_records import POLICIES, BadRecords, BadRecordsPolicy
from pyspark_kafkalog.delta.batch_identity import BatchIdentity
from pyspark_kafkalog.delta.column_names import quoted
from pyspark_kafkalog.delta.delta_target import DeltaTarget
from pyspark_kafkalog.delta.job import add_query_arguments, named_values, run_job, start
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's options."""
    parser.add_argument("--topic", required=True, metavar="NAME", help="the topic to read")
    parser.add_argument("--table", required=True, metavar="TABLE", help="the Delta table: a path, or a name")
    parser.add_argument("--mode", choices=MODES, default="append", help="append records, or keep the latest by key")
    parser.add_argument("--schema", metavar="DDL", help="fields of the JSON values; without it the table is raw")
    parser.add_argument("--key-schema", metavar="DDL", help="columns of the key, with --schema (default: key STRING)")
    parser.add_argument(
        "--metadata-columns", action="store_true", help="add _partition, _offset and _timestamp, with --schema"
    )
    parser.add_argument("--bad-records", choices=POLICIES, default="fail", help="what becomes of them (default: fail)")
    parser.add_argument("--bad-records-table", metavar="TABLE", help="where they go with quarantine")
    parser.add_argument("--merge-schema", action="store_true", help="add new columns to a table that is there")
    parser.add_argument("--partition-by", metavar="COLUMN[,COLUMN]", default="", help="of a table that is made")
    parser.add_argument(
        "--table-property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of a table that is made; repeatable",
    )
    parser.add_argument(
        "--source-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="such as maxOffsetsPerTrigger=1000000",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`jobs/topic_to_delta.py`: run the query until it is done, or told to end. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="topic_to_delta",
        description="Write a topic into a Delta table, every record once.",
        allow_abbrev=False,
    )
    add_query_arguments(parser)
    add_arguments(parser)
    options = parser.parse_args(arguments)

    def begin(spark: SparkSession) -> StreamingQuery:
        query = TopicToDelta(
            path=options.path,
            topic=options.topic,
            table=options.table,
            checkpoint=options.checkpoint,
            mode=options.mode,
            schema=options.schema,
            key_schema=options.key_schema,
            metadata_columns=options.metadata_columns,
            bad_records=options.bad_records,
            bad_records_table=options.bad_records_table,
            merge_schema=options.merge_schema,
            partition_by=[name for name in options.partition_by.split(",") if name],
            table_properties=named_values("--table-property", options.table_property),
            source_options=named_values("--source-option", options.source_option),
            continuous=options.continuous,
        )
        return query.start(spark)

    return run_job("topic_to_delta", begin)
