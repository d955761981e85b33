"""`LeaderEndPoint`: what a follower asks a leader. There are two kinds of leaders, and one fetch loop for both.

    a Kafka cluster       its brokers answer Fetch as they answer a consumer: up to the high watermark, also from
                          remote storage, and with the first diverging epoch (KIP-595) where the logs differ
    another root          of any kind: batches are read from its segments and objects, below the high watermark

A leader has one or more *sources*, which answer fetches side by side: the brokers of a cluster, the readers of a root.

Source of the rules: org.apache.kafka.server.LeaderEndPoint, kafka.server.AbstractFetcherThread; KIP-101, KIP-279,
KIP-320, KIP-595.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, TypeAlias

from pyspark_kafkalog.errors import UnsupportedFormatError
from pyspark_kafkalog.metadata.acl import Acl
from pyspark_kafkalog.metadata.users import Quotas
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.storage.names import TopicPartition

#: Whether a topic of this name is to be followed.
SelectsTopic: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class LeaderTopic:
    """A topic at the leader: its id as Kafka's Uuid text, the leader epoch of each partition from 0 on, and the
    configurations that were set for the topic itself.

    A leader epoch of -1: the partition has no leader now, or its leader does not say. `offsets_ends`: see TopicImage; a
    cluster deletes the offsets of a topic with the topic.
    """

    name: str
    topic_id: str
    leader_epochs: tuple[int, ...]
    configs: Mapping[str, str]
    offsets_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderDescription:
    """What the leader has, as of one time.

    `topics` by name: the selected ones. `unreadable`: selected topics that exist but cannot be read, with the reason.
    `cluster_configs`: the topics' defaults of the whole cluster, as broker settings (log.segment.bytes), without those
    that are Kafka's own. `group_configs` by group: the configurations that were set for single groups. It, `acls` and
    `quotas` are None where the leader cannot or may not say. `has_authorizer`: it checks access control
    entries, whether it says which or not. `has_topics`: it names any, selected or not; a broker that has just started
    may not know them yet.
    """

    cluster_id: str
    topics: Mapping[str, LeaderTopic]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    cluster_configs: Mapping[str, str] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] | None = None
    acls: tuple[Acl, ...] | None = None
    has_authorizer: bool = False
    quotas: Quotas | None = None
    has_topics: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPosition:
    """Where a follower's log ends: `offset` is its log end, `last_epoch` the leader epoch of its last record.

    `last_epoch` -1: the log is empty, so it cannot diverge. `leader_epoch`: the newest epoch of the leader that the
    follower knows, -1 for none.
    """

    topic_partition: TopicPartition
    topic_id: str
    offset: int
    last_epoch: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The largest leader epoch that the leader knows up to the one asked for, and the offset at which it ends."""

    epoch: int
    end_offset: int


class FetchOutcome(Enum):
    """A leader's description of one partition.

    RECORDS          there may be batches from the position on
    DIVERGING        the position does not fit the leader's epochs: `diverging` says where it may
    OUT_OF_RANGE     the position is below the leader's log start, or above its high watermark
    TOPIC_CHANGED    the topic was deleted, or created again: describe the leader again
    LEADER_MOVED     another source answers for the partition now, or none for the moment: ask `sources` again
    FAILED           `error` says why; trying again later may help
    """

    RECORDS = auto()
    DIVERGING = auto()
    OUT_OF_RANGE = auto()
    TOPIC_CHANGED = auto()
    LEADER_MOVED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAnswer:
    """The answer for one partition.

    `data`: whole batches as the leader has them, all below its high watermark; the first may begin below the position
    if it contains it. Lengths are checked, CRCs are not. Or `staged`: batches from the position on, which a task has
    checked and put into the follower's store. `high_watermark` and `log_start_offset` are -1 if unknown.
    """

    topic_partition: TopicPartition
    outcome: FetchOutcome
    data: Buffer = b""
    staged: StagedBatches | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    error: str = ""

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches, wherever they are."""
        return len(self.data) if self.staged is None else self.staged.size_bytes


def old_format_answer(position: FetchPosition, source: str, error: UnsupportedFormatError) -> LeaderAnswer:
    """The answer where `source` has messages from before Kafka 0.11.

    Kafka's replicas store them as they are (kafka.server.ReplicaFetcherThread); no log of this package has them.
    """
    name = position.topic_partition
    return LeaderAnswer(
        topic_partition=name,
        outcome=FetchOutcome.FAILED,
        error=f"a follower does not copy messages from before Kafka 0.11, which {source} has of {name} at offset "
        f"{position.offset}: {error}; or leave the topic out with --topic",
    )


class LeaderEndPoint(Protocol):
    """A leader. `fetch` may be called by several threads, each for another source; the rest by one thread at a time.

    Besides LeaderUnavailableError, which may pass, a cluster's leader raises what does not: AuthenticationError if the
    cluster has never accepted this client, or it the cluster; UnsupportedApiError if the brokers are too old.
    """

    @property
    def name(self) -> str:
        """The leader in messages and in the commit log: host:port,host:port or a root's path or URL."""
        ...

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        """The topics that `selects` picks, and what belongs to them. Raises LeaderUnavailableError."""
        ...

    def sources(self, partitions: Collection[TopicPartition]) -> Mapping[str, Sequence[TopicPartition]]:
        """By the name of each source, the partitions that it answers for. Those without a leader are in none.

        The partitions are of the last description. Raises LeaderUnavailableError.
        """
        ...

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        """What `source` has from the positions on, each partition once, in any order; partitions may be left out.

        Waits up to `wait_ms` for records. Returns about `max_bytes` at most, and `partition_bytes` a partition; but the
        first batch is whole, however large. Raises LeaderUnavailableError if the source does not answer.
        """
        ...

    def range_of(self, position: FetchPosition) -> tuple[int, int]:
        """The log start offset and the high watermark of the partition now. Raises LeaderUnavailableError."""
        ...

    def epoch_end(self, position: FetchPosition, epoch: int) -> EpochEnd | None:
        """The end of the largest leader epoch up to `epoch` (OffsetForLeaderEpoch); None if there is none so old.

        Raises LeaderUnavailableError.
        """
        ...

    def close(self) -> None:
        """Close all connections and files."""
        ...
