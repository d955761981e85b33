"""Identity of a micro-batch across replays: the id of its query, from the checkpoint, and the batch number.

Spark writes the offsets of a micro-batch to the checkpoint before it runs the batch, and marks the batch as done after
it. A driver that is killed in between runs the same offsets again, under the same id and number. Tables and topics
store the number of the last batch of each id together with the data, in one commit, so the replay writes nothing.

The id is the query's own rather than a configured one: a new checkpoint comes with a new id, whose batches count from 0
again. Under a reused id they would be taken for replays and dropped.
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
        """The identity of the micro-batch that a foreachBatch function receives.

        Raises InvalidOptionError when the batch does not belong to a streaming query.
        """
        from pyspark_kafkalog.spark.write.stream import QUERY_ID_PROPERTY  # loads Spark

        query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        if not query_id:
            raise InvalidOptionError(
                f"there is no {QUERY_ID_PROPERTY} in the local properties: a batch can only be written once by a "
                "streaming query, on a session that is not remote"
            )
        return cls(query_id, batch_id)
