"""A topic into a Delta table, each record once: appended, or as the latest value of each key.

Both modes write in foreachBatch, with the query's id and the batch's number in the commit of the data (see
delta_target.py). Delta's own streaming sink does the same for appends; here one mechanism serves appends, merges and
the quarantine of bad records. Exactly-once therefore needs no key, offset or hash column in the table: a replayed batch
has the same offsets and is not written again.

Upserts: for each key, the record with the highest offset in the batch counts. The records of a key are in one
partition, so offsets order them, and batches come in the order of offsets. An older batch cannot follow a newer one,
since its number is below the last one of the id, so rows need no stored offset for comparison. The order is lost where
Kafka loses it too: adding partitions to a topic moves keys. If a batch then has a key in several partitions, the latest
timestamp among the last records of those partitions counts.

A tombstone deletes the row of its key. In append mode with a schema it is a row with null value columns; in raw mode, a
row with a null value.

A raw table has the columns of the source: key, value, topic, partition, offset, timestamp, timestampType. With a
schema, the value is JSON with the schema's fields, and the table has

    the key columns       of the key schema, `key STRING` by default
    the value columns     of the schema, except those that are key columns
    _partition, _offset, _timestamp     if requested

With a key schema of one column, the key is bytes (BINARY) or text that is cast to the column's type; with several
columns, a JSON object. JSON fields that the schema does not name are dropped; missing fields are null. Any other value,
a key that does not fit, and a timestamp that Spark's type does not hold, make a bad record.

Policies for bad records:

    fail         the query fails with the record's partition and offset; the table stays as after the previous batch
    skip         bad records are dropped; their number is logged for each batch
    quarantine   bad records go to a table of their own, with all columns of the source and `reason`, each once

The quarantine table is written before the main table. If the driver is killed between the two writes, the batch runs
again, and each of the two tables skips it if it already contains it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark_kafkalog.delta.delta_target import BatchIdentity, DeltaTarget, quoted, start
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.units import MAX_SPARK_TIMESTAMP_MS
from pyspark_kafkalog.values import check_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

_LOG: Final = logging.getLogger(__name__)

BadRecordsPolicy = Literal["fail", "skip", "quarantine"]
POLICIES: Final = get_args(BadRecordsPolicy)

DEFAULT_KEY_SCHEMA: Final = "key STRING"
RAW_KEY: Final = "key"

#: Helper columns in addition to the table's own while a micro-batch is processed.
PARTITION: Final = "__kafkalog_partition"
OFFSET: Final = "__kafkalog_offset"
TIMESTAMP: Final = "__kafkalog_timestamp"
DELETED: Final = "__kafkalog_deleted"
BAD: Final = "__kafkalog_bad"
RECORD: Final = "__kafkalog_record"

_CORRUPT: Final = "__kafkalog_corrupt"
_FAR: Final = "__kafkalog_far"
_METADATA: Final = {"_partition": "partition", "_offset": "offset", "_timestamp": "timestamp"}


@dataclass(frozen=True)
class RecordShape:
    """`schema` is that of the value, None for a raw table; `key_schema` that of the key.

    With `keys_needed` a record without a key is bad.
    """

    schema: StructType | None
    key_schema: StructType
    metadata_columns: bool = False
    keys_needed: bool = False

    @classmethod
    def parse(
        cls,
        schema: str | None,
        key_schema: str | None = None,
        *,
        metadata_columns: bool = False,
        keys_needed: bool = False,
    ) -> RecordShape:
        """From DDL such as `id LONG, name STRING`; needs a Spark session. Raises InvalidOptionError for invalid DDL."""
        if schema is None and (key_schema is not None or metadata_columns):
            raise InvalidOptionError("a key schema and metadata columns need a schema: raw tables have the source's")
        taken = _METADATA if metadata_columns else {}
        return cls(
            None if schema is None else _parse_ddl("schema", schema, taken),
            _parse_ddl("key schema", key_schema or DEFAULT_KEY_SCHEMA, taken),
            metadata_columns,
            keys_needed,
        )

    @property
    def keys(self) -> list[str]:
        """The key columns of the table."""
        return [RAW_KEY] if self.schema is None else list(self.key_schema.names)

    def apply(self, records: DataFrame) -> DataFrame:
        """The table's columns and the helper columns. BAD is the reason why a record is bad, null for a good one;
        RECORD is the source row.

        The timestamps of `records` may be bigint, in milliseconds: one that Spark's type does not hold makes a bad
        record, and is null in the columns.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import LongType

        names, far = records.columns, F.lit(None).cast("string")
        if isinstance(records.schema["timestamp"].dataType, LongType):
            records, far = _with_timestamps(records), F.col(_FAR)
        beside = {
            PARTITION: F.col("partition"),
            OFFSET: F.col("offset"),
            TIMESTAMP: F.col("timestamp"),
            DELETED: F.col("value").isNull(),
            RECORD: F.struct(*(F.col(name) for name in names)),
        }
        if self.schema is None:
            no_key = F.when(F.col(RAW_KEY).isNull() & F.lit(self.keys_needed), F.lit("it has no key"))
            helpers = {**beside, BAD: F.coalesce(far, no_key)}
            return records.select(*names, *(each.alias(name) for name, each in helpers.items()))
        parsed = records.withColumns({"__kafkalog_key": self._key(), "__kafkalog_value": self._value(self.schema)})
        key_names = {name.lower() for name in self.key_schema.names}
        columns = [F.col(f"__kafkalog_key.{quoted(name)}").alias(name) for name in self.key_schema.names]
        columns += [
            F.col(f"__kafkalog_value.{quoted(name)}").alias(name)
            for name in self.schema.names
            if name.lower() not in key_names
        ]
        if self.metadata_columns:
            columns += [F.col(source).alias(name) for name, source in _METADATA.items()]
        helpers = {**beside, BAD: F.coalesce(far, self._reason())}
        return parsed.select(*columns, *(each.alias(name) for name, each in helpers.items()))

    def _key(self) -> Column:
        """A struct of the key's columns."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        if len(self.key_schema.fields) > 1:
            return F.from_json(F.col("key").cast("string"), self.key_schema)
        only = self.key_schema.fields[0]
        if isinstance(only.dataType, BinaryType):
            return F.struct(F.col("key").alias(only.name))
        return F.struct(F.col("key").cast("string").try_cast(only.dataType).alias(only.name))

    def _value(self, schema: StructType) -> Column:
        """A struct of the value's columns, and of the text that could not be parsed."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        return F.from_json(F.col("value").cast("string"), with_corrupt, options)

    def _reason(self) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        value, key = F.col("__kafkalog_value"), F.col("__kafkalog_key")
        is_parsed = value.isNotNull() & value[_CORRUPT].isNull() & _is_one_object("value")
        unparsed = F.col("value").isNotNull() & ~is_parsed
        fields = [key[field.name] for field in self.key_schema.fields]
        any_null = fields[0].isNull()
        for each in fields[1:]:
            any_null = any_null | each.isNull()
        if len(fields) > 1:
            any_null = any_null | ~_is_one_object("key")
        elif not isinstance(self.key_schema.fields[0].dataType, BinaryType):
            any_null = any_null | ~F.is_valid_utf8(F.col("key").cast("string"))
        missing = F.col("key").isNull() & F.lit(self.keys_needed)
        return (
            F.when(missing, F.lit("it has no key"))
            .when(F.col("key").isNotNull() & any_null, F.lit(f"its key is no {self.key_schema.simpleString()}"))
            .when(unparsed, F.lit("its value is no JSON object of the schema"))
        )


def _with_timestamps(records: DataFrame) -> DataFrame:
    """`records` with their milliseconds as timestamps, null where that is too far, and with the reason as _FAR."""
    from pyspark.sql import functions as F

    ms = F.col("timestamp")
    fits = ms.between(-MAX_SPARK_TIMESTAMP_MS, MAX_SPARK_TIMESTAMP_MS)
    far = F.concat(F.lit("its timestamp, "), ms.cast("string"), F.lit(" ms, is beyond those of Spark"))
    return records.withColumns({"timestamp": F.when(fits, F.timestamp_millis(ms)), _FAR: F.when(~fits, far)})


def _is_one_object(column: str) -> Column:
    """Whether the column is text with one JSON object and nothing after it, which `from_json` does not check."""
    from pyspark.sql import functions as F

    text = F.col(column).cast("string")
    documents = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))  # null unless the whole text is JSON
    # A closing bracket in the text would end the array early.
    return F.is_valid_utf8(text) & F.coalesce(documents == 1, F.lit(False)) & ~text.rlike(r"\]\s*$")


def _parse_ddl(what: str, text: str, taken: Collection[str]) -> StructType:
    """The columns of a schema. Raises InvalidOptionError for a duplicate name or one that is in `taken`."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(text)
    except PySparkException as error:
        first_line = str(error).strip().splitlines()[0]
        raise InvalidOptionError(f"{what} {text!r} is no DDL, such as 'id LONG, at TIMESTAMP': {first_line}") from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise InvalidOptionError(f"{what} {text!r} has no columns, such as 'id LONG, at TIMESTAMP'")
    lower = [name.lower() for name in parsed.names]
    twice = [name for name in lower if lower.count(name) > 1]
    if twice:
        raise InvalidOptionError(f"{what} {text!r}: column {twice[0]} occurs twice")
    clash = [name for name in lower if name in taken]
    if clash:
        raise InvalidOptionError(f"{what} {text!r}: {clash[0]} is one of the metadata columns; leave them or it out")
    return parsed


class BadRecords:
    """A policy. `table` is the quarantine table, required for the policy `quarantine` and for no other.

    Raises InvalidOptionError when policy and table do not match.
    """

    def __init__(self, policy: BadRecordsPolicy, table: str | None = None) -> None:
        check_one_of("bad_records", policy, POLICIES)
        if (policy == "quarantine") != (table is not None):
            raise InvalidOptionError("bad records need a table to go to with the policy quarantine, and only with that")
        self._policy = policy
        self._quarantine = None if table is None else DeltaTarget(table)

    @property
    def reads_twice(self) -> bool:
        """Whether `keep_good` scans the rows before the table does; if so, the caller should cache them."""
        return self._policy != "fail"

    def keep_good(self, rows: DataFrame, identity: BatchIdentity) -> DataFrame:
        """`rows` without the bad ones, which are counted or quarantined.

        With the policy `fail` a bad row raises when the result is evaluated.
        """
        from pyspark.sql import functions as F

        is_good = F.col(BAD).isNull()
        if self._policy == "fail":
            where = F.concat_ws(
                "",
                F.col(f"{RECORD}.topic"),
                F.lit("-"),
                F.col(f"{RECORD}.partition"),
                F.lit(" at offset "),
                F.col(f"{RECORD}.offset"),
            )
            advice = "; --bad-records skip or quarantine continues without such records"
            message = F.concat(F.lit("bad record in "), where, F.lit(": "), F.col(BAD), F.lit(advice))
            return rows.where(F.when(is_good, F.lit(True)).otherwise(F.raise_error(message).cast("boolean")))
        bad = rows.where(~is_good)
        if self._quarantine is None:
            skipped = bad.count()
            if skipped:
                _LOG.warning("batch %d: %d bad records skipped", identity.batch_id, skipped)
        else:
            self._write_to_quarantine(self._quarantine, bad, identity)
        return rows.where(is_good)

    def _write_to_quarantine(self, quarantine: DeltaTarget, bad: DataFrame, identity: BatchIdentity) -> None:
        from pyspark.sql import functions as F

        spark = bad.sparkSession
        aside = bad.select(F.col(BAD).alias("reason"), f"{RECORD}.*")
        if not quarantine.exists(spark):
            quarantine.create(spark, aside.schema)
        quarantine.append(aside, identity)


Mode = Literal["append", "upsert"]
MODES: Final = get_args(Mode)

_BESIDE: Final = (PARTITION, OFFSET, TIMESTAMP, DELETED, BAD, RECORD)
_ROW: Final = "__kafkalog_row"


@dataclass(frozen=True, kw_only=True)
class TopicToDelta:
    """The query. `table` is a path or a name. `continuous` is a trigger interval; None processes what is available and
    ends.

    `schema` and `key_schema` are DDL, see above; None for the columns of the source. `source_options` are
    passed to the source and override `startingOffsets=earliest` and `isolationLevel=read_committed`. `partition_by` and
    `table_properties` apply only when the table is created.
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
        """Create the table if it does not exist, and start the query. Raises InvalidOptionError."""
        check_one_of("mode", self.mode, MODES)
        shape = RecordShape.parse(
            self.schema, self.key_schema, metadata_columns=self.metadata_columns, keys_needed=self.mode == "upsert"
        )
        bad_records = BadRecords(self.bad_records, self.bad_records_table)
        options = {"startingOffsets": "earliest", "isolationLevel": "read_committed", **self.source_options}
        source = spark.readStream.format("kafkalog").options(**options).option("subscribe", self.topic)
        records = source.schema(_with_milliseconds(source.load(self.path).schema)).load(self.path)
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


def _with_milliseconds(source: StructType) -> StructType:
    """The source's schema with timestamps as numbers, so that those beyond Spark's type are bad records, no errors."""
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([StructField("timestamp", LongType()) if each.name == "timestamp" else each for each in source])


def latest_by_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row for each key: its last, with the table's columns and DELETED. `rows` come from RecordShape.apply."""
    from pyspark.sql import functions as F

    columns = [name for name in rows.columns if name not in (*_BESIDE, *keys)]
    row = F.struct(TIMESTAMP, PARTITION, DELETED, *(F.col(quoted(name)) for name in columns))
    by = [F.col(quoted(key)) for key in keys]
    in_partition = rows.groupBy(*by, PARTITION).agg(F.max_by(row, F.col(OFFSET)).alias(_ROW))
    order = F.struct(f"{_ROW}.{TIMESTAMP}", f"{_ROW}.{PARTITION}")
    latest = in_partition.groupBy(*by).agg(F.max_by(F.col(_ROW), order).alias(_ROW))
    return latest.select(*by, *(f"{_ROW}.{quoted(name)}" for name in columns), f"{_ROW}.{DELETED}")
