"""The appends of one write, before its commit: copies staged files to the ends of their partitions' logs, and flushes.

For each partition: resume the log from the image's state, which truncates the bytes of a crashed writer (and then
begins a new leader epoch), and append its staged files. Then flush all partitions concurrently: data, indexes, names.
A crash or an error leaves bytes above the high watermarks; after an error `undo` truncates them, which frees the space.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.root.commit_result import CommittedPartition
from pyspark_kafkalog.root.directories import ensure_partition_directory
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.parallel import in_parallel
from pyspark_kafkalog.storage.staging.staged_file import StagedFile

_LOG: Final = logging.getLogger(__name__)

#: Maximum of partitions with open files: each takes three of the 1024 descriptors that a process has by default.
_OPEN_PARTITIONS: Final = 64
#: From this size on, copying takes longer than passing the work to threads.
_PARALLEL_COPY_BYTES: Final = 8 << 20

StagedByPartition = Mapping[TopicPartition, Sequence[StagedFile]]


@dataclass(frozen=True, slots=True)
class Appended:
    """One partition after the append, before the commit; `others` are staged files of other writes in its directory."""

    topic_id: str
    before: LogState
    after: LogState
    committed: CommittedPartition
    others: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Open:
    """A partition's log with the staged files appended."""

    topic_partition: TopicPartition
    topic: TopicImage
    before: LogState
    staged: Sequence[StagedFile]
    log: UnifiedLog


@dataclass(frozen=True, slots=True)
class PartitionAppender:
    """Appends to partitions as they are in `image`. The caller holds the root's lock."""

    root: Path
    image: MetadataImage
    broker_config: BrokerConfig
    clock: Callable[[], int]
    fs: FileSystem

    def append(self, by_partition: StagedByPartition) -> list[Appended]:
        """Append all files, in the order of the partitions, and wait until they are on disk."""
        partitions = sorted(by_partition.items())
        appended: list[Appended] = []
        for at in range(0, len(partitions), _OPEN_PARTITIONS):
            appended += self._append_some(partitions[at : at + _OPEN_PARTITIONS])
        return appended

    def undo(self, newest: MetadataImage, by_partition: StagedByPartition) -> None:
        """Truncate the appended bytes of each partition that is unchanged in `newest`. Never raises.

        A failure in one partition does not affect the others: a partition of a topic that was re-created since staging
        may not even exist.
        """
        for each in by_partition:
            topic = newest.topics.get(each.topic)
            if topic is None or topic != self.image.topics.get(each.topic):
                continue
            try:
                state = newest.partition(each.topic, each.partition).state
                self._resume(each, topic, state).suspend()
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s: what a failed write appended is left to the next writer to cut: %s", each, error)

    def _append_some(self, partitions: Sequence[tuple[TopicPartition, Sequence[StagedFile]]]) -> list[Appended]:
        with contextlib.ExitStack() as closing:
            tasks = [partial(self._append_one, closing, *each) for each in partitions]
            size_bytes = sum(staged.size_bytes for _, files in partitions for staged in files)
            opened = in_parallel(tasks) if size_bytes >= _PARALLEL_COPY_BYTES else [task() for task in tasks]
            flushes = [partial(each.log.flush, is_last=True) for each in opened]
            if self.fs.waits_for_disk:
                in_parallel(flushes)
            else:
                for flush in flushes:
                    flush()
            return [self._describe(each) for each in opened]

    def _append_one(
        self, closing: contextlib.ExitStack, topic_partition: TopicPartition, staged: Sequence[StagedFile]
    ) -> _Open:
        topic = self.image.topic(topic_partition.topic)
        before = self.image.partition(topic_partition.topic, topic_partition.partition).state
        if before.log_end_offset == 0:
            ensure_partition_directory(self.root, topic_partition, topic.topic_id, self.fs)
        log = self._resume(topic_partition, topic, before)
        closing.callback(log.suspend)
        # Only after resuming, which removes files that are already committed.
        for each in staged:
            if each.name not in log.staged:
                raise UnknownTopicError(
                    f"{each.name}, staged for {topic_partition}, is gone: the topic was deleted, or the write was "
                    "given up or committed before; write again what is missing"
                )
        leader_epoch = before.leader_epoch + 1 if log.is_recovered else before.leader_epoch
        for each in staged:
            log.append_staged(each, leader_epoch=leader_epoch, durable=False)
        return _Open(topic_partition, topic, before, staged, log)

    def _resume(self, topic_partition: TopicPartition, topic: TopicImage, state: LogState) -> UnifiedLog:
        return UnifiedLog.resume(
            self.root / str(topic_partition),
            self.broker_config.log_config(topic.configs),
            state,
            clock=self.clock,
            fs=self.fs,
            producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
        )

    def _describe(self, done: _Open) -> Appended:
        after = done.log.state()
        committed = CommittedPartition(
            done.topic_partition,
            done.before.log_end_offset,
            after.log_end_offset,
            records=sum(each.records_count for each in done.staged),
            bytes=sum(each.size_bytes for each in done.staged),
        )
        own = {each.name for each in done.staged}
        others = tuple(done.log.directory / name for name in done.log.staged if name not in own)
        return Appended(done.topic.topic_id, done.before, after, committed, others)
