"""`kafkalog delta-to-topic`: write a Delta table's changes to a topic as keyed records, every change once.

The table needs delta.enableChangeDataFeed. The command is a streaming query with a checkpoint; without --continuous it
stops after the changes that exist at its start. Spark downloads Delta's jars; with spark-submit pass --packages
io.delta:delta-spark_4.2_2.13:4.4.0.

Exit status: 0 done, or stopped by SIGTERM or SIGINT (the next run goes on); 1 an error; 2 wrong options.

examples:
  kafkalog delta-to-topic --table /data/tables/customers --path /data/log --topic changes --key id \\
      --checkpoint /data/checkpoints/changes
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyspark_kafkalog.delta.job import add_query_arguments, named_values, run_job
from pyspark_kafkalog.tools import maintenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

USAGE_EXIT_CODE = maintenance.USAGE_EXIT_CODE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Table, topic, and the conversion of rows to records."""
    add_query_arguments(parser)
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


def run(options: argparse.Namespace) -> int:
    """Run the query until it is done or stopped. Returns the exit status."""
    from pyspark_kafkalog.delta.delta_to_topic import DeltaToTopic  # loads Spark

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

    return run_job("kafkalog delta-to-topic", begin)
