"""The change feed of a Delta table into a topic, as keyed records, each change once.

The table needs delta.enableChangeDataFeed. Without a starting version the query begins with the current rows of the
table, as inserts, and continues with later changes; with a starting version, it begins with the changes from that
version on.

A change feed has one row for each row inserted or deleted, and two for each row updated: before and after the update.
For each key and version these are reduced to

    the rows that exist now    inserts and updates, after the update: a record with the row as its value
    a tombstone                if there are none, but deleted rows, or updated rows before the update

Thus an update that changes the key is a tombstone of the old key and a record of the new one. A row that is deleted and
inserted again in one version, as when a table is overwritten, is one record. The records of a key are in the order of
the table's versions: one task sorts them, and the sink keeps the order of a task.

Each micro-batch is one commit of the topic, with the query's id and the batch's number. A batch that is replayed, after
a kill between the commit and Spark's checkpoint of it, finds its number in the commit log and writes nothing. Only the
first batch may create the log directory; a later one that does not find the query's id in it fails, as with the
streaming sink. The query uses foreachBatch rather than the streaming sink because each batch is first sorted by key and
version, which Spark allows in batch mode only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.delta.delta_target import BatchIdentity, quoted, start
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.maintenance.jobs.tasks import is_path
from pyspark_kafkalog.spark.options.parse import locate
from pyspark_kafkalog.spark.write.plan import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


_CHANGE: Final = "_change_type"
_VERSION: Final = "_commit_version"
_COMMIT_TIME: Final = "_commit_timestamp"
_FEED_COLUMNS: Final = (_CHANGE, _VERSION, _COMMIT_TIME)
_GONE: Final = ("delete", "update_preimage")

_IS_GONE: Final = "__kafkalog_gone"
_RANK: Final = "__kafkalog_rank"

#: JSON without loss: nulls are written, timestamps have microseconds.
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


@dataclass(frozen=True)
class ChangeRecords:
    """The columns that make up a record.

    `keys` are the key columns. The value is a JSON object of `value_columns`, or `value_column` as it is. A single key
    column is written as text (BINARY as it is), several as a JSON object. Without a `timestamp_column` records get the
    time at which they are written.
    """

    keys: Sequence[str]
    value_columns: Sequence[str]
    value_column: str | None = None
    timestamp_column: str | None = None

    @classmethod
    def of(
        cls,
        schema: StructType,
        keys: Sequence[str],
        *,
        value_columns: Sequence[str] = (),
        value_column: str | None = None,
        timestamp_column: str | None = None,
    ) -> ChangeRecords:
        """For a change feed with these columns. By default the value contains all of the table's columns.

        Raises InvalidOptionError for missing keys, unknown columns and columns of a wrong type.
        """
        from pyspark.sql.types import BinaryType, StringType, TimestampType

        if not keys:
            raise InvalidOptionError("a key is needed: the columns that identify a row of the table")
        if value_column is not None and value_columns:
            raise InvalidOptionError("the value is either one column as it is or several as JSON: give one of the two")
        named = {field.name.lower(): field for field in schema.fields}
        requested = (*keys, *value_columns, *(name for name in (value_column, timestamp_column) if name is not None))
        for name in requested:
            if name.lower() not in named:
                existing = ", ".join(each for each in schema.names if each not in _FEED_COLUMNS)
                raise InvalidOptionError(f"the table has no column {name}; it has: {existing}")
        types: dict[str | None, tuple[type, ...]] = {
            value_column: (BinaryType, StringType),
            timestamp_column: (TimestampType,),
        }
        for column, allowed in types.items():
            if column is not None and not isinstance(named[column.lower()].dataType, allowed):
                raise InvalidOptionError(
                    f"column {column} is {named[column.lower()].dataType.simpleString()}; the value's has to be string "
                    "or binary, the timestamp's timestamp"
                )
        return cls(
            keys,
            value_columns or [name for name in schema.names if name not in _FEED_COLUMNS],
            value_column,
            timestamp_column,
        )

    def apply(self, changes: DataFrame) -> DataFrame:
        """The columns `key`, `value` and, if configured, `timestamp`, ordered by version within each key."""
        from pyspark.sql import functions as F
        from pyspark.sql.window import Window

        keys = [_column(name) for name in self.keys]
        gone = changes.repartition(*keys).withColumn(_IS_GONE, F.col(_CHANGE).isin(*_GONE))
        in_version = Window.partitionBy(*keys, _VERSION).orderBy(_IS_GONE)
        ranked = gone.withColumn(_RANK, F.row_number().over(in_version))
        last = ranked.where(~F.col(_IS_GONE) | (F.col(_RANK) == 1)).sortWithinPartitions(*keys, _VERSION)
        columns = [self._key(changes.schema).alias("key"), F.when(~F.col(_IS_GONE), self._value()).alias("value")]
        if self.timestamp_column is not None:
            columns.append(_column(self.timestamp_column).alias("timestamp"))
        return last.select(*columns)

    def _key(self, schema: StructType) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        if len(self.keys) > 1:
            return F.to_json(F.struct(*map(_column, self.keys)), _JSON).cast("binary")
        only = next(field for field in schema.fields if field.name.lower() == self.keys[0].lower())
        key = _column(self.keys[0])
        return key if isinstance(only.dataType, BinaryType) else key.cast("string").cast("binary")

    def _value(self) -> Column:
        from pyspark.sql import functions as F

        if self.value_column is not None:
            return _column(self.value_column).cast("binary")
        return F.to_json(F.struct(*map(_column, self.value_columns)), _JSON).cast("binary")


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(quoted(name))


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
            MicroBatch(identity.query_id, "", identity.batch_id).check_path(locate(self.path).root)
            writer = records.apply(batch).write.format("kafkalog").mode("append").options(**self.sink_options)
            writer = writer.option("topic", self.topic).option("txnAppId", identity.query_id)
            writer.option("txnVersion", identity.batch_id).save(self.path)

        return start(changes, write, checkpoint=self.checkpoint, continuous=self.continuous)
