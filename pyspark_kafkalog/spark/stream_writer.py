"""The streaming writer: each micro-batch is committed once, whatever dies in between and however often it is replayed.

    worker that plans, one a micro-batch   makes a writer; its write id is in the names of the files
    task                                   stages; its message says which query and which run it was part of
    worker that commits                    makes another writer, which has the options and the messages only

The query id is the write's transactional id, the batch id its version, the run id its incarnation: a replayed batch
finds its version committed, and a run that another has followed is fenced. Tasks find the ids in their local
properties, where org.apache.spark.sql.execution.streaming.runtime.StreamExecution puts them: the run id is the job
group.

A crash before the commit leaves staged files that nothing refers to; one after it, before Spark has noted the batch as
done, leads to a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.spark.task_writer import StagedMessage, WritePlan, remove_staged, staged_in_order
from pyspark_kafkalog.spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which query's, which run's and which of its micro-batches a task is part of."""

    query_id: str
    run_id: str
    batch_id: int

    @classmethod
    def of_task(cls, context: TaskContext) -> MicroBatch:
        """The one that the task runs for. Raises InvalidOptionError when it runs for none."""
        query_id, run_id, batch_id = (
            context.getLocalProperty(name) for name in (QUERY_ID_PROPERTY, RUN_ID_PROPERTY, BATCH_ID_PROPERTY)
        )
        if not query_id or not run_id or not batch_id:
            raise InvalidOptionError(
                f"a task of a streaming write found {QUERY_ID_PROPERTY}={query_id}, {RUN_ID_PROPERTY}={run_id} and "
                f"{BATCH_ID_PROPERTY}={batch_id} in its local properties: the write needs all three to be made once. "
                "Start the query with writeStream and an ordinary trigger (processingTime, availableNow, once)"
            )
        return cls(query_id, run_id, int(batch_id))


@dataclass
class StreamStagedMessage(StagedMessage):
    """What one task staged, for which write and which micro-batch."""

    write_id: str
    micro_batch: MicroBatch


class KafkalogStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch to one topic, or each row to the topic it names, in one commit."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage the rows of one task of a micro-batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        micro_batch = MicroBatch.of_task(context)
        message = self.plan.stage(iterator, turn=micro_batch.batch_id)
        return StreamStagedMessage(message.partition_id, message.staged, self.plan.write_id, micro_batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: all tasks' files in one commit, none without rows.

        Raises ProducerFencedError when a later run of the query has committed, InvalidOptionError where a task has
        no message: in continuous processing, which calls a Python sink without them, rows would be lost.
        """
        from pyspark_kafkalog.log_dir import LogDir
        from pyspark_kafkalog.metadata.write_transaction import WriteTransaction

        ours = [message for message in messages if isinstance(message, StreamStagedMessage)]
        if len(ours) != len(messages):
            raise InvalidOptionError(
                f"epoch {batchId}: {len(messages) - len(ours)} of {len(messages)} tasks did not say what they "
                "staged. kafkalog takes micro-batches only: use trigger(processingTime=...), "
                "trigger(availableNow=True) or trigger(once=True), not trigger(continuous=...)"
            )
        staged = staged_in_order(ours)
        if not staged:
            return
        of = ours[0].micro_batch
        transaction = WriteTransaction(of.query_id, batchId, of.run_id)
        options = self.plan.options
        log_dir = LogDir.open(self.plan.root, principal=options.principal)
        log_dir.commit_staged(staged, transaction=transaction, flush=options.flush)
        freeze_imports()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: remove what was staged, by the tasks that said for which write."""
        ours = {message.write_id for message in messages if isinstance(message, StreamStagedMessage)}
        remove_staged(self.plan.root, sorted(ours))
