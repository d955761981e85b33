"""Policies for records that do not have the shape of the table.

    fail         the query fails with the record's partition and offset; the table stays as after the previous batch
    skip         bad records are dropped; their number is logged for each batch
    quarantine   bad records go to a table of their own, with all columns of the source and `reason`, each once

The quarantine table is written before the main table. If the driver is killed between the two writes, the batch runs
again, and each of the two tables skips it if it already contains it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark_kafkalog.delta.delta_target import BatchIdentity, DeltaTarget
from pyspark_kafkalog.delta.record_shape import BAD, RECORD
from pyspark_kafkalog.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG: Final = logging.getLogger(__name__)

BadRecordsPolicy = Literal["fail", "skip", "quarantine"]
POLICIES: Final = get_args(BadRecordsPolicy)


class BadRecords:
    """A policy. `table` is the quarantine table, required for the policy `quarantine` and for no other.

    Raises InvalidOptionError when policy and table do not match.
    """

    def __init__(self, policy: BadRecordsPolicy, table: str | None = None) -> None:
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
