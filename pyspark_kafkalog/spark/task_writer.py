"""What batch and streaming writes have in common: the plan that the driver makes, and what each task stages by it.

    driver  creates root and topic where they are not there and may be created, hands out the write's id
    task    Arrow batches -> partitions -> record batches -> one `.staged` file a topic partition

How the driver commits the tasks' files is up to batch_writer.py and stream_writer.py. A task that dies leaves files
that nothing refers to; clean-up removes them by age.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.spark.location import locate
from pyspark_kafkalog.spark.options import WriteOptions
from pyspark_kafkalog.spark.worker_memory import freeze_imports
from pyspark_kafkalog.storage.clock import time_ms
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.flush_mode import flushing_file_system
from pyspark_kafkalog.storage.log_config import LogConfig
from pyspark_kafkalog.storage.names import STAGED_SUFFIX
from pyspark_kafkalog.storage.staging import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.storage.row_buffer import Rows
    from pyspark_kafkalog.storage.topic_stager import StagingTask, TopicStager

_BUFFER_MIN_BYTES: Final = 4 << 20
_BUFFER_MAX_BYTES: Final = 64 << 20
_BUFFERED_BATCHES_A_PARTITION: Final = 4


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """What a task must know of a topic to write to it."""

    topic: str
    partitions_count: int
    config: LogConfig


@dataclass
class StagedMessage(WriterCommitMessage):
    """What one task staged; `partition_id` orders the tasks."""

    partition_id: int
    staged: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the driver settles for all tasks of a write. `target` None: each row names its topic."""

    options: WriteOptions
    root: Path
    target: TopicTarget | None
    write_id: str

    @classmethod
    def make(cls, options: WriteOptions) -> WritePlan:
        """On the driver: creates root and topic where they are not there and may be created."""
        from pyspark_kafkalog.log_dir import LogDir

        location = locate(options.path)
        if location.partition is not None:
            raise InvalidOptionError(
                f"option path names the partition directory of {location.partition}: to write, give the root "
                f"{location.root} as path and the topic as option or column"
            )
        LogDir.open_or_create(location.root)
        target = open_target(location.root, options.topic, options.principal) if options.topic is not None else None
        freeze_imports()
        return cls(options, location.root, target, uuid.uuid4().hex)

    def stage(self, batches: Iterator[pa.RecordBatch], *, turn: int = 0) -> StagedMessage:
        """On an executor: stage the rows of the task that runs.

        Rows without a key begin at the partition of the task's number, moved on by `turn`: a stream of small writes
        would else fill the first partitions only.
        """
        from pyspark import TaskContext

        from pyspark_kafkalog.storage.topic_stager import StagingTask

        context = TaskContext.get()
        assert context is not None
        partition_id = context.partitionId()
        task = StagingTask(root=self.root, write_id=self.write_id, task=context.taskAttemptId())
        writer = TaskWriter(task, self.options, self.target, first_partition=partition_id + turn)
        staged = tuple(writer.write(batches))
        freeze_imports()
        return StagedMessage(partition_id, staged)


class TaskWriter:
    """Stages what one task is given, topic by topic. `first_partition` is where rows without a key begin."""

    def __init__(
        self, task: StagingTask, options: WriteOptions, target: TopicTarget | None, *, first_partition: int
    ) -> None:
        self._task = task
        self._options = options
        self._target = target
        self._first_partition = first_partition
        self._stagers: dict[str, TopicStager] = {}

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[StagedFile]:
        """Stage all rows; on any error nothing stays."""
        from pyspark_kafkalog.storage.row_buffer import RowBuffer, Rows

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
        from pyspark_kafkalog.storage.topic_stager import TopicStager

        stager = self._stagers.get(topic)
        if stager is None:
            target = self._target or open_target(self._task.root, topic, self._options.principal)
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
                fs=flushing_file_system(LOCAL, self._options.flush),
            )
            self._stagers[topic] = stager
        return stager

    def _buffer_bytes(self) -> int:
        """Enough for several record batches in each partition, so that few are cut short at its end."""
        partitions_count = self._target.partitions_count if self._target is not None else 1
        wanted = partitions_count * self._options.batch_size_bytes * _BUFFERED_BATCHES_A_PARTITION
        return min(max(wanted, _BUFFER_MIN_BYTES), _BUFFER_MAX_BYTES)

    def _discard(self, finished: list[StagedFile]) -> None:
        for stager in self._stagers.values():
            stager.discard()
        for staged in finished:
            LOCAL.unlink_if_there(staged.path(self._task.root))


def open_target(root: Path, topic: str, principal: str | None) -> TopicTarget:
    """The topic as it is, made with the default number of partitions where it is not there and may be.

    Raises UnknownTopicError where auto.create.topics.enable is false, ReadOnlyLogDirError for a broker's directory,
    AuthorizationError where the principal may not write to it.
    """
    from pyspark_kafkalog.log_dir import LogDir

    log_dir = LogDir.open(root, principal=principal)
    log_dir.check_write(topic)
    log_dir.ensure_topic(topic)
    return TopicTarget(topic, len(log_dir.topic(topic).partitions), log_dir.log_config(topic))


def staged_in_order(messages: Iterable[WriterCommitMessage | None]) -> list[StagedFile]:
    """All files, in the order of the tasks; a task that failed has no message."""
    ours = [message for message in messages if isinstance(message, StagedMessage)]
    return [staged for message in sorted(ours, key=lambda each: each.partition_id) for staged in message.staged]


def remove_staged(root: Path, write_ids: Sequence[str]) -> None:
    """Remove what was staged for these writes, also by tasks whose message came too late to be passed on.

    What a task stages after this, before it is stopped, stays until clean-up takes it by its age.
    """
    for write_id in write_ids:
        for path in root.glob(f"*/{write_id}-*{STAGED_SUFFIX}"):
            LOCAL.unlink_if_there(path)
