"""The common part of batch and streaming writes: the driver's plan, and the staging in each task.

    driver  creates root and topic if they do not exist and may be created, assigns the write's id
    task    Arrow batches -> partitions -> record batches -> one `.staged` file per topic partition

For a stream the driver creates nothing, because it does not know which micro-batch it plans: the tasks of the first
micro-batch do that. Plan, tasks and commit run in different processes. The plan contains the identity of its root, and
the others check that this root is still at the path.

batch_writer.py and stream_writer.py commit the tasks' files on the driver. A task that crashes leaves staged files that
nothing refers to; clean-up removes them by age.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import InvalidOptionError, LogDirError
from pyspark_kafkalog.spark.options.parse import WriteOptions, locate
from pyspark_kafkalog.spark.worker_memory import freeze_imports
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity, check_identity
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system, time_ms
from pyspark_kafkalog.storage.names import STAGED_SUFFIX
from pyspark_kafkalog.storage.staging.staged_file import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.storage.staging.row_buffer import Rows
    from pyspark_kafkalog.storage.staging.stager import StagingTask, TopicStager

_BUFFER_MIN_BYTES: Final = 4 << 20
_BUFFER_MAX_BYTES: Final = 64 << 20
_BUFFERED_BATCHES_A_PARTITION: Final = 4


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """The properties of a topic that a task needs to write to it."""

    topic: str
    partitions_count: int
    config: LogConfig


@dataclass
class StagedMessage(WriterCommitMessage):
    """The files that one task staged; `partition_id` orders the tasks."""

    partition_id: int
    staged: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The driver's plan for all tasks of a write.

    `identity`: the root's, None if it has none. `target` None: each row names its topic, or the topic does not exist
    yet. `is_new`: the root does not exist yet.
    """

    options: WriteOptions
    root: Path
    identity: RootIdentity | None
    target: TopicTarget | None
    write_id: str
    is_new: bool = False

    @classmethod
    def make(cls, options: WriteOptions) -> WritePlan:
        """On the driver: creates root and topic if they do not exist and may be created."""
        from pyspark_kafkalog.security.open import open_or_create_root

        root = _root(options)
        identity = open_or_create_root(root).identity
        target = None
        if options.topic is not None:
            target = open_target(root, options.topic, options.principal, identity=identity)
        freeze_imports()
        return cls(options, root, identity, target, uuid.uuid4().hex)

    @classmethod
    def of_stream(cls, options: WriteOptions) -> WritePlan:
        """On the driver: a plan with the root and the topic as they are; creates nothing.

        Raises ReadOnlyLogDirError for a broker's directory, AuthorizationError if the principal may not write.
        """
        from pyspark_kafkalog.metadata.root_format import is_native_root
        from pyspark_kafkalog.root.bootstrap import is_vacant
        from pyspark_kafkalog.security.open import open_root

        path, write_id = _root(options), uuid.uuid4().hex
        try:
            root = None if is_vacant(path) else open_root(path, principal=options.principal)
        except LogDirError:
            if not is_native_root(path):
                raise
            root = None  # its creation was not finished
        if root is None:
            freeze_imports()
            return cls(options, path, None, None, write_id, is_new=True)
        root.check_writable()
        target = None
        if options.topic is not None:
            root.check_write(options.topic)
            if options.topic in root.topics():
                target = open_target(path, options.topic, options.principal, identity=root.identity)
        freeze_imports()
        return cls(options, path, root.identity, target, write_id)

    def stage(
        self, batches: Iterator[pa.RecordBatch], *, turn: int = 0, admit: Callable[[Root], None] | None = None
    ) -> StagedMessage:
        """On an executor: stage the rows of the current task.

        Rows without a key begin at the partition with the task's number plus `turn`: otherwise a stream of small writes
        would fill only the first partitions. `admit` raises for a log directory in which no topic may be created.
        Raises LogDirError if the path has a root other than the planned one, or none.
        """
        from pyspark import TaskContext

        from pyspark_kafkalog.storage.staging.stager import StagingTask

        check_identity(self.root, self.identity)
        context = TaskContext.get()
        assert context is not None
        partition_id = context.partitionId()
        task = StagingTask(root=self.root, write_id=self.write_id, task=context.taskAttemptId())
        open_topic = partial(
            open_target, self.root, principal=self.options.principal, identity=self.identity, admit=admit
        )
        target = self.target
        if target is None and self.options.topic is not None:
            target = open_topic(self.options.topic)
        writer = TaskWriter(task, self.options, target, first_partition=partition_id + turn, open_topic=open_topic)
        staged = tuple(writer.write(batches))
        freeze_imports()
        return StagedMessage(partition_id, staged)


class TaskWriter:
    """Stages the rows of one task, topic by topic. `first_partition` is the first one for rows without a key.

    `open_topic` returns the target for a topic that rows name, if there is no `target`.
    """

    def __init__(
        self,
        task: StagingTask,
        options: WriteOptions,
        target: TopicTarget | None,
        *,
        first_partition: int,
        open_topic: Callable[[str], TopicTarget] | None = None,
    ) -> None:
        self._task = task
        self._options = options
        self._target = target
        self._first_partition = first_partition
        self._open_topic = open_topic or partial(open_target, task.root, principal=options.principal)
        self._stagers: dict[str, TopicStager] = {}

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[StagedFile]:
        """Stage all rows; after any error no staged file remains."""
        from pyspark_kafkalog.storage.staging.row_buffer import RowBuffer, Rows

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
        from pyspark_kafkalog.storage.staging.stager import TopicStager

        stager = self._stagers.get(topic)
        if stager is None:
            target = self._target or self._open_topic(topic)
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
        """Enough for several record batches in each partition, so that few of them are shorter than the batch size."""
        partitions_count = self._target.partitions_count if self._target is not None else 1
        wanted = partitions_count * self._options.batch_size_bytes * _BUFFERED_BATCHES_A_PARTITION
        return min(max(wanted, _BUFFER_MIN_BYTES), _BUFFER_MAX_BYTES)

    def _discard(self, finished: list[StagedFile]) -> None:
        for stager in self._stagers.values():
            stager.discard()
        for staged in finished:
            LOCAL.unlink_if_there(staged.path(self._task.root))


def open_target(
    path: Path,
    topic: str,
    principal: str | None,
    *,
    identity: RootIdentity | None = None,
    admit: Callable[[Root], None] | None = None,
) -> TopicTarget:
    """The target for a topic, created with the default number of partitions if it does not exist and may be created.

    `admit` is called first, and raises if the log directory must not be written to. Raises UnknownTopicError if the
    topic does not exist and auto.create.topics.enable is false, ReadOnlyLogDirError for a broker's directory,
    AuthorizationError if the principal may not write to it, LogDirError if the root is not the one with `identity`.
    """
    from pyspark_kafkalog.security.open import open_root

    root = open_root(path, principal=principal, identity=identity)
    if admit is not None:
        admit(root)
    root.check_write(topic)
    root.ensure_topic(topic)
    return TopicTarget(topic, len(root.topic(topic).partitions), root.config_for_write(topic))


def _root(options: WriteOptions) -> Path:
    location = locate(options.path)
    if location.partition is not None:
        raise InvalidOptionError(
            f"option path names the partition directory of {location.partition}: to write, give the root "
            f"{location.root} as path and the topic as option or column"
        )
    return location.root


def staged_in_order(messages: Iterable[WriterCommitMessage | None]) -> list[StagedFile]:
    """All staged files, in the order of the tasks; a task that failed has no message."""
    ours = [message for message in messages if isinstance(message, StagedMessage)]
    return [staged for message in sorted(ours, key=lambda each: each.partition_id) for staged in message.staged]


def remove_staged(root: Path, write_ids: Sequence[str]) -> None:
    """Remove the staged files of these writes, also of tasks whose message came too late to be passed on.

    Files that a task stages after this, before it is stopped, remain until clean-up removes them by age.
    """
    for write_id in write_ids:
        for path in root.glob(f"*/{write_id}-*{STAGED_SUFFIX}"):
            LOCAL.unlink_if_there(path)
