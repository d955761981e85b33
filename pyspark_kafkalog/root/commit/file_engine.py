"""Commits of appends to logs that stay open between commits, on a file system.

    append     each partition's log gets its batches (open_logs.py). The ids and leader epochs of new partitions are
               flushed with them, not before
    publish    one commit with the partitions' new states and further records. The commit's file is written while the
               logs are being flushed, all files side by side; it gets its name when all are on disk

The caller holds the root's lock and has refreshed the image. A crash before the publish leaves bytes above the high
watermark, which are invisible and which the next writer truncates, as in staged_write.py. After an error they are
truncated immediately, and nothing of the commit is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import AppendedBatches, MetadataRecord
from pyspark_kafkalog.metadata.root_lock import DEFAULT_LOCK_TIMEOUT_S, LOCK_FILE, RootLock
from pyspark_kafkalog.metadata.store import LocalMetadataStore
from pyspark_kafkalog.root.commit.open_logs import OpenLogs
from pyspark_kafkalog.root.commit.staged_write import PartitionLogs, truncate_uncommitted
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.filesystem import FileSystem, FlushMode, beside
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition

#: How often a commit is retried after it lost the race to a writer that does not take the root's lock.
ATTEMPTS: Final = 10

#: Makes the records of the commit from the new states of the partitions that were appended to.
StatesToRecords: TypeAlias = Callable[[Mapping[TopicPartition, LogState]], Sequence[MetadataRecord]]


class PartitionAppend(Protocol):
    """What a commit appends to one partition."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    def append_to(self, logs: OpenLogs, image: MetadataImage) -> UnifiedLog | None:
        """Append to the partition's log as of `image`, and return it; None if the partition is left out after all."""
        ...

    def state_of(self, log: UnifiedLog) -> LogState:
        """The state to commit, after the append."""
        ...

    def appended(self) -> AppendedBatches | None:
        """The range for the history; None if there is no batch."""
        ...


class _Locked(RootLock):
    """The root's lock with what follows its release; see `OpenLogCommits.locked`."""

    __slots__ = ("_root", "_store")

    def __init__(self, path: Path, root: FileRoot, store: LocalMetadataStore, fs: FileSystem, timeout_s: float) -> None:
        super().__init__(path, timeout_s, is_new=False, fs=fs)
        self._root = root
        self._store = store

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self._root.store is not self._store:
            self._root.store.follow(self._store)


class OpenLogCommits:
    """Commits to `root`, which wait for the disk as `flush` says; `logs` are those that stay open.

    `operation` is what the history says of the commits. `following_id`: they are those of the follower that has it.
    """

    def __init__(self, root: FileRoot, *, flush: FlushMode, operation: str, following_id: str | None = None) -> None:
        self._root = root
        self._operation = operation
        self._following_id = following_id
        self.store: LocalMetadataStore = root.store_for(flush)
        self.fs: FileSystem = root.file_system_for(flush)
        self._lock_path = root.path / LOCK_FILE
        self.logs = OpenLogs(root.path, clock=root.clock, fs=self.fs)

    def locked(self, timeout_s: float = DEFAULT_LOCK_TIMEOUT_S) -> AbstractContextManager[None]:
        """Hold the root's lock; afterwards the root's own store follows the commits made meanwhile.

        To enter it raises LockHeldError if another process holds it for `timeout_s`.
        """
        self.store.check_root()
        return _Locked(self._lock_path, self._root, self.store, self.fs, timeout_s)

    def begin(self) -> MetadataImage:
        """The newest image, on which the next commit is planned."""
        image = self.store.refresh_to_head()
        self.logs.begin()
        return image

    def carry_out(
        self, image: MetadataImage, appends: Sequence[PartitionAppend], records: StatesToRecords
    ) -> MetadataImage:
        """Append and publish; returns the image after it. If that fails, nothing is left, unless it may be published.

        Raises CommitConflictError if `image` is not the newest any more, and what the appends raise.
        """
        try:
            states, unflushed = self._append(image, appends)
            after = self._publish(image, records(states), unflushed)
        except BaseException as error:
            for each in appends:
                self.logs.drop(each.topic_partition)
            if not isinstance(error, (CommitConflictError, CommitStateUnknownError)):
                self._truncate(image, [each.topic_partition for each in appends])
            raise
        for log in unflushed:
            log.flushed()
        for topic_partition in states:
            # As the image has it: to compare a state with itself takes no time.
            state = after.partition(topic_partition.topic, topic_partition.partition).state
            self.logs.committed(topic_partition, state)
        return after

    def _append(
        self, image: MetadataImage, appends: Sequence[PartitionAppend]
    ) -> tuple[dict[TopicPartition, LogState], list[UnifiedLog]]:
        """Append to all partitions; returns the new states, and the logs that are still to be flushed."""
        states: dict[TopicPartition, LogState] = {}
        unflushed: list[UnifiedLog] = []
        count = self.logs.capacity
        for at in range(0, len(appends), count):
            self._flush(unflushed)  # the next ones may take their places among the open logs
            unflushed = []
            for each in appends[at : at + count]:
                log = each.append_to(self.logs, image)
                if log is None:
                    self.logs.drop(each.topic_partition)
                    self._truncate(image, [each.topic_partition])
                else:
                    unflushed.append(log)
                    states[each.topic_partition] = each.state_of(log)
        return states, unflushed

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

    def _publish(
        self, image: MetadataImage, records: Sequence[MetadataRecord], unflushed: Sequence[UnifiedLog]
    ) -> MetadataImage:
        def build(newest: MetadataImage) -> Sequence[MetadataRecord]:
            if newest is not image:
                # What was found in the image may have changed, so it has to be planned again.
                raise CommitConflictError("another writer committed without the root's lock")
            return records

        with self._flushing(unflushed) as wait_for_disk:
            outcome = self.store.commit(
                build,
                operation=self._operation,
                newest=image,
                following_id=self._following_id,
                before_visible=wait_for_disk,
            )
        return outcome.image

    def _truncate(self, image: MetadataImage, partitions: Iterable[TopicPartition]) -> None:
        with contextlib.suppress(KafkalogError, OSError):
            logs = PartitionLogs.at(self._root.path, image, clock=self._root.clock, fs=self.fs)
            truncate_uncommitted(logs, partitions, self.store.refresh())


def _nothing() -> None:
    """Nothing is to be waited for."""


_NOTHING_TO_FLUSH: Final = contextlib.nullcontext(_nothing)


def state_records(
    image: MetadataImage, states: Mapping[TopicPartition, LogState], appends: Sequence[PartitionAppend]
) -> list[MetadataRecord]:
    """The records that make `states` those of the partitions, whose topics are as in `image`, after `appends`."""
    appended = {each.topic_partition: each.appended() for each in appends}
    return [
        partition_state_record(image.topic(each.topic).topic_id, each.partition, state, appended.get(each))
        for each, state in states.items()
    ]
