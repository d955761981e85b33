"""The work of a write's tasks: Arrow batches -> partitions -> record batches -> one `.staged` file per partition.

The driver commits the tasks' files (writers.py). A task that fails, is killed, or is the second copy of another leaves
staged files that nothing refers to: storage/staged_file.py says what removes them. A task whose input fails,
such as a UDF, sees only the end of its input: its file is whole, and stays like the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.root.staging import Staged
from pyspark_kafkalog.spark.worker_memory import freeze_imports
from pyspark_kafkalog.spark.write.plan import MicroBatch, TopicTarget, WritePlan
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system, time_ms
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, remove_writes, staged_files
from pyspark_kafkalog.threads import bound_address_space

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.storage.stager import Rows, TopicStager

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
        from pyspark_kafkalog.storage.stager import RowBuffer, Rows

        if self._target is None and self._options.topic is not None:
            self._target = self._open_target(self._options.topic)
        buffer = RowBuffer(self._buffer_bytes())
        finished: list[StagedFile] = []
        try:
            for batch in batches:
                for joined in buffer.add(batch):
                    self._stage(Rows(joined, time_ms()))
            for joined in buffer.flush():
                self._stage(Rows(joined, time_ms()))
            for topic in sorted(self._stagers):
                finished.extend(self._stagers[topic].finish())
        except BaseException:
            self._discard(finished)
            raise
        return finished

    def _stage(self, rows: Rows) -> None:
        given = rows.partitions
        if self._target is not None:
            self._stager(self._target.topic).add(rows.columns, None, given)
            return
        for topic, indices in rows.by_topic():
            self._stager(topic).add(rows.columns, indices, None if given is None else given[indices])

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
