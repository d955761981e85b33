"""A Delta table, by path or by name, that each micro-batch is written to once.

A micro-batch is identified by the id of its query, from the checkpoint, and its number. Spark writes the offsets of a
micro-batch to the checkpoint before it runs the batch, and marks the batch as done after it. A driver that is killed in
between runs the same offsets again, under the same id and number. Tables and topics store the number of the last batch
of each id together with the data, in one commit, so the replay writes nothing. The id is the query's own rather than a
configured one: a new checkpoint comes with a new id, whose batches count from 0 again; under a reused id they would be
taken for replays and dropped.

A write to a table stores id and number in Delta's log, in the commit with the data (a SetTransaction action). Delta
checks it first: a number that is not above the last one of the id changes nothing. Two drivers of one query that write
at the same time conflict in that action, and one of them fails. So the table always matches the batch number in its
log, whenever a driver is killed.

Delta skips a lower number without a word. The first micro-batch of a run may have one only if the checkpoint was
restored to an older state; its records may be others than those that were written under the number. So a run first
compares its number with the last one in Delta's log. Later batches of the run have higher numbers.

Appends pass id and number as options of the write. MERGE has no such options and reads them from the configuration of
the session, which is the query's own copy; they are unset afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import InvalidOptionError, LowerVersionError
from pyspark_kafkalog.maintenance.jobs.tasks import is_path
from pyspark_kafkalog.units import iso_utc

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


def quoted(name: str) -> str:
    """`name` in backticks, with backticks in it doubled, so that any name is a single identifier."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """One micro-batch of one query."""

    query_id: str
    batch_id: int

    @classmethod
    def of(cls, batch: DataFrame, batch_id: int) -> BatchIdentity:
        """The identity of the micro-batch that a foreachBatch function receives.

        Raises InvalidOptionError when the batch does not belong to a streaming query.
        """
        from pyspark_kafkalog.spark.write.plan import QUERY_ID_PROPERTY  # loads Spark

        query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        if not query_id:
            raise InvalidOptionError(
                f"there is no {QUERY_ID_PROPERTY} in the local properties: a batch can only be written once by a "
                "streaming query, on a session that is not remote"
            )
        return cls(query_id, batch_id)


_LOG: Final = logging.getLogger(__name__)

_SESSION_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_SESSION_VERSION: Final = "spark.databricks.delta.write.txnVersion"
#: Delta's operations and their metrics, and what they count.
_ROWS_WRITTEN: Final = {
    ("WRITE", "numOutputRows"): "appended",
    ("MERGE", "numTargetRowsInserted"): "inserted",
    ("MERGE", "numTargetRowsUpdated"): "updated",
    ("MERGE", "numTargetRowsDeleted"): "deleted",
}


class DeltaTarget:
    """The table that `table` names: a path if it contains a slash, else a name in the catalog."""

    def __init__(self, table: str, *, merge_schema: bool = False) -> None:
        self.table = table
        self._is_path = is_path(table)
        self._merge_schema = merge_schema
        self._checked_query_id: str | None = None

    def exists(self, spark: SparkSession) -> bool:
        from delta.tables import DeltaTable

        if self._is_path:
            return bool(DeltaTable.isDeltaTable(spark, self.table))
        return spark.catalog.tableExists(self.table)

    def version(self, spark: SparkSession) -> int:
        """The number of the table's last version; -1 if there is no table."""
        if not self.exists(spark):
            return -1
        table: Any = self._open(spark)
        return int(table._jdt.deltaLog().snapshot().version())

    def rows_written(self, spark: SparkSession, *, after: int) -> dict[str, int]:
        """How many rows the versions after version `after` appended, inserted, updated and deleted, by these words."""
        written = dict.fromkeys(_ROWS_WRITTEN.values(), 0)
        history = self._open(spark).history().where(f"version > {after}").select("operation", "operationMetrics")
        for operation, metrics in history.collect():
            for (of, metric), word in _ROWS_WRITTEN.items():
                written[word] += int(metrics.get(metric, 0)) if operation == of else 0
        return written

    def create(
        self,
        spark: SparkSession,
        schema: StructType,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create the empty table. A table that exists, or is created concurrently, stays as it is."""
        from delta.tables import DeltaTable

        builder = DeltaTable.createIfNotExists(spark).addColumns(schema)
        builder = builder.location(self.table) if self._is_path else builder.tableName(self.table)
        if partition_by:
            builder = builder.partitionedBy(*partition_by)
        for name, value in (properties or {}).items():
            builder = builder.property(name, value)
        builder.execute()

    def append(self, rows: DataFrame, identity: BatchIdentity) -> None:
        """Append the rows of a micro-batch, unless the table already has the batch.

        Raises LowerVersionError if this is the run's first micro-batch, and the table has a later one.
        """
        self._check_number(rows.sparkSession, identity)
        writer = rows.write.format("delta").mode("append")
        writer = writer.option("txnAppId", identity.query_id).option("txnVersion", identity.batch_id)
        writer = writer.option("mergeSchema", str(self._merge_schema).lower())
        if self._is_path:
            writer.save(self.table)
        else:
            writer.saveAsTable(self.table)

    def merge_by_key(self, rows: DataFrame, keys: Sequence[str], deleted: str, identity: BatchIdentity) -> None:
        """Update, insert or delete the rows of these keys, unless the table already has the micro-batch.

        `rows` has one row for each key; the column `deleted` says whether to delete the row of the key.

        Raises LowerVersionError as `append`.
        """
        spark = rows.sparkSession
        self._check_number(spark, identity)
        values: dict[str, str | Column] = {
            quoted(name): f"source.{quoted(name)}" for name in rows.columns if name != deleted
        }
        same_key = " AND ".join(f"target.{quoted(key)} = source.{quoted(key)}" for key in keys)
        merge = self._open(spark).alias("target").merge(rows.alias("source"), same_key)
        if self._merge_schema:
            merge = merge.withSchemaEvolution()
        merge = merge.whenMatchedDelete(f"source.{quoted(deleted)}").whenMatchedUpdate(set=values)
        with _identified(spark, identity):
            merge.whenNotMatchedInsert(f"NOT source.{quoted(deleted)}", values).execute()

    def _check_number(self, spark: SparkSession, identity: BatchIdentity) -> None:
        """Compare the number of a run's first micro-batch with the last one that is in the table."""
        if identity.query_id == self._checked_query_id:
            return
        table: Any = self._open(spark)
        transactions = table._jdt.deltaLog().snapshot().setTransactions()
        for at in range(transactions.size()):
            last = transactions.apply(at)
            if last.appId() != identity.query_id or last.version() < identity.batch_id:
                continue
            time = f" at {iso_utc(last.lastUpdated().get())}" if last.lastUpdated().isDefined() else ""
            if last.version() > identity.batch_id:
                raise LowerVersionError(
                    f"{self.table}: batch {identity.batch_id} of query {identity.query_id} is below the last committed "
                    f"batch {last.version()}, committed{time}: nothing was written, as no replay has a lower number. "
                    "If the checkpoint was restored to an older state, use a new checkpoint; if another run of the "
                    "query has gone on, stop it and start this one again"
                )
            _LOG.warning(
                "%s: batch %d of query %s was committed%s: this write is a replay and is skipped",
                *(self.table, identity.batch_id, identity.query_id, time),
            )
        self._checked_query_id = identity.query_id

    def _open(self, spark: SparkSession) -> DeltaTable:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(spark, self.table) if self._is_path else DeltaTable.forName(spark, self.table)


@contextmanager
def _identified(spark: SparkSession, identity: BatchIdentity) -> Iterator[None]:
    """Make the Delta writes of this session carry the identity."""
    spark.conf.set(_SESSION_APP_ID, identity.query_id)
    spark.conf.set(_SESSION_VERSION, str(identity.batch_id))
    try:
        yield
    finally:
        spark.conf.unset(_SESSION_APP_ID)
        spark.conf.unset(_SESSION_VERSION)


def start(
    rows: DataFrame, write: Callable[[DataFrame, int], None], *, checkpoint: str, continuous: str | None
) -> StreamingQuery:
    """Start the query; it calls `write` with each micro-batch and its number."""
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    triggered = writer.trigger(availableNow=True) if continuous is None else writer.trigger(processingTime=continuous)
    return triggered.start()
