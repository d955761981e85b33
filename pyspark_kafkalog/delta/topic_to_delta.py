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

Policies for bad records, which do not have the shape of the table (record_shape.py):

    fail         the query fails with the record's partition and offset; the table stays as after the previous batch
    skip         bad records are dropped; their number is logged for each batch
    quarantine   bad records go to a table of their own, with all columns of the source and `reason`, each once

The quarantine table is written before the main table. If the driver is killed between the two writes, the batch runs
again, and each of the two tables skips it if it already contains it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark_kafkalog.delta.delta_target import BatchIdentity, DeltaTarget, start
from pyspark_kafkalog.delta.record_shape import (
    BAD,
    DELETED,
    OFFSET,
    PARTITION,
    RECORD,
    TIMESTAMP,
    RecordShape,
    quoted,
)
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.values import check_one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


_LOG: Final = logging.getLogger(__name__)

BadRecordsPolicy = Literal["fail", "skip", "quarantine"]
POLICIES: Final = get_args(BadRecordsPolicy)


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

    `schema` and `key_schema` are DDL, see record_shape.py; None for the columns of the source. `source_options` are
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
            self.schema,
            self.key_schema,
            metadata_columns=self.metadata_columns,
            keys_needed=self.mode == "upsert",
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
