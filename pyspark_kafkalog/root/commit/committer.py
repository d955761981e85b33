"""`LeaderWriter` of a root on a file system: appends to the partitions' logs and publishes one commit.

    lock the root; refresh the image
    plan               the units make their appends; batches, sequences and transactions are checked (plan.py)
    append, publish    one write a partition, then one commit of all (open_log_commits.py)
    unlock

What a crash leaves is in open_log_commits.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import (
    CommitConflictError,
    InvalidRecordError,
    KafkalogError,
    LogDirError,
)
from pyspark_kafkalog.metadata.following import check_not_following
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import AppendedBatches, MetadataRecord
from pyspark_kafkalog.metadata.root_lock import LockHeldError
from pyspark_kafkalog.record.header import BATCH_DTYPE
from pyspark_kafkalog.root.commit.changes import CommitUnit, UnitResult
from pyspark_kafkalog.root.commit.file_engine import ATTEMPTS, OpenLogCommits, state_records
from pyspark_kafkalog.root.commit.open_logs import LogNotKeptError, OpenLogs
from pyspark_kafkalog.root.commit.plan import CommitPlan, PartitionPlan, plan_units
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.below_root import keep_directories
from pyspark_kafkalog.storage.filesystem import FlushMode, flush_earlier
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producers import AppendedProducers
from pyspark_kafkalog.storage.log.sequences import ProducerView
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition

#: More than a commit and the metadata records of each unit take, unless the unit makes further ones.
_RECORDS_BYTES: Final = 512


class FileLeaderWriter:
    """Commits units to a root on a file system; keeps the logs of the partitions open. See `LeaderWriter`.

    `operation` is what the history says of its commits.
    """

    def __init__(self, root: FileRoot, *, flush: FlushMode, operation: str = "append") -> None:
        self._root = root
        self._commits = OpenLogCommits(root, flush=flush, operation=operation)

    def commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        """As in LeaderWriter."""
        with self._commits.locked(), keep_directories():
            results = self._commit_locked(units)
            if self._commits.fs.waits_for_disk and any(map(_tells_of_earlier, results)):
                # Who stored the batch, or decided the request, may have been killed before its commit was on disk.
                flush_earlier(self._root.path, self._commits.fs)
                self._commits.store.log.sync()
        return results

    def commit_at_once(self, units: Sequence[CommitUnit]) -> list[UnitResult] | None:
        """As in LeaderWriter."""
        commits = self._commits
        if commits.fs.waits_for_disk or commits.store.snapshot_follows((1 + len(units)) * _RECORDS_BYTES):
            return None
        try:
            with commits.locked(timeout_s=0), keep_directories():
                return self._commit_locked(units, may_resume=False)
        except (LockHeldError, LogNotKeptError):
            return None

    def _commit_locked(self, units: Sequence[CommitUnit], *, may_resume: bool = True) -> list[UnitResult]:
        for attempt in range(ATTEMPTS):
            plan = self._plan(may_resume=may_resume)
            results = plan_units(plan, units)
            try:
                self._carry_out(plan)
            except CommitConflictError:
                if attempt == ATTEMPTS - 1:
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
        self._commits.logs.close()

    def _plan(self, *, may_resume: bool) -> CommitPlan:
        image = self._commits.begin()
        check_not_following(image)
        logs = self._commits.logs

        def open_partition(topic_partition: TopicPartition) -> PartitionPlan:
            opened = logs.open(image, topic_partition, may_resume=may_resume)
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
        appends = [_PlannedAppend(each) for each in plan.changed]
        if not appends and not plan.records:
            return

        def records(states: Mapping[TopicPartition, LogState]) -> list[MetadataRecord]:
            return [*state_records(plan.image, states, appends), *plan.records]

        self._commits.carry_out(plan.image, appends, records)


class _PlannedAppend:
    """The planned append for one partition. See `PartitionAppend`."""

    def __init__(self, plan: PartitionPlan) -> None:
        self._plan = plan

    @property
    def topic_partition(self) -> TopicPartition:
        return self._plan.topic_partition

    def append_to(self, logs: OpenLogs, image: MetadataImage) -> UnifiedLog:
        log = logs.open(image, self.topic_partition).log
        if self._plan.leader_epoch >= 0:
            log.epochs.note(self._plan.leader_epoch, log.log_end_offset)
        known = AppendedProducers(self._plan.producer_batches, self._plan.producers.changed)
        log.append(*_joined(self._plan.parts), known=known)
        return log

    def state_of(self, log: UnifiedLog) -> LogState:
        return log.state()

    def appended(self) -> AppendedBatches | None:
        parts = self._plan.parts
        return AppendedBatches(
            first_offset=int(parts[0].batches["base_offset"][0]),
            records=sum(int(each.batches["records_count"].sum()) for each in parts),
            bytes=sum(len(each.data) for each in parts),
        )


def _tells_of_earlier(result: UnitResult) -> bool:
    """Whether a unit has succeeded by what an earlier commit has stored."""
    return not isinstance(result, KafkalogError) and (not result or any(each.is_duplicate for each in result))


def _joined(parts: Sequence[LeaderBatches]) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """The bytes of all batches, and their table."""
    if len(parts) == 1:
        return parts[0].data, parts[0].batches
    # As bytes: numpy would compare the fields of the tables, which takes longer than to copy them.
    batches = np.frombuffer(bytearray().join([each.batches.tobytes() for each in parts]), dtype=BATCH_DTYPE)
    sizes = batches["size_bytes"]
    batches["position"] = np.cumsum(sizes) - sizes
    return np.frombuffer(b"".join([each.data.data for each in parts]), dtype=np.uint8), batches
