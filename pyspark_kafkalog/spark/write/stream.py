"""The streaming writer: each micro-batch is committed once, whatever crashes and however often it is replayed.

    worker that plans, one per micro-batch   creates a writer; its write id is in the names of the staged files
    task                                     stages records; its message identifies the query and its run
    worker that commits                      creates another writer, which has only the options and the messages

The query id is the write's transactional id, the batch id its version, the run id its incarnation: a replayed batch
finds its version committed, and a run is fenced once a later one has begun. Tasks find the ids in their local
properties, where org.apache.spark.sql.execution.streaming.runtime.StreamExecution puts them: the run id is the job
group.

A query creates the root in its first micro-batch (batch id 0) only, and commits its id there, also without rows. Every
later micro-batch must find the id. If it is missing, the volume is not mounted or the directory is another one, and the
query fails instead of writing elsewhere.

A crash before the commit leaves staged files that nothing refers to. A crash after the commit, but before Spark has
recorded the batch as done, leads to a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_kafkalog.errors import InvalidOptionError, LogDirError
from pyspark_kafkalog.spark.worker_memory import freeze_imports
from pyspark_kafkalog.spark.write.task import StagedMessage, WritePlan, remove_staged, staged_in_order
from pyspark_kafkalog.storage.artefacts.marker_files import check_identity

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark import TaskContext

    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"

_ADVICE: Final = (
    "the volume may be unmounted, or the directory moved or replaced. Mount it or put it back, and start the query "
    "again. To begin a new log directory take a new checkpoint, or to go on there with this one run first: "
    "LogDir.open_or_create({path!r}).init_transaction({query!r}, 'begin')"
)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The query, the run and the micro-batch that a task belongs to."""

    query_id: str
    run_id: str
    batch_id: int

    @classmethod
    def of_task(cls, context: TaskContext) -> MicroBatch:
        """The micro-batch of the task. Raises InvalidOptionError if the task belongs to none."""
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

    @property
    def is_first(self) -> bool:
        """Whether it is the query's first micro-batch, which may create the log directory."""
        return self.batch_id == 0

    def check_opened(self, root: Root) -> None:
        """Raise LogDirError unless the query's first micro-batch went to `root`, or this is it."""
        if not self.is_first and not root.has_transactional_id(self.query_id):
            raise LogDirError(
                f"{root.path}: expected the log directory that the earlier micro-batches of query {self.query_id} "
                f"went to, found one with {root.identity} that has nothing of it, for micro-batch {self.batch_id}; "
                f"{_ADVICE.format(path=str(root.path), query=self.query_id)}"
            )

    def check_root(self, root: Path) -> None:
        """As `check_opened`, for the log directory at `root`, which need not exist for the first micro-batch."""
        from pyspark_kafkalog.root.bootstrap import is_vacant
        from pyspark_kafkalog.security.open import open_root

        if self.is_first:
            return
        if is_vacant(root):
            raise self.missing_error(root)
        self.check_opened(open_root(root))

    def missing_error(self, root: Path) -> LogDirError:
        """The error for a later micro-batch that finds no log directory."""
        return LogDirError(
            f"{root}: expected the log directory that the earlier micro-batches of query {self.query_id} went to, "
            f"found {'an empty directory' if root.exists() else 'no such directory'}, for micro-batch {self.batch_id}; "
            f"{_ADVICE.format(path=str(root), query=self.query_id)}"
        )


@dataclass
class StreamStagedMessage(StagedMessage):
    """The files that one task staged, with their write and micro-batch, and the root's identity (None without ids)."""

    write_id: str
    micro_batch: MicroBatch
    identity: RootIdentity | None


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
        plan = _with_root(self.plan, micro_batch) if self.plan.is_new else self.plan
        message = plan.stage(iterator, turn=micro_batch.batch_id, admit=micro_batch.check_opened)
        return StreamStagedMessage(message.partition_id, message.staged, plan.write_id, micro_batch, plan.identity)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: commit the files of all tasks at once. Without rows, commits only the first micro-batch.

        Raises ProducerFencedError if a later run of the query has committed; LogDirError if the root at the path is not
        the one that the tasks and the query's earlier micro-batches wrote to; InvalidOptionError if a task has no
        message: continuous processing calls a Python sink without messages, and rows would be lost.
        """
        from pyspark_kafkalog.root.write_transaction import WriteTransaction
        from pyspark_kafkalog.security.open import open_root

        ours = [message for message in messages if isinstance(message, StreamStagedMessage)]
        if len(ours) != len(messages):
            raise InvalidOptionError(
                f"epoch {batchId}: {len(messages) - len(ours)} of {len(messages)} tasks did not say what they "
                "staged. kafkalog takes micro-batches only: use trigger(processingTime=...), "
                "trigger(availableNow=True) or trigger(once=True), not trigger(continuous=...)"
            )
        if not ours:
            return
        staged, of, options = staged_in_order(ours), ours[0].micro_batch, self.plan.options
        for identity in {message.identity for message in ours}:
            check_identity(self.plan.root, identity)
        root = open_root(self.plan.root, principal=options.principal)
        of.check_opened(root)
        if not staged and not of.is_first:
            return
        transaction = WriteTransaction(of.query_id, batchId, of.run_id)
        root.commit_staged(staged, transaction=transaction, flush=options.flush)
        freeze_imports()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: remove the staged files of the tasks whose messages name their write."""
        ours = {message.write_id for message in messages if isinstance(message, StreamStagedMessage)}
        remove_staged(self.plan.root, sorted(ours))


def _with_root(plan: WritePlan, micro_batch: MicroBatch) -> WritePlan:
    """Add the root to the plan of a write whose root did not exist; only the first micro-batch creates it."""
    from pyspark_kafkalog.security.open import open_or_create_root

    if not micro_batch.is_first:
        raise micro_batch.missing_error(plan.root)
    return replace(plan, identity=open_or_create_root(plan.root).identity, is_new=False)
