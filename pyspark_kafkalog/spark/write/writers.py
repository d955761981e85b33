"""The batch and the streaming writer: tasks stage records, and the driver commits all staged files of a write at once.

*Batch.*

    planning worker    opens the root; creates root and topic; with a transaction, begins an incarnation
    tasks              stage records
    committing worker  gets the pickled writer; opens the root, checks that it is the planned one, commits

With the options txnAppId and txnVersion a write is idempotent: the version that was committed last is not written
again, a lower one fails, and planning a write with an id fences all writers that planned one with that id before.

*Streaming.* Each micro-batch is committed once, whatever crashes and however often it is replayed.

    worker that plans, one per micro-batch   creates a writer
    task                                     stages records; query, batch and run are in the names of the staged files
                                             and in its message
    worker that commits                      creates another writer, which gets the messages of the tasks and commits to
                                             the root that its own plan has opened

Of a root in an object store these workers keep what they know from one micro-batch to the next (plan.py).

The query id is the write's transactional id, the batch id its version, the run id its incarnation: a replayed batch
finds its version committed, and a run is fenced once a later one has begun. Tasks find the ids in their local
properties, where org.apache.spark.sql.execution.streaming.runtime.StreamExecution puts them: the run id is the job
group.

A query creates the root in its first micro-batch (batch id 0) only, and commits its id there, also without rows. Every
later micro-batch must find the id. If it is missing, the volume is not mounted or the directory is another one, and the
query fails instead of writing elsewhere.

*A task.* Arrow batches -> partitions -> record batches -> one `.staged` file per topic, and more for large parts. A
task that fails, is killed, or is the second copy of another leaves staged files that nothing refers to:
storage/staged_file.py says what removes them. A task whose input fails, such as a UDF, sees only the end of its input:
its file is whole, and stays like the others.

A crash before the commit leaves staged files that nothing refers to; the next try of the batch removes them. A crash
after the commit, but before Spark has recorded the batch as done, leads to a replay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_kafkalog.errors import InvalidOptionError, called_by_spark
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.root.commit.staging import Staged
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.spark.options.parse import WriteOptions
from pyspark_kafkalog.spark.write.plan import MicroBatch, TopicTarget, WritePlan, plan_batch, plan_stream
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system, time_ms
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, remove_writes, staged_files
from pyspark_kafkalog.threads import bound_address_space, freeze_imports, keep_freed_memory

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
    from pyspark_kafkalog.storage.stager import TopicStager

_BUFFER_MIN_BYTES: Final = 4 << 20
_BUFFER_MAX_BYTES: Final = 64 << 20
_BUFFERED_BATCHES_PER_PARTITION: Final = 4


@dataclass
class StagedMessage(WriterCommitMessage):
    """What one task staged; `partition_id` orders the tasks."""

    partition_id: int
    staged: tuple[Staged, ...]


def stage(
    plan: WritePlan, batches: Iterator[pa.RecordBatch], *, micro_batch: MicroBatch | None = None
) -> StagedMessage:
    """On an executor: stage the rows of the current task.

    Rows without a key begin at the partition with the task's number, plus that of the micro-batch: otherwise a stream
    of small writes would fill only the first partitions.

    Raises LogDirError if the path has a root other than the planned one, or none.
    """
    from pyspark import TaskContext

    bound_address_space()
    keep_freed_memory()
    context = TaskContext.get()
    assert context is not None
    partition_id = context.partitionId()
    first_partition = partition_id + (0 if micro_batch is None else micro_batch.batch_id)
    staging = plan.staging(context.taskAttemptId())
    writer = TaskWriter(staging.task, plan, first_partition=first_partition, micro_batch=micro_batch)
    staged = staging.hand_over(writer.write(batches), writer.topic_ids)
    freeze_imports()
    return StagedMessage(partition_id, staged)


class TaskWriter:
    """Stages the rows of one task, topic by topic. `first_partition` is the first one for rows without a key.

    If the plan has no target, the root is opened for the first topic that rows name. Without `micro_batch` the write is
    a batch write; with it, the root must be the one of the query's earlier micro-batches.
    """

    def __init__(
        self, task: StagingTask, plan: WritePlan, *, first_partition: int, micro_batch: MicroBatch | None = None
    ) -> None:
        self._task = task
        self._plan = plan
        self._options = plan.options
        self._first_partition = first_partition
        self._micro_batch = micro_batch
        self._root: Root | None = None
        self._target = plan.target
        #: Of the topics that rows were staged for, by name.
        self.topic_ids: dict[str, str] = {}
        self._stagers: dict[str, TopicStager] = {}

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[StagedFile]:
        """Stage all rows; after any error no staged file remains."""
        from pyspark_kafkalog.storage.stager import RowBuffer

        if self._target is None and self._options.topic is not None:
            self._target = self._open_target(self._options.topic)
        buffer = RowBuffer(self._buffer_bytes())
        finished: list[StagedFile] = []
        try:
            for batch in batches:
                for collected in buffer.add(batch):
                    self._stage(collected)
            for collected in buffer.flush():
                self._stage(collected)
            for topic in sorted(self._stagers):
                finished.extend(self._stagers[topic].finish())
        except BaseException:
            self._discard(finished)
            raise
        return finished

    def _stage(self, batches: Sequence[Mapping[str, pa.Array]]) -> None:
        from pyspark_kafkalog.storage.stager import Rows, Selected

        now_ms = time_ms()
        topics: dict[str, list[Selected]] = {}
        for batch in batches:
            rows = Rows(batch, now_ms)
            given = rows.partitions
            if self._target is not None:
                topics.setdefault(self._target.topic, []).append(Selected(rows.columns, None, given))
                continue
            for topic, indices in rows.by_topic():
                partitions = None if given is None else given[indices]
                topics.setdefault(topic, []).append(Selected(rows.columns, indices, partitions))
        for topic, pieces in topics.items():
            self._stager(topic).add(pieces)

    def _stager(self, topic: str) -> TopicStager:
        from pyspark_kafkalog.record.partitioner import Partitioner
        from pyspark_kafkalog.storage.stager import TopicStager

        stager = self._stagers.get(topic)
        if stager is None:
            target = self._target or self._open_target(topic)
            self.topic_ids[topic] = target.topic_id
            partitioner = Partitioner(
                target.partitions_count,
                turn_bytes=self._options.batch_size_bytes,
                first_partition=self._first_partition,
                hash_keys=self._options.partitioner == "murmur2",
            )
            stager = TopicStager(
                self._task,
                topic,
                target.partitions_count,
                target.config,
                partitioner=partitioner,
                asked_compression=self._options.compression_type,
                batch_size_bytes=self._options.batch_size_bytes,
                clock_ms=time_ms,
                fs=flushing_file_system(LOCAL, "os" if self._task.is_scratch else self._options.flush),
            )
            self._stagers[topic] = stager
        return stager

    def _open_target(self, topic: str) -> TopicTarget:
        if self._root is None:
            root = self._plan.open_root()
            if self._micro_batch is not None:
                self._micro_batch.check_root(root)
            self._root = root
        return TopicTarget.open(self._root, topic)

    def _buffer_bytes(self) -> int:
        """Enough for several record batches in each partition, so that few of them are shorter than the batch size."""
        partitions_count = self._target.partitions_count if self._target is not None else 1
        size_bytes = partitions_count * self._options.batch_size_bytes * _BUFFERED_BATCHES_PER_PARTITION
        return min(max(size_bytes, _BUFFER_MIN_BYTES), _BUFFER_MAX_BYTES)

    def _discard(self, finished: list[StagedFile]) -> None:
        for stager in self._stagers.values():
            stager.discard()
        for staged in finished:
            LOCAL.unlink_if_there(staged.path(self._task.root))


def staged_in_order(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """All that is staged, in the order of the tasks; a task that failed has no message."""
    tasks = [message for message in messages if isinstance(message, StagedMessage)]
    return [staged for message in sorted(tasks, key=lambda each: each.partition_id) for staged in message.staged]


def remove_staged(path: Path | StoreAddress, write_ids: Collection[str]) -> None:
    """Remove the staged files of these writes from the root at `path`, also of tasks without a message.

    Files that a task stages after this, before it is stopped, remain to the next try, or to the clean-up by age. On an
    object store all is left to the clean-up: a commit whose outcome is unknown may name the objects.
    """
    if isinstance(path, StoreAddress) or not write_ids:
        return
    with contextlib.suppress(FileNotFoundError):
        remove_writes(staged_files(path), lambda write_id: write_id in write_ids, LOCAL)


@called_by_spark
class KafkalogBatchWriter(DataSourceArrowWriter):
    """Writes rows to one topic, or each row to the topic it names.

    `is_committed`: the transaction's version has been committed already, so there is nothing to write.
    """

    def __init__(
        self, plan: WritePlan, transaction: WriteTransaction | None = None, *, is_committed: bool = False
    ) -> None:
        self.plan = plan
        self._transaction = transaction
        self._is_committed = is_committed

    @classmethod
    def make(cls, options: WriteOptions) -> KafkalogBatchWriter:
        """On the driver: plan the write, and begin an incarnation of the transactional id if one is given."""
        plan, root = plan_batch(options)
        freeze_imports()
        if options.txn_app_id is None or options.txn_version is None:
            return cls(plan)
        transaction = WriteTransaction(
            options.txn_app_id, options.txn_version, plan.write_id, options.txn_lower_version
        )
        is_committed = root.has_committed(transaction)
        if is_committed:
            root.commit_staged((), transaction=transaction, flush=options.flush)  # logs that the write is skipped
        else:
            root.init_transaction(transaction.transactional_id, transaction.incarnation)
            plan = replace(plan, planned_at=root.version or 0)
        return cls(plan, transaction, is_committed=is_committed)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage the rows of one task."""
        return stage(self.plan, iter(()) if self._is_committed else iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: commit the files of all tasks at once. Without rows, only a given txnVersion is committed.

        Raises LogDirError when the path has a root other than the planned one, or none.
        """
        staged = staged_in_order(messages)
        if staged or (self._transaction is not None and not self._is_committed):
            root = self.plan.open_root()
            root.commit_staged(staged, transaction=self._transaction, flush=self.plan.options.flush)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: remove the staged files."""
        remove_staged(self.plan.path, [self.plan.write_id])


@dataclass
class StreamStagedMessage(StagedMessage):
    """The files that one task staged, with their write and micro-batch, and the root's identity (None without ids)."""

    write_id: str
    micro_batch: MicroBatch
    identity: RootIdentity | None


@called_by_spark
class KafkalogStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch to one topic, or each row to the topic it names, in one commit.

    `root` is the planned root if it exists. It is not pickled, so tasks do not get it.
    """

    def __init__(self, plan: WritePlan, root: Root | None = None) -> None:
        self.plan = plan
        self._root = root

    @classmethod
    def make(cls, options: WriteOptions) -> Self:
        """On the driver: plan a micro-batch; creates nothing."""
        plan, root = plan_stream(options)
        freeze_imports()
        return cls(plan, root)

    def __reduce__(self) -> tuple[type[Self], tuple[WritePlan]]:
        return type(self), (self.plan,)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage the rows of one task of a micro-batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        micro_batch = MicroBatch.of_task(context)
        plan = self.plan.with_new_root(micro_batch) if self.plan.is_new else self.plan
        plan = plan.of(micro_batch)
        message = stage(plan, iterator, micro_batch=micro_batch)
        return StreamStagedMessage(message.partition_id, message.staged, plan.write_id, micro_batch, plan.identity)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: commit the files of all tasks at once. Without rows, commits only the first micro-batch.

        Raises ProducerFencedError if a later run of the query has committed; LowerVersionError if a later micro-batch
        has been committed; LogDirError if the root at the path is not
        the one that the tasks and the query's earlier micro-batches wrote to; InvalidOptionError if a task has no
        message: continuous processing calls a Python sink without messages, and rows would be lost.
        """
        tasks = [message for message in messages if isinstance(message, StreamStagedMessage)]
        if len(tasks) != len(messages):
            raise InvalidOptionError(
                f"epoch {batchId}: {len(messages) - len(tasks)} of {len(messages)} tasks have no message about what "
                "they staged. kafkalog supports micro-batches only: use trigger(processingTime=...), "
                "trigger(availableNow=True) or trigger(once=True), not trigger(continuous=...)"
            )
        if not tasks:
            return
        staged, micro_batch = staged_in_order(tasks), tasks[0].micro_batch
        for identity in {message.identity for message in tasks}:
            self.plan.check_identity(identity)
        root = self._opened_root()
        micro_batch.check_root(root)
        if not staged and not micro_batch.is_first:
            return
        transaction = WriteTransaction(micro_batch.query_id, batchId, micro_batch.run_id)
        root.commit_staged(staged, transaction=transaction, flush=self.plan.options.flush)
        freeze_imports()

    def _opened_root(self) -> Root:
        """The root as it is now, or was when it was planned; see plan.py."""
        if self._root is None:
            return self.plan.open_root()
        if not isinstance(self.plan.path, StoreAddress):
            self._root.refresh()
        return self._root

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: remove the staged files of all tasks, if the message of one names query, batch and run.

        Without a message they remain to the next try of the batch: Spark tells an abort the number of the batch only.
        """
        write_ids = {message.write_id for message in messages if isinstance(message, StreamStagedMessage)}
        remove_staged(self.plan.path, write_ids)
