"""What the server for Kafka's protocol commits: units of appends, many units in one commit.

A unit is all or nothing: the batches of one Produce request for a partition, the offsets of one OffsetCommit, the
markers and records that end a transaction. A commit takes many units, of many connections. A unit that is refused (a
bad batch, a sequence gap, a fenced producer) fails alone; the others of its commit are appended.

A crash before the commit is published leaves nothing visible, one after it everything: no unit is ever visible in part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.log.leader_append import PreparedBatches
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import quick_dataclass


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
    again.
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

    Both functions are called by the writer's thread with the newest image, before anything of the unit is appended,
    and again if the commit has lost a race. `appends` is where a unit checks the image: the owner of a coordinator,
    the epoch of a transactional id. Several appends of a unit may be for one partition; they are appended in order.
    `size_bytes` are those of batches that clients have sent.
    """

    appends: PlanAppends
    records: PlanRecords = _no_records
    size_bytes: int = 0

    @property
    def makes_records(self) -> bool:
        """Whether the unit may have further records."""
        return self.records is not _no_records

    @classmethod
    def of(cls, *appends: LeaderAppend) -> CommitUnit:
        """A unit of these appends."""
        return cls(appends=lambda image: appends, size_bytes=sum(len(each.data) for each in appends))


UnitResult: TypeAlias = tuple[AppendedRange, ...] | KafkalogError


class LeaderWriter(Protocol):
    """Commits units to one root, one call after the other; one writer a process and root."""

    def commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        """Append and publish the units in order, in one commit; the result of each, an error for one that was refused.

        When this returns, the commit is durable as the writer's flush mode says, and visible. Raises what prevents
        the whole commit: CommitStateUnknownError if it may have been published, OSError or ObjectStoreError of a full
        or failing disk or store. After any error but CommitStateUnknownError nothing was committed.
        """
        ...

    def commit_at_once(self, units: Sequence[CommitUnit]) -> list[UnitResult] | None:
        """As `commit` if nothing is to be waited for: no disk, no other writer, no log to be opened, no snapshot to be
        written. None otherwise, and then nothing was done.
        """
        ...

    def close(self) -> None:
        """Close the files of logs that are kept open between commits."""
        ...
