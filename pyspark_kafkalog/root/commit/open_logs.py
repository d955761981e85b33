"""The logs that a writer keeps open between its commits, and the producer states of more of them.

Opening a log for each commit would cost more than the append: a listing, three files, and the batches since the last
producer snapshot. A log that was kept is used again only if nobody else has touched the partition: the image has the
state that this process has committed, and the files are those that it has left. So it is found out whether another
process has appended, has been killed while appending, or has rebuilt an index. Otherwise the log is resumed from the
image (`UnifiedLog.resume`), and its producer state, if that was kept, is advanced by the batches that were added.

A crash loses nothing: what is kept is a copy of what is committed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.root.admin import EffectiveConfigs, broker_config
from pyspark_kafkalog.root.directories import ensure_partition_directory
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import FileSystem, share_of_descriptors
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import advance
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    TopicPartition,
    offset_file_name,
    partition_path,
)

#: Logs that stay open: each takes three to five descriptors. Fewer do where the process may have few.
OPEN_LOGS: Final = 64
#: Partitions whose producer state stays in memory.
KEPT_PRODUCERS: Final = 4096
#: How often a kept log forgets expired producers, as a broker does (producer.id.expiration.check.interval.ms).
_EXPIRATION_CHECK_MS: Final = 600_000

_FileState: TypeAlias = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class PartitionLogs:
    """The logs of the partitions of the root in `root` as they are in `image`. The caller holds the root's lock."""

    root: Path
    image: MetadataImage
    broker_config: BrokerConfig
    clock: Callable[[], int]
    fs: FileSystem

    @classmethod
    def at(cls, root: Path, image: MetadataImage, *, clock: Callable[[], int], fs: FileSystem) -> PartitionLogs:
        return cls(root, image, broker_config(image), clock, fs)

    def resume(self, topic_partition: TopicPartition, state: LogState) -> UnifiedLog:
        """The partition's log, without the bytes after `state`. Raises UnknownTopicError, CorruptRecordError."""
        return UnifiedLog.resume(
            partition_path(self.root, topic_partition),
            self.broker_config.log_config(self.image.topic(topic_partition.topic).configs),
            state,
            clock=self.clock,
            fs=self.fs,
            producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
        )


class LogNotKeptError(Exception):
    """The log of a partition is not open, or was changed by another process."""


@dataclass(slots=True)
class OpenLog:
    """A log at the committed `state`, and the leader epoch of its next batches.

    `epochs` and `epochs_file` are its leader epochs, and the file that they were last written to.
    """

    log: UnifiedLog
    topic_id: str
    state: LogState
    leader_epoch: int
    configs: tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]
    epochs: tuple[EpochEntry, ...]
    epochs_file: _FileState

    def is_current(self, image: MetadataImage, topic: TopicImage, state: LogState) -> bool:
        """Whether the log is as `image` says, and nobody else has touched its files."""
        return (
            self.topic_id == topic.topic_id
            and (self.state is state or self.state == state)
            and self.configs[0] is topic.configs
            and self.configs[1] is image.broker_configs
            and _is_in_place(self.log)
            and self.epochs_file == _epochs_file(self.log)
        )


@dataclass(slots=True)
class _Producers:
    """A partition's producer state at a committed offset, and when expired producers were last removed."""

    topic_id: str
    manager: ProducerStateManager
    checked_ms: int


class OpenLogs:
    """The logs of the root in the directory `root`. Every call is made under the root's lock, but `close`.

    Unless it `knows_producers`, the logs have no more of the producer state than resuming them gives: reading the rest
    would cost a write of staged records more than the append. Different logs can be opened in different threads then.
    """

    def __init__(
        self,
        root: Path,
        configs: EffectiveConfigs,
        *,
        clock: Callable[[], int],
        fs: FileSystem,
        knows_producers: bool = True,
    ) -> None:
        #: Logs that stay open at most.
        self.capacity = share_of_descriptors(16, OPEN_LOGS)
        self._root = root
        self._configs = configs
        self._clock = clock
        self._fs = fs
        self._knows_producers = knows_producers
        self._logs: dict[TopicPartition, OpenLog] = {}  # the least recently used first
        self._producers: dict[TopicPartition, _Producers] = {}
        self._checked: set[TopicPartition] = set()  # found current in the present commit

    def begin(self) -> None:
        """A commit begins: others may have written since the last one."""
        self._checked.clear()

    def open(self, image: MetadataImage, topic_partition: TopicPartition, *, may_resume: bool = True) -> OpenLog:
        """The partition's log as of `image`, for an append. Raises UnknownTopicError, CorruptRecordError, OSError.

        Unless it `may_resume`, LogNotKeptError is raised for a log that would have to be read.
        """
        kept = self._logs.get(topic_partition)
        if kept is not None and topic_partition in self._checked:
            return kept
        topic = image.topic(topic_partition.topic)
        state = image.partition(topic_partition.topic, topic_partition.partition).state
        # What cannot be looked at stays among the logs: nobody else would close it.
        if kept is not None and kept.is_current(image, topic, state):
            kept.log.active_segment.reserve_room()
            self._logs[topic_partition] = self._logs.pop(topic_partition)
            self._checked.add(topic_partition)
            self._forget_expired(topic_partition)
            return kept
        if not may_resume:
            raise LogNotKeptError(topic_partition)
        if kept is not None:
            del self._logs[topic_partition]
            kept.log.suspend()
        opened = self._resume(image, topic_partition, state)
        self._logs[topic_partition] = opened
        self._checked.add(topic_partition)
        while len(self._logs) > self.capacity:
            self._logs.pop(next(iter(self._logs))).log.suspend()
        return opened

    def committed(self, topic_partition: TopicPartition, state: LogState) -> None:
        """The partition was committed with `state`, which is that of its log if that is still open."""
        kept = self._logs.get(topic_partition)
        if kept is not None:
            if state.active_base_offset != kept.state.active_base_offset:
                with contextlib.suppress(OSError):  # what was committed stays committed
                    _close_inactive(kept.log, kept.state.active_base_offset)
            kept.state = state
            kept.leader_epoch = state.leader_epoch
            epochs = kept.log.epochs.entries
            if epochs != kept.epochs:
                kept.epochs, kept.epochs_file = epochs, _epochs_file(kept.log)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forget what is kept of a partition whose append failed, or whose commit did."""
        self._producers.pop(topic_partition, None)
        kept = self._logs.pop(topic_partition, None)
        if kept is not None:
            with contextlib.suppress(OSError):
                kept.log.suspend()

    def close(self) -> None:
        """Close all files."""
        with contextlib.ExitStack() as closing:
            for kept in self._logs.values():
                closing.callback(kept.log.suspend)
        self._logs.clear()
        self._producers.clear()

    # Resuming

    def _resume(self, image: MetadataImage, topic_partition: TopicPartition, state: LogState) -> OpenLog:
        topic = image.topic(topic_partition.topic)
        of_directory = None
        if state.log_start_offset == state.log_end_offset:  # it may never have had records
            of_directory = ensure_partition_directory(self._root, topic_partition, topic.topic_id, self._fs)
        logs = PartitionLogs(self._root, image, self._configs.broker(image), self._clock, self._fs)
        log = logs.resume(topic_partition, state)
        if of_directory is not None:
            log.flush_also(of_directory)
        try:
            if self._knows_producers:
                self._restore_producers(topic_partition, topic.topic_id, log)
            leader_epoch = log.epoch_after(state.leader_epoch)
            configs = topic.configs, image.broker_configs
            return OpenLog(log, topic.topic_id, state, leader_epoch, configs, log.epochs.entries, _epochs_file(log))
        except BaseException:
            log.suspend()
            raise

    def _restore_producers(self, topic_partition: TopicPartition, topic_id: str, log: UnifiedLog) -> None:
        """Give `log` its complete producer state: the one that was kept, or else from the files."""
        known = self._producers.pop(topic_partition, None)
        if known is not None and known.topic_id == topic_id and known.manager.end_offset <= log.log_end_offset:
            advance(known.manager, log.log_end_offset)
            log.take_producers(known.manager)
        else:
            known = _Producers(topic_id, log.producers, self._clock())
        self._producers[topic_partition] = known
        _close_inactive(log, log.segments.first.base_offset)
        while len(self._producers) > KEPT_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def _forget_expired(self, topic_partition: TopicPartition) -> None:
        known = self._producers.get(topic_partition)
        now_ms = self._clock()
        if known is not None and now_ms - known.checked_ms >= _EXPIRATION_CHECK_MS:
            known.manager.remove_expired(now_ms)
            known.checked_ms = now_ms


def _close_inactive(log: UnifiedLog, base_offset: int) -> None:
    """Close the files of all segments from `base_offset` on but the active one, or each roll would keep three open."""
    with contextlib.ExitStack() as closing:
        for segment in log.segments.from_offset(base_offset):
            if segment.is_open and segment is not log.active_segment:
                closing.callback(segment.close_files)


def _is_in_place(log: UnifiedLog) -> bool:
    """Whether no other process has changed the end of the log: its last segment's files, or one after it."""
    active, end_offset = log.active_segment, log.log_end_offset
    if not active.is_in_place():
        return False
    following = f"{log.directory}/{offset_file_name(end_offset, LOG_SUFFIX)}"
    return end_offset == active.base_offset or not _exists(following)


def _exists(path: str) -> bool:
    """Opens the file, because a network file system may answer a stat from memory."""
    try:
        os.close(open_file(path))
    except FileNotFoundError:
        return False
    return True


def _epochs_file(log: UnifiedLog) -> _FileState:
    """Identifies the content of the leader epoch checkpoint, which is always replaced as a whole."""
    try:
        found = os.stat(log.epochs.path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
