"""The commands `topic-to-delta` and `delta-to-topic`: streaming queries between topics and Delta tables.

A query without an interval processes what is available at its start, in batches, and ends. With an interval it runs
until SIGTERM, SIGINT or SIGHUP and then stops, possibly within a batch. The next run repeats that batch, which is
written once.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark_kafkalog.delta.delta_target import DeltaTarget
from pyspark_kafkalog.delta.topic_to_delta import MODES, POLICIES, TopicToDelta
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.tasks import (
    bound_snapshot_tasks,
    check_delta,
    import_delta,
    stop_signal,
    with_delta,
)
from pyspark_kafkalog.security.open import AnyPath
from pyspark_kafkalog.tools.command import Command, add_path, exit_code_of
from pyspark_kafkalog.units import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: By topic and partition, as in the progress of a query that reads topics.
Offsets: TypeAlias = Mapping[str, Mapping[str, int]]

_POLL_SECONDS: Final = 0.2
#: What Spark adds around the message of a failed query.
_WRAPPINGS: Final = re.compile(r"^(\[[A-Z_.]+\] )+|( SQLSTATE: \w{5})$")
_RAISED: Final = re.compile(r"(bad record in .*? at offset .*?)(?: SQLSTATE: \w{5}|$)", re.MULTILINE)
#: Spark's text for an error in foreachBatch; Python's traceback follows, with the error itself in its last lines.
_PROXY: Final = "exception was raised by the Python Proxy"
_INNERMOST: Final = re.compile(r"^(?:[\w.]+\.)?\w+(?:Error|Exception): (.+)$", re.MULTILINE)

_DELTA_TO_TOPIC_HELP: Final = """\
`kafkalog delta-to-topic`: write a Delta table's changes to a topic as keyed records, every change once.

The table needs delta.enableChangeDataFeed. The command is a streaming query with a checkpoint; without --continuous it
stops after the changes that exist at its start. At the end it prints the last version of the table that it read, and
the offsets of the topic meanwhile written. Spark downloads Delta's jars; with spark-submit pass --packages
io.delta:delta-spark_4.2_2.13:4.4.0.

Exit status: 0 done, or stopped by SIGTERM, SIGINT or SIGHUP (the next run continues); 1 an error; 2 wrong options.

examples:
  kafkalog delta-to-topic --table /data/tables/customers --path /data/log --topic changes --key id \\
      --checkpoint /data/checkpoints/changes
"""


_TOPIC_TO_DELTA_HELP: Final = """\
`kafkalog topic-to-delta`: write a topic into a Delta table, every record once.

Records are appended, or the latest value of each key is kept (--mode upsert; a tombstone deletes the row). The command
is a streaming query with a checkpoint; without --continuous it stops after the records that exist at its start. At the
end it prints the offsets that it read, the table's version and the rows written. Spark downloads Delta's jars; with
spark-submit pass --packages io.delta:delta-spark_4.2_2.13:4.4.0.

Exit status: 0 done, or stopped by SIGTERM, SIGINT or SIGHUP (the next run continues); 1 an error; 2 wrong options.

examples:
  kafkalog topic-to-delta --path /data/log --topic orders --table /data/tables/orders \\
      --checkpoint /data/checkpoints/orders --schema 'id LONG, amount DOUBLE, at TIMESTAMP'
  kafkalog topic-to-delta --path /data/log --topic customers --table /data/tables/customers \\
      --checkpoint /data/checkpoints/customers --schema 'name STRING' --mode upsert --key-schema 'id LONG'
"""


def _add_topic_to_delta(parser: argparse.ArgumentParser) -> None:
    """Source, table, and the conversion of records to rows."""
    _add_query(parser)
    parser.add_argument("--topic", required=True, metavar="NAME", help="the topic to read")
    parser.add_argument("--mode", choices=MODES, default="append", help="append records, or keep the latest by key")
    parser.add_argument("--schema", metavar="DDL", help="fields of the JSON values; without it the table is raw")
    parser.add_argument("--key-schema", metavar="DDL", help="columns of the key, with --schema (default: key STRING)")
    parser.add_argument(
        "--metadata-columns", action="store_true", help="add _partition, _offset and _timestamp, with --schema"
    )
    parser.add_argument(
        "--bad-records", choices=POLICIES, default="fail", help="how to treat bad records (default: fail)"
    )
    parser.add_argument("--bad-records-table", metavar="TABLE", help="the table for bad records, with quarantine")
    parser.add_argument("--merge-schema", action="store_true", help="add new columns to an existing table")
    parser.add_argument("--partition-by", metavar="COLUMN[,COLUMN]", default="", help="of a new table")
    _add_settings(parser, "--table-property", "of a new table; repeatable")
    _add_settings(parser, "--source-option", "such as maxOffsetsPerTrigger=1000000")


def _topic_to_delta(options: argparse.Namespace) -> int:
    """Run the query until it is done or stopped. Returns the exit status."""
    version = -1

    def begin(spark: SparkSession) -> StreamingQuery:
        query = TopicToDelta(
            path=str(options.path),
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
            partition_by=_names(options.partition_by),
            table_properties=named_values("--table-property", options.table_property),
            source_options=named_values("--source-option", options.source_option),
            continuous=options.continuous,
        )
        nonlocal version
        version = DeltaTarget(options.table).version(spark)
        return query.start(spark)

    def tell(spark: SparkSession, first: Offsets, last: Offsets) -> None:
        sys.stdout.write(offsets_text(options.topic, first, last))
        target = DeltaTarget(options.table)
        rows = target.rows_written(spark, after=version)
        written = ", ".join(f"{count:,} {word}" for word, count in rows.items() if count) or "none written"
        sys.stdout.write(printable(f"{options.table}: version {target.version(spark)}; rows: {written}") + "\n")

    return _run_query("kafkalog topic-to-delta", begin, tell)


def _add_delta_to_topic(parser: argparse.ArgumentParser) -> None:
    """Table, topic, and the conversion of rows to records."""
    _add_query(parser)
    parser.add_argument("--topic", required=True, metavar="NAME", help="the topic to write to, created if needed")
    parser.add_argument("--key", required=True, metavar="COLUMN[,COLUMN]", help="the columns of the key")
    parser.add_argument("--value-columns", default="", metavar="COLUMN[,COLUMN]", help="of the JSON (default: all)")
    parser.add_argument("--value-column", metavar="COLUMN", help="the one column that is the value, unchanged")
    parser.add_argument("--timestamp-column", metavar="COLUMN", help="the records' time (default: when written)")
    parser.add_argument("--starting-version", type=int, metavar="N", help="start with the changes of this version")
    _add_settings(parser, "--source-option", "such as maxFilesPerTrigger=100")
    _add_settings(parser, "--sink-option", "such as compression.type=zstd")


def _delta_to_topic(options: argparse.Namespace) -> int:
    """Run the query until it is done or stopped. Returns the exit status."""
    ends: dict[str, int] = {}

    def begin(spark: SparkSession) -> StreamingQuery:
        from pyspark_kafkalog.delta.delta_to_topic import DeltaToTopic  # loads Spark

        ends.update(_end_offsets(options.path, options.topic))

        query = DeltaToTopic(
            table=options.table,
            path=str(options.path),
            topic=options.topic,
            checkpoint=options.checkpoint,
            keys=_names(options.key),
            value_columns=_names(options.value_columns),
            value_column=options.value_column,
            timestamp_column=options.timestamp_column,
            starting_version=options.starting_version,
            source_options=named_values("--source-option", options.source_option),
            sink_options=named_values("--sink-option", options.sink_option),
            continuous=options.continuous,
        )
        return query.start(spark)

    def tell(spark: SparkSession, first: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        sys.stdout.write(printable(f"{options.table}: {changes_text(last)}") + "\n")
        after = _end_offsets(options.path, options.topic)
        before = {partition: ends.get(partition, 0) for partition in after}
        sys.stdout.write(offsets_text(options.topic, {options.topic: before}, {options.topic: after}))

    return _run_query("kafkalog delta-to-topic", begin, tell)


def _end_offsets(path: AnyPath, topic: str) -> dict[str, int]:
    """The end offset of each partition, by its number as in a query's progress; none of a topic that does not exist."""
    log_dir = LogDir.open(path)
    partitions = log_dir.topic(topic).partitions if topic in log_dir else ()
    return {str(each.partition): each.log_end_offset for each in partitions}


def _add_settings(parser: argparse.ArgumentParser, option: str, help_text: str) -> None:
    parser.add_argument(option, action="append", default=[], metavar="NAME=VALUE", help=help_text)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _add_query(parser: argparse.ArgumentParser) -> None:
    """Add the options that both jobs share."""
    add_path(parser, "the log directory")
    parser.add_argument("--table", required=True, metavar="TABLE", help="the Delta table: a path, or a name")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="the query's checkpoint: one for each query")
    parser.add_argument(
        "--continuous",
        metavar="INTERVAL",
        help="continue, with a batch each INTERVAL, such as '10 seconds' (default: stop at the current end)",
    )


def named_values(option: str, settings: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` settings as a dictionary. Raises InvalidOptionError for a setting of another form."""
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise InvalidOptionError(f"{option} {setting}: expected NAME=VALUE")
        values[name.strip()] = value.strip()
    return values


def changes_text(last: Mapping[str, Any]) -> str:
    """Up to which version a table was read, by the offset of Delta's source (DeltaSourceOffset) at which a run ended.

    A negative index is that before the first file of the version.
    """
    if not last:
        return "no changes read"
    return f"changes up to version {last['reservoirVersion'] - (last['index'] < 0)}"


def offsets_text(topic: str, first: Offsets, last: Offsets) -> str:
    """A line for each partition with new records: its offsets from `first` to the one before `last`."""
    starts, ends = first.get(topic, {}), last.get(topic, {})
    lines = []
    for partition, end in sorted(ends.items(), key=lambda each: int(each[0])):
        start = starts.get(partition)
        if start != end and end > 0:
            offsets = f"up to offset {end - 1}" if start is None else f"offsets {start} to {end - 1}"
            lines.append(f"{topic}-{partition}: {offsets}\n")
    return "".join(lines) or f"{topic}: no new records\n"


class _Progress:
    """The offsets at which a run of a query began, and those that it has reached."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._first: str | None = None

    def look(self) -> None:
        """Keep the first start, which Spark forgets after a hundred micro-batches."""
        if self._first is None and (recent := self._query.recentProgress):
            self._first = recent[0]["sources"][0]["startOffset"]

    def ends(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Both; a new query has no start, and a run without a micro-batch neither."""
        self.look()
        last = self._query.lastProgress
        text = None if last is None else last["sources"][0]["endOffset"]
        return json.loads(self._first or "null") or {}, json.loads(text or "null") or {}


def _run_query(
    name: str,
    begin: Callable[[SparkSession], StreamingQuery],
    tell: Callable[[SparkSession, Mapping[str, Any], Mapping[str, Any]], None],
) -> int:
    """Run the query that `begin` starts and return the exit status; an error is printed as one line.

    `tell` prints what the run has done, by the offsets at which it began and ended.

    Raises ModuleNotFoundError without Spark or Delta.
    """
    import_delta()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        with stop_signal() as stop:
            spark = with_delta(SparkSession.builder.appName(name)).getOrCreate()
            check_delta(spark)
            bound_snapshot_tasks(spark)
            query = begin(spark)
            progress = _Progress(query)
            while query.isActive and not stop.wait(_POLL_SECONDS):
                progress.look()
            query.stop()
            if (failure := query.exception()) is not None and not stop.is_set():
                raise failure
            tell(spark, *progress.ends())
    except (KafkalogError, OSError) as error:
        return _fail(name, str(error), exit_code_of(error))
    except PySparkException as error:
        return _fail(name, error_text(error), 1)
    return 0


def error_text(error: Any) -> str:
    """The essential message of a Spark error, in one line."""
    text = str(error)
    if (raised := _RAISED.search(text)) is not None:
        return raised.group(1)
    if _PROXY in text and (inner := _INNERMOST.findall(text)):
        return _WRAPPINGS.sub("", str(inner[-1]).strip())
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return _WRAPPINGS.sub("", lines[0].strip()) if lines else type(error).__name__


def _fail(name: str, text: str, exit_code: int) -> int:
    sys.stderr.write(printable(f"{name}: {' '.join(text.split())}") + "\n")
    return exit_code


COMMANDS: Final = {
    "delta-to-topic": Command(_DELTA_TO_TOPIC_HELP, _add_delta_to_topic, _delta_to_topic),
    "topic-to-delta": Command(_TOPIC_TO_DELTA_HELP, _add_topic_to_delta, _topic_to_delta),
}
