"""`kafkalog topic-to-delta`: write a topic into a Delta table, every record once.

Records are appended, or the latest value of each key is kept (--mode upsert; a tombstone deletes the row). The command
is a streaming query with a checkpoint; without --continuous it stops after the records that exist at its start. Spark
downloads Delta's jars; with spark-submit pass --packages io.delta:delta-spark_4.2_2.13:4.4.0.

Exit status: 0 done, or stopped by SIGTERM or SIGINT (the next run goes on); 1 an error; 2 wrong options.

examples:
  kafkalog topic-to-delta --path /data/log --topic orders --table /data/tables/orders \\
      --checkpoint /data/checkpoints/orders --schema 'id LONG, amount DOUBLE, at TIMESTAMP'
  kafkalog topic-to-delta --path /data/log --topic customers --table /data/tables/customers \\
      --checkpoint /data/checkpoints/customers --schema 'name STRING' --mode upsert --key-schema 'id LONG'
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyspark_kafkalog.delta.bad_records import POLICIES
from pyspark_kafkalog.delta.job import add_query_arguments, named_values, run_job
from pyspark_kafkalog.delta.topic_to_delta import MODES, TopicToDelta
from pyspark_kafkalog.tools import maintenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

USAGE_EXIT_CODE = maintenance.USAGE_EXIT_CODE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, table, and the conversion of records to rows."""
    add_query_arguments(parser)
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


def run(options: argparse.Namespace) -> int:
    """Run the query until it is done or stopped. Returns the exit status."""

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

    return run_job("kafkalog topic-to-delta", begin)
