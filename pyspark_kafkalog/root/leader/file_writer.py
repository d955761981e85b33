"""`LeaderWriter` of a root on a file system: appends to the partitions' logs and publishes one commit.

    lock the root; refresh the image
    plan       the units make their appends; batches, sequences and transactions are checked (plan.py)
    append     one write a partition to its log (open_logs.py), then wait for the disk
    publish    one commit with the partitions' new states and the units' further records
    unlock

A crash before the publish leaves bytes above the high watermark, which are invisible and which the next writer
truncates, as in root/write.py. After an error they are truncated immediately, and nothing of the commit is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidRecordError,
    KafkalogError,
    LogDirError,
)
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.record.header import BATCH_DTYPE
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.leader.open_logs import OPEN_LOGS, OpenLogs
from pyspark_kafkalog.root.leader.plan import CommitPlan, PartitionPlan, plan_units
from pyspark_kafkalog.root.leader.units import CommitUnit, UnitResult
from pyspark_kafkalog.root.write import PartitionLogs, truncate_uncommitted
from pyspark_kafkalog.storage.filesystem import FlushMode, flush_earlier, in_parallel, note_unflushed
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.sequences import ProducerView
from pyspark_kafkalog.storage.names import TopicPartition

#: How often a commit is retried after it lost the race to a writer that does not take the root's lock.
_ATTEMPTS: Final = 10


class FileLeaderWriter:
    """Commits units to a root on a file system; keeps the logs of the partitions open. See `LeaderWriter`.

    `operation` is what the history says of its commits.
    """

    def __init__(self, root: FileRoot, *, flush: FlushMode, operation: str = "append") -> None:
        self._root = root
        self._operation = operation
        self._store = root.store_for(flush)
        self._fs = root.file_system_for(flush)
        self._logs = OpenLogs(root.path, clock=root.clock, fs=self._fs)

    def commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        """As in LeaderWriter."""
        self._store.check_root()
        with root_lock(self._root.path, fs=self._fs):
            results = self._commit_locked(units)
            if self._fs.waits_for_disk and any(map(_has_duplicate, results)):
                # Who stored the batch may have been killed before its commit was on disk.
                flush_earlier(self._root.path, self._fs)
                self._store.log.sync()
        if self._root.store is not self._store:
            self._root.store.follow(self._store)
        return results

    def _commit_locked(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        for attempt in range(_ATTEMPTS):
            plan = self._plan()
            results = plan_units(plan, units)
            try:
                self._carry_out(plan)
            except CommitConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
            except InvalidRecordError as error:
                # The records of one unit break an invariant, or those of all are too large for one commit.
                if len(units) == 1:
                    return [error]
                return self._commit_each(units)
            else:
                return results
        raise AssertionError

    def _commit_each(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        """Commit the units one by one. What prevents one of these commits is the result of its unit."""
        results: list[UnitResult] = []
        for unit in units:
            try:
                results += self._commit_locked([unit])
            except KafkalogError as error:
                results.append(error)
            except OSError as error:
                results.append(LogDirError(str(error)))
        return results

    def close(self) -> None:
        """As in LeaderWriter."""
        self._logs.close()

    def _plan(self) -> CommitPlan:
        image = self._store.refresh_to_head()
        self._logs.begin()

        def open_partition(topic_partition: TopicPartition) -> PartitionPlan:
            opened = self._logs.open(image, topic_partition)
            return PartitionPlan(
                topic_partition,
                opened.log.config,
                opened.log.log_start_offset,
                opened.log.log_end_offset,
                opened.leader_epoch,
                ProducerView(opened.log.producers.producers),
            )

        return CommitPlan(image, open_partition, self._root.clock())

    def _carry_out(self, plan: CommitPlan) -> None:
        """Append and publish. If that fails, nothing of it is left, unless it may have been published."""
        partitions = plan.changed
        if not partitions and not plan.records:
            return
        try:
            states = self._append(plan.image, partitions)
            self._publish(plan, states)
        except BaseException as error:
            for each in partitions:
                self._logs.drop(each.topic_partition)
            if not isinstance(error, (CommitConflictError, CommitStateUnknownError)):
                with contextlib.suppress(KafkalogError, OSError):
                    self._truncate(plan.image, [each.topic_partition for each in partitions])
            raise
        for topic_partition, state in states.items():
            self._logs.committed(topic_partition, state)

    def _append(self, image: MetadataImage, partitions: Sequence[PartitionPlan]) -> dict[TopicPartition, LogState]:
        """Append to all partitions and wait until that is on disk; returns the new states."""
        if not self._fs.waits_for_disk and partitions:
            note_unflushed(self._root.path, self._fs)
        states: dict[TopicPartition, LogState] = {}
        for at in range(0, len(partitions), OPEN_LOGS):
            some = partitions[at : at + OPEN_LOGS]
            logs = [self._logs.open(image, each.topic_partition).log for each in some]
            for log, each in zip(logs, some, strict=True):
                log.assign_epoch(each.leader_epoch, log.log_end_offset)
                log.append(*_joined(each.parts))
            flushes = [partial(log.flush, is_last=True) for log in logs]
            if self._fs.waits_for_disk:
                in_parallel(flushes)
            else:
                for flush in flushes:
                    flush()
            states.update((each.topic_partition, log.state()) for log, each in zip(logs, some, strict=True))
        return states

    def _publish(self, plan: CommitPlan, states: dict[TopicPartition, LogState]) -> None:
        def build(newest: MetadataImage) -> list[MetadataRecord]:
            if newest is not plan.image:
                # What the units have found in the image may have changed, so they are asked again.
                raise CommitConflictError("another writer committed without the root's lock")
            return [
                *(
                    partition_state_record(newest.topic(each.topic).topic_id, each.partition, state)
                    for each, state in states.items()
                ),
                *plan.records,
            ]

        self._store.commit(build, operation=self._operation, newest=plan.image)

    def _truncate(self, image: MetadataImage, partitions: Iterable[TopicPartition]) -> None:
        logs = PartitionLogs.at(self._root.path, image, clock=self._root.clock, fs=self._fs)
        truncate_uncommitted(logs, partitions, self._store.refresh())


def _has_duplicate(result: UnitResult) -> bool:
    return not isinstance(result, KafkalogError) and any(each.is_duplicate for each in result)


def _joined(parts: Sequence[LeaderBatches]) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """The bytes of all batches, and their table."""
    if len(parts) == 1:
        return parts[0].data, parts[0].batches
    # As bytes: numpy would compare the fields of the tables, which takes longer than to copy them.
    rows = [np.ascontiguousarray(each.batches).view(np.uint8) for each in parts]
    batches = np.concatenate(rows).view(BATCH_DTYPE)
    sizes = batches["size_bytes"]
    batches["position"] = np.cumsum(sizes) - sizes
    return np.concatenate([each.data for each in parts]), batches
