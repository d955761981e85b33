"""What a follower changes in its root: appends, truncations and starts of logs, many partitions in one commit.

A follower stores what its leader has: whole batches with their offsets, leader epochs, codecs and producers. Nothing is
assigned and no sequence is checked, as the leader has done both. A commit takes at most one change a partition. A
change that is refused (the log has another end, a damaged batch) fails alone; the others of its commit are made.

A crash before the commit is published leaves nothing visible, one after it everything.

Source of the rules: appendAsFollower, truncateTo and truncateFullyAndStartAt of
org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.commit.staged_batches import StagedBatches
from pyspark_kafkalog.storage.log.follower import FollowerBatches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAppend:
    """Whole batches to append at `expected_end_offset`, which must be the log end; and the leader's log start.

    The first batch begins at or above `expected_end_offset`; above it there is a gap, as compaction leaves them. Only
    an empty log, whose start and end are both `expected_end_offset`, also takes a batch that begins below it and
    reaches above it: the log then begins with that batch, and its log start stays (the leader's log start may be
    inside a batch). `data` may be empty, and may be a view of a response's frame: it is not changed and not kept. The
    writer checks it, unless it is the result of `check_batches` already. For a root in an object store it may also name
    batches that a task has put there, which begin at `expected_end_offset`.

    `log_start_offset`: the log start is raised to it, at most to the new log end; -1 leaves it. `leader_epoch`: the
    epoch in which the leader leads, -1 if unknown. If it is above that of the last batch, it begins at the new log end
    for now. The partition's leader epoch never falls; its leader-epoch-checkpoint gets the epoch with an append
    without batches, as that of one who has caught up, or with the first batch of it.

    `is_far_behind`: much more of the partition is to follow, so the writer need not keep it in memory for readers.
    """

    topic_partition: TopicPartition
    topic_id: str
    data: Buffer | FollowerBatches | StagedBatches
    expected_end_offset: int
    log_start_offset: int = -1
    leader_epoch: int = -1
    is_far_behind: bool = False

    @property
    def raw(self) -> Buffer:
        """The batches, one after the other; without those that are in a store."""
        if isinstance(self.data, StagedBatches):
            return b""
        return self.data.data.data if isinstance(self.data, FollowerBatches) else self.data

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches, wherever they are."""
        return self.data.size_bytes if isinstance(self.data, StagedBatches) else len(self.raw)

    @property
    def held_bytes(self) -> int:
        """About the memory that the change takes."""
        return self.data.held_bytes if isinstance(self.data, StagedBatches) else len(self.raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Drop the records from `end_offset` on of a log that ends at `expected_end_offset`.

    A batch that contains `end_offset` is dropped whole: the log then ends after the last batch that stays. A log that
    starts at or above `end_offset` becomes empty, and starts and ends there. What is in remote storage only cannot be
    dropped. The batches that are dropped go to a file first (cut_files.py).
    """

    topic_partition: TopicPartition
    topic_id: str
    expected_end_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Drop all records of a log that ends at `expected_end_offset`; it then starts and ends at `start_offset`.

    `keeps_records`: those that are dropped go to a file first, as of a truncation: the leader need not have had them.
    """

    topic_partition: TopicPartition
    topic_id: str
    expected_end_offset: int
    start_offset: int
    keeps_records: bool = False


FollowerChange: TypeAlias = FollowerAppend | Truncation | StartAt
#: The partition's state after the commit, or why the change was refused.
FollowerResult: TypeAlias = LogState | KafkalogError
#: Makes further records of the commit from the newest image: topics, partitions, configurations, ACLs.
PlanFollowerRecords: TypeAlias = Callable[[MetadataImage], Sequence[MetadataRecord]]


def no_records(image: MetadataImage) -> Sequence[MetadataRecord]:
    """A plan without further records."""
    return ()


class FollowerWriter(Protocol):
    """Commits the changes of one follower to its root. Used by one thread; one writer a process and root.

    `following_id` is given when it is opened: every commit checks that the root still follows with this id, so a root
    that was promoted, or follows another leader, refuses it (FollowingEndedError).
    """

    def commit(
        self, changes: Sequence[FollowerChange], records: PlanFollowerRecords = no_records
    ) -> list[FollowerResult]:
        """Make the changes in one commit, together with `records`; the result of each change.

        When this returns, the commit is durable as the writer's flush mode says, and visible. Raises what prevents the
        whole commit: FollowingEndedError; CommitStateUnknownError if it may have been published; OSError or
        ObjectStoreError of a full or failing disk or store. After any error but CommitStateUnknownError nothing was
        committed.
        """
        ...

    def close(self) -> None:
        """Close the files of logs that are kept open between commits."""
        ...
