"""What a commit changes in partitions: units of a leader's appends, or the changes of a follower, many in one commit.

A `CommitUnit` is all or nothing: the batches of one Produce request for a partition, the offsets of one OffsetCommit,
the markers and records that end a transaction. A unit that is refused (a bad batch, a sequence gap, a fenced producer)
fails alone; the others of its commit are appended.

A follower stores what its leader has: whole batches with their offsets, leader epochs, codecs and producers. Nothing is
assigned and no sequence is checked, as the leader has done both. A commit takes at most one change a partition. A
change that is refused (the log has another end, a damaged batch) fails alone; the others of its commit are made.

A crash before the commit is published leaves nothing visible, one after it everything.

Source of the rules for followers: appendAsFollower, truncateTo and truncateFullyAndStartAt of
org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.storage.log.follower import FollowerBatches
from pyspark_kafkalog.storage.log.leader_append import PreparedBatches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import quick_dataclass


class OutdatedCheckError(KafkalogError, RuntimeError):
    """A batch was checked for another configuration of its topic, and is not here to be checked again."""


class AppendOrigin(Enum):
    """Who made the batches of an append, which decides how they are checked (Kafka: AppendOrigin).

    CLIENT         a producer: sizes, CRCs, counts, timestamps, keys of compacted topics, sequences; no control batches
    COORDINATOR    records of a coordinator's own topic (`__consumer_offsets`, `__transaction_state`), also in a
                   transaction; or an end-transaction marker
    """

    CLIENT = auto()
    COORDINATOR = auto()


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAppend:
    """Whole record batches for one partition; their base offsets count from 0 and are assigned by the append.

    `topic_id`: the topic must still have this id; None: it is not checked. `data` may be a view of a request's frame;
    it is not changed and not kept. `is_transaction_v2`: the batch is of a transaction of version 2 (KIP-890): a
    producer without batches in the log must begin with sequence 0, and markers have a newer epoch. `prepared`: the
    batches of `data` if they were checked before; if the topic's configuration has changed since, they are checked
    again, or refused with OutdatedCheckError if `data` is empty.
    """

    topic_partition: TopicPartition
    data: Buffer
    topic_id: str | None = None
    origin: AppendOrigin = AppendOrigin.CLIENT
    is_transaction_v2: bool = False
    prepared: PreparedBatches | None = None


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class AppendedRange:
    """The result of one append: offsets [first_offset, last_offset], the partition's log start, and the append time.

    If `is_duplicate`, nothing was stored, and the offsets are those of the batch that the log already holds.
    `log_append_time_ms` is -1 unless the topic has LogAppendTime.
    """

    first_offset: int
    last_offset: int
    log_start_offset: int
    log_append_time_ms: int = -1
    is_duplicate: bool = False


#: Makes the appends of a unit from the newest image; raises KafkalogError to refuse the unit.
PlanAppends: TypeAlias = Callable[[MetadataImage], Sequence[LeaderAppend]]
#: Makes further records of the commit from the newest image and what the unit's appends got.
PlanRecords: TypeAlias = Callable[[MetadataImage, Sequence[AppendedRange]], Sequence[MetadataRecord]]


def _no_records(image: MetadataImage, appended: Sequence[AppendedRange]) -> Sequence[MetadataRecord]:
    return ()


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class CommitUnit:
    """Appends, and further metadata records, that become visible together or not at all.

    `appends` are those of the unit, or a function that makes them from the newest image. It and `records` are called by
    the writer's thread before anything of the unit is appended, and again if the commit has lost a race. `appends` is
    where a unit checks the image: the owner of a coordinator, the epoch of a transactional id. Several appends of a
    unit may be for one partition; they are appended in order. `size_bytes` are those of batches that clients have sent.
    """

    appends: PlanAppends | tuple[LeaderAppend, ...]
    records: PlanRecords = _no_records
    size_bytes: int = 0

    @property
    def makes_records(self) -> bool:
        """Whether the unit may have further records."""
        return self.records is not _no_records

    @property
    def only_batch(self) -> LeaderAppend | None:
        """The append of a unit that is the batch of a client alone, which needs nothing of the image but its topic."""
        if self.makes_records or not isinstance(self.appends, tuple) or len(self.appends) != 1:
            return None
        append = self.appends[0]
        is_usual = append.origin is AppendOrigin.CLIENT and not append.is_transaction_v2
        return append if is_usual else None

    @classmethod
    def of(cls, *appends: LeaderAppend) -> CommitUnit:
        """A unit of these appends."""
        return cls(appends=appends, size_bytes=sum(len(each.data) for each in appends))

    def appends_on(self, image: MetadataImage) -> Sequence[LeaderAppend]:
        """The appends, for the newest image. Raises KafkalogError if the unit is refused."""
        return self.appends if isinstance(self.appends, tuple) else self.appends(image)


UnitResult: TypeAlias = tuple[AppendedRange, ...] | KafkalogError


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
    without batches, as that of a follower that has caught up, or with the first batch of it.

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
