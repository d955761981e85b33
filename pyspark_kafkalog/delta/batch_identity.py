"""By what a micro-batch is known when it comes again: the id of its query, which the checkpoint keeps, and its number.

Spark writes a micro-batch's offsets to the checkpoint before it runs the batch, and notes the batch as done after it. A
driver that is killed in between runs the same offsets again, under the same two. Tables and topics keep the number of
the last batch of each id with the data, in one commit, so the second time nothing is written.

The id is the query's own rather than one that is chosen: with a new checkpoint comes a new id, whose batches count
from 0 again. Under an id that was kept they would be taken for old ones, and be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """One micro-batch of one query."""

    query_id: str
    batch_id: int

    @classmethod
    def of(cls, batch: DataFrame, batch_id: int) -> BatchIdentity:
        """Of what a foreachBatch function is given. Raises InvalidOptionError when no query is running it."""
        from pyspark_kafkalog.spark.stream_writer import QUERY_ID_PROPERTY  # loads Spark

        query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        if not query_id:
            raise InvalidOptionError(
                f"there is no {QUERY_ID_PROPERTY} in the local properties: a batch can only be written once by a "
                "streaming query, on a session that is not remote"
            )
        return cls(query_id, batch_id)
