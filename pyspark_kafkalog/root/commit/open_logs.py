"""Logs on a file system that stay open between commits, and the commits of appends to them.

Opening a log for each commit would cost more than the append: a listing, three files, and the batches since the last
producer snapshot. A log that was kept is used again only if no other process has touched the partition: the image has
the state that this process has committed, and the files are those that it has left. So it is found out whether another
process has appended, has been killed while appending, or has rebuilt an index. Otherwise the log is resumed from the
image (`UnifiedLog.resume`), and its producer state, if that was kept, is advanced by the batches that were added.

    append     each partition's log gets its batches. The ids and leader epochs of new partitions are flushed with
               them, not before
    publish    one commit with the partitions' new states and further records. The commit's file is written while the
               logs are being flushed, all files side by side; it gets its name when all are on disk

The caller holds the root's lock and has refreshed the image. A crash before the publish leaves bytes above the high
watermark, which are invisible and which the next writer truncates. After an error they are truncated immediately, which
frees the space, and nothing of the commit is kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.metadata.invariants import check_follower, check_not_following
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore, NextCommit
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.messages.usual_commits import AppendedState, UsualCommits
from pyspark_kafkalog.metadata.root_lock import DEFAULT_LOCK_TIMEOUT_S, LOCK_FILE, KeptRootLock
from pyspark_kafkalog.metadata.store import CommitOutcome, MetadataStore, NewCommit
from pyspark_kafkalog.root.admin import EffectiveConfigs, broker_config
from pyspark_kafkalog.root.directories import ensure_partition_directory
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.below_root import KeptDirectories, is_there
from pyspark_kafkalog.storage.filesystem import FileSystem, FlushMode, beside, in_parallel, share_of_descriptors
from pyspark_kafkalog.storage.log.loader import LeftLog, leave
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import advance
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, offset_file_name, partition_path
from pyspark_kafkalog.storage.segment.segment import LogSegment
from pyspark_kafkalog.units import MIB

_LOG: Final = logging.getLogger(__name__)

#: Logs that stay open: each takes three to five descriptors. Fewer do where the process may have few.
OPEN_LOGS: Final = 64
#: Partitions whose producer state stays in memory.
KEPT_PRODUCERS: Final = 4096
#: How often a kept log forgets expired producers, as a broker does (producer.id.expiration.check.interval.ms).
_EXPIRATION_CHECK_MS: Final = 600_000

#: From this size on, the writes of a commit take longer than passing them to threads.
_PARALLEL_COPY_BYTES: Final = 8 * MIB

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

    def resume(
        self, topic_partition: TopicPartition, state: LogState, staged: Collection[str] | None = None
    ) -> UnifiedLog:
        """The partition's log, without the bytes after `state`; `staged` as in `UnifiedLog.resume`.

        Raises UnknownTopicError, CorruptRecordError.
        """
        return UnifiedLog.resume(
            partition_path(self.root, topic_partition),
            self.broker_config.log_config(self.image.topic(topic_partition.topic).configs),
            state,
            clock=self.clock,
            fs=self.fs,
            producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
            staged=staged,
        )


class LogNotKeptError(Exception):
    """The log of a partition is not open, or was changed by another process."""


@dataclass(slots=True)
class OpenLog:
    """A log at the committed `state`, and the leader epoch of its next batches.

    `epochs` and `epochs_file` are its leader epochs, and the file that they were last written to. `found_in` is the
    last commit in which it was found current, by its number.
    """

    log: UnifiedLog
    topic_id: str
    state: LogState
    leader_epoch: int
    configs: tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]
    epochs: tuple[EpochEntry, ...]
    epochs_file: _FileState
    found_in: int

    def is_current(self, image: MetadataImage, topic: TopicImage, state: LogState) -> bool:
        """Whether the log is as `image` says, and no other process has touched its files."""
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
        self._commits = 0

    def begin(self) -> None:
        """A commit begins: others may have written since the last one."""
        self._commits += 1

    def open(
        self,
        image: MetadataImage,
        topic_partition: TopicPartition,
        *,
        may_resume: bool = True,
        staged: Collection[str] | None = None,
    ) -> OpenLog:
        """The partition's log as of `image`, for an append. Raises UnknownTopicError, CorruptRecordError, OSError.

        Unless it `may_resume`, LogNotKeptError is raised for a log that would have to be read. `staged`: the names of
        the files to append, if only these are.
        """
        kept = self._logs.get(topic_partition)
        if kept is not None and kept.found_in == self._commits:
            return kept
        topic = image.topic(topic_partition.topic)
        state = image.partition(topic_partition.topic, topic_partition.partition).state
        # What cannot be looked at stays among the logs: no other code would close it.
        if kept is not None and kept.is_current(image, topic, state):
            kept.log.active_segment.reserve_room()
            if next(reversed(self._logs.values())) is not kept:
                self._logs[topic_partition] = self._logs.pop(topic_partition)
            kept.found_in = self._commits
            self._forget_expired(topic_partition)
            return kept
        if not may_resume:
            raise LogNotKeptError(topic_partition)
        if kept is not None:
            del self._logs[topic_partition]
            kept.log.suspend()
        opened = self._resume(image, topic_partition, state, staged)
        self._logs[topic_partition] = opened
        while len(self._logs) > self.capacity:
            self._logs.pop(next(iter(self._logs))).log.suspend()
        return opened

    def committed(self, topic_partition: TopicPartition, state: LogState) -> None:
        """The partition was committed with `state`, which is that of its log if that is still open."""
        kept = self._logs.get(topic_partition)
        if kept is not None:
            if state.active_base_offset != kept.state.active_base_offset:
                with contextlib.suppress(OSError):  # what was committed stays committed
                    _close_inactive(kept.log, kept.log.segments.from_offset(kept.state.active_base_offset))
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

    def _resume(
        self, image: MetadataImage, topic_partition: TopicPartition, state: LogState, staged: Collection[str] | None
    ) -> OpenLog:
        topic = image.topic(topic_partition.topic)
        of_directory = None
        if state.log_start_offset == state.log_end_offset:  # it may never have had records
            of_directory = ensure_partition_directory(self._root, topic_partition, topic.topic_id, self._fs)
        logs = PartitionLogs(self._root, image, self._configs.broker(image), self._clock, self._fs)
        log = logs.resume(topic_partition, state, staged)
        if of_directory is not None:
            log.flush_also(of_directory)
        try:
            if self._knows_producers:
                self._restore_producers(topic_partition, topic.topic_id, log)
            leader_epoch = log.epoch_after(state.leader_epoch)
            configs = topic.configs, image.broker_configs
            epochs = log.epochs.entries
            return OpenLog(log, topic.topic_id, state, leader_epoch, configs, epochs, _epochs_file(log), self._commits)
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
        _close_inactive(log, log.segments.made)
        while len(self._producers) > KEPT_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def _forget_expired(self, topic_partition: TopicPartition) -> None:
        known = self._producers.get(topic_partition)
        now_ms = self._clock()
        if known is not None and now_ms - known.checked_ms >= _EXPIRATION_CHECK_MS:
            known.manager.remove_expired(now_ms)
            known.checked_ms = now_ms


def _close_inactive(log: UnifiedLog, segments: Iterable[LogSegment]) -> None:
    """Close the files of the segments unless one is the active one, or each roll would keep three open."""
    with contextlib.ExitStack() as closing:
        for segment in segments:
            if segment.is_open and segment is not log.active_segment:
                closing.callback(segment.close_files)


def _is_in_place(log: UnifiedLog) -> bool:
    """Whether no other process has changed the end of the log: its last segment's files, or one after it."""
    active, end_offset = log.active_segment, log.log_end_offset
    if not active.is_in_place():
        return False
    following = f"{log.directory}/{offset_file_name(end_offset, LOG_SUFFIX)}"
    return end_offset == active.base_offset or not is_there(following)


def _epochs_file(log: UnifiedLog) -> _FileState:
    """Identifies the content of the leader epoch checkpoint, which is always replaced as a whole."""
    try:
        found = os.stat(str(log.epochs.path))  # calls with paths that are no strings take longer
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


# Commits

#: Makes the records of the commit from the newest image and the new states of the partitions that were appended to.
StatesToRecords: TypeAlias = Callable[[MetadataImage, Mapping[TopicPartition, LogState]], Sequence[MetadataRecord]]
#: Publishes the new states of the partitions that were appended to, once what it gets as well has waited for the disk.
Publish: TypeAlias = Callable[[Mapping[TopicPartition, LogState], Callable[[], None]], CommitOutcome]


class LockedRoot(Protocol):
    """What the engine takes of its root, a `FileRoot`."""

    configs: EffectiveConfigs

    @property
    def path(self) -> Path: ...

    @property
    def fs(self) -> FileSystem: ...

    @property
    def clock(self) -> Callable[[], int]: ...

    @property
    def store(self) -> MetadataStore: ...

    def store_for(self, flush: FlushMode) -> LocalMetadataStore: ...

    def file_system_for(self, flush: FlushMode) -> FileSystem: ...

    def follow_topics(self, before: MetadataImage, after: MetadataImage) -> None: ...


class PartitionAppend(Protocol):
    """What a commit appends to one partition."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def size_bytes(self) -> int: ...

    def append_to(self, logs: OpenLogs, image: MetadataImage) -> UnifiedLog | None:
        """Append to the partition's log as of `image`, and return it; None if the partition is left out after all."""
        ...

    def state_of(self, log: UnifiedLog) -> LogState:
        """The state to commit, after the append."""
        ...


class LeaderAppended(PartitionAppend, Protocol):
    """What a commit of a leader appends to one partition."""

    def range(self) -> tuple[int, int, int]:
        """The first offset, the number of records and their bytes."""
        ...


class _Locked(KeptRootLock):
    """The root's lock with what follows its release; see `FileCommits.locked`."""

    def __init__(self, root: LockedRoot, store: LocalMetadataStore, fs: FileSystem) -> None:
        super().__init__(root.path / LOCK_FILE, store.check_root, fs)
        self._root = root
        self._store = store

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self._root.store is not self._store:
            self._root.store.follow(self._store)


class FileCommits:
    """Commits of appends to the logs of `root`, which wait for the disk as `flush` says.

    `operation` is the commits' operation in the history. `following_id`: they are those of the follower that has it.
    `appends_files`: what is appended are staged files, for which the logs need not know their producers.
    """

    def __init__(
        self,
        root: LockedRoot,
        *,
        flush: FlushMode,
        operation: str,
        following_id: str | None = None,
        appends_files: bool = False,
    ) -> None:
        self.root = root
        self.following_id = following_id
        self.store: LocalMetadataStore = root.store_for(flush)
        self.fs: FileSystem = root.file_system_for(flush)
        self.logs = OpenLogs(root.path, root.configs, clock=root.clock, fs=self.fs, knows_producers=not appends_files)
        self._operation = operation
        self._usual_commits = UsualCommits(operation)
        self._appends_files = appends_files
        self._lock = _Locked(root, self.store, self.fs)
        #: For the blocks of commits in which no directory gets another place.
        self.directories = KeptDirectories()

    @property
    def waits_for_disk(self) -> bool:
        return self.fs.waits_for_disk

    def close(self) -> None:
        """Close all files; an error is logged, as what was committed stays committed."""
        try:
            self.logs.close()
        except OSError as error:
            _LOG.warning("files of a log could not be closed: %s; what was committed stays committed", error)
        self.directories.close()
        self._lock.close()

    def locked(self, timeout_s: float = DEFAULT_LOCK_TIMEOUT_S) -> AbstractContextManager[None]:
        """Hold the root's lock; afterwards the root's own store follows the commits made meanwhile.

        To enter it raises LockHeldError if another process holds it for `timeout_s`, LogDirError if another root, or
        none, is at the path now.
        """
        return self._lock(timeout_s)

    def begin(self) -> MetadataImage:
        """The newest image, on which the next commit is planned. Raises FollowingRootError, FollowingEndedError."""
        image = self.store.refresh_to_head()
        if self.following_id is None:
            check_not_following(image)
        else:
            check_follower(image, self.following_id)
        self.logs.begin()
        return image

    def append_and_publish(
        self,
        image: MetadataImage,
        appends: Sequence[PartitionAppend],
        records: StatesToRecords,
        *,
        key: str | None = None,
        check_unchanged: Callable[[MetadataImage], None] | None = None,
    ) -> CommitOutcome:
        """Append to the logs as of `image`, and publish. If that fails, nothing is left, unless it may be published.

        The caller holds the root's lock. If `image` is not the newest any more, `check_unchanged` decides with the
        newest one whether the commit still holds; without it, it does not. `key`: see `MetadataStore.commit`.

        Raises CommitConflictError if the commit does not hold, and what the appends raise.
        """

        def publish(states: Mapping[TopicPartition, LogState], wait_for_disk: Callable[[], None]) -> CommitOutcome:
            def build(newest: MetadataImage) -> Sequence[MetadataRecord]:
                if newest is not image:
                    if check_unchanged is None:
                        # What was found in the image may have changed, so it has to be planned again.
                        raise CommitConflictError("another writer committed without the root's lock")
                    check_unchanged(newest)
                return records(newest, states)

            new = NewCommit(
                build=build,
                operation=self._operation,
                key=key,
                following_id=self.following_id,
                before_visible=wait_for_disk,
            )
            return self.store.make(new, newest=image)

        return self._append_then(image, appends, publish)

    def publish_usual(self, commit: NextCommit, appends: Sequence[LeaderAppended]) -> None:
        """As `append_and_publish`, of a commit of appends of clients alone, which is the next one."""

        def publish(states: Mapping[TopicPartition, LogState], wait_for_disk: Callable[[], None]) -> CommitOutcome:
            appended = []
            for each in appends:
                of = each.topic_partition
                topic_id = commit.image.topics[of.topic].topic_id
                appended.append(AppendedState(of.topic, topic_id, of.partition, states[of], *each.range()))
            wait_for_disk()
            return CommitOutcome(commit.publish(self._usual_commits, appended), None)

        self._append_then(commit.image, appends, publish)

    def _append_then(self, image: MetadataImage, appends: Sequence[PartitionAppend], publish: Publish) -> CommitOutcome:
        """Append to the logs as of `image`, and publish; see `append_and_publish`."""
        try:
            states, unflushed, left = self._append(image, appends)
            with self._flushing(unflushed) as wait_for_disk:
                outcome = publish(states, wait_for_disk)
        except BaseException as error:
            for each in appends:
                self.logs.drop(each.topic_partition)
            if not isinstance(error, (CommitConflictError, CommitStateUnknownError)):
                # Otherwise the bytes may be another writer's, or committed.
                self._truncate(image, [each.topic_partition for each in appends])
            raise
        for log in unflushed:
            log.flushed()
        for topic_partition in states:
            # As the image has it: to compare a state with itself takes no time.
            state = outcome.image.partition(topic_partition.topic, topic_partition.partition).state
            self.logs.committed(topic_partition, state)
            if topic_partition in left:
                leave(left[topic_partition], state)
        return outcome

    def _append(
        self, image: MetadataImage, appends: Sequence[PartitionAppend]
    ) -> tuple[dict[TopicPartition, LogState], list[UnifiedLog], dict[TopicPartition, LeftLog]]:
        """Append to all partitions; returns the new states, the logs that are still to be flushed, and how logs that
        are not kept are left."""
        states: dict[TopicPartition, LogState] = {}
        left: dict[TopicPartition, LeftLog] = {}
        unflushed: list[UnifiedLog] = []
        count = self.logs.capacity
        for at in range(0, len(appends), count):
            if unflushed:
                self._flush(unflushed)  # the next ones may take their places among the open logs
                unflushed = []
            some = appends[at : at + count]
            for each, log in zip(some, self._appended(image, some), strict=True):
                if log is None:
                    self.logs.drop(each.topic_partition)
                    self._truncate(image, [each.topic_partition])
                else:
                    unflushed.append(log)
                    states[each.topic_partition] = each.state_of(log)
                    as_left = log.as_left() if self._appends_files else None
                    if as_left is not None:
                        left[each.topic_partition] = as_left
        return states, unflushed, left

    def _appended(self, image: MetadataImage, appends: Sequence[PartitionAppend]) -> Iterable[UnifiedLog | None]:
        """Append; the log of each partition."""
        is_parallel = len(appends) > 1 and sum(each.size_bytes for each in appends) >= _PARALLEL_COPY_BYTES
        if self._appends_files:
            self.logs.close()  # those of the partitions before
        elif is_parallel:
            for each in appends:  # logs that know their producers are opened in one thread
                with contextlib.suppress(KafkalogError, OSError):  # the append finds it again
                    self.logs.open(image, each.topic_partition)
        tasks = [partial(each.append_to, self.logs, image) for each in appends]
        return in_parallel(tasks) if is_parallel else [task() for task in tasks]

    def _flush(self, logs: Sequence[UnifiedLog]) -> None:
        with self._flushing(logs) as wait_for_disk:
            wait_for_disk()
        for log in logs:
            log.flushed()

    def _flushing(self, logs: Sequence[UnifiedLog]) -> AbstractContextManager[Callable[[], None]]:
        """Flush what was appended while the block runs; the value waits for that."""
        calls = [call for log in logs for call in log.flush_calls(is_last=True)]
        if self.fs.waits_for_disk:
            return beside(calls)
        for call in calls:
            call()
        return _NOTHING_TO_FLUSH

    def _truncate(self, image: MetadataImage, partitions: Iterable[TopicPartition]) -> None:
        """Truncate the appended bytes of each of the partitions that is unchanged in the newest image. Never raises.

        A failure in one partition does not affect the others: a partition of a topic that was re-created since may not
        even exist.
        """
        with contextlib.suppress(KafkalogError, OSError):
            logs = PartitionLogs(self.root.path, image, self.root.configs.broker(image), self.root.clock, self.fs)
            newest = self.store.refresh()
            for each in partitions:
                topic = newest.topics.get(each.topic)
                if topic is None or topic != image.topics.get(each.topic):
                    continue
                try:
                    logs.resume(each, newest.partition(each.topic, each.partition).state).suspend()
                except (KafkalogError, OSError) as error:
                    _LOG.warning(
                        "%s: the bytes of a failed write remain until the next write truncates them: %s", each, error
                    )


def _nothing() -> None:
    """Nothing is to be waited for."""


_NOTHING_TO_FLUSH: Final = contextlib.nullcontext(_nothing)
