"""Topics and partitions as seen at one time, the same for native log directories and brokers' directories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, overload

from pyspark_kafkalog.errors import KafkalogError, LogDirError
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import check_one_of

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.producers import ProducerState
    from pyspark_kafkalog.storage.log.reader import LocalExtents, PartitionExtents
    from pyspark_kafkalog.tiered.extents import RemoteLog

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two replicas' offsets [offset, end_offset), committed in both, that were written in different leader epochs.

    `epoch` is that of the batch at `offset` in the replica that is read, `other_epoch` that in the other one.
    """

    offset: int
    end_offset: int
    epoch: int
    other_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica of a partition, in one of several directories of brokers.

    `directory` is the partition's. `directory_id` and `node_id` are None if meta.properties does not say. `difference`:
    where it differs from the replica that is read, None where the leader epochs are the same. A replica of another
    topic of that name, which was deleted and created again, is not compared.
    """

    directory: Path
    directory_id: str | None
    node_id: int | None
    topic_id: str | None
    leader_epoch: int
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    log_end_offset: int
    is_of_other_topic: bool = False
    difference: Difference | None = None

    def common_offsets(self, read: PartitionSnapshot) -> tuple[int, int]:
        """The range of offsets that this replica and the one that is `read` have, and that are committed in both."""
        return (
            max(self.local_log_start_offset, read.local_log_start_offset),
            min(self.high_watermark, self.log_end_offset, read.high_watermark, read.log_end_offset),
        )


@dataclass(frozen=True, slots=True)
class RemotePart:
    """The remote part of a partition's log, and how to look it up again when an object of it is missing.

    `is_all`: the partition has no local directory.
    """

    log: RemoteLog
    look_up: Callable[[], RemoteLog | None]
    is_all: bool = False

    def extents(self, local: LocalExtents | None) -> PartitionExtents:
        """The whole log, with its local segments."""
        from pyspark_kafkalog.tiered.extents import TieredExtents  # imports compiled code

        return TieredExtents(self.log, None if self.is_all else local, self.look_up)

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> RemotePart:
        """What a task needs that reads the offsets [start_offset, end_offset)."""
        return replace(self, log=self.log.part(start_offset, end_offset, committed=committed))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    """One partition as of one version of its root: its files and its offsets, in Kafka's terms.

    Offsets [log_start_offset, high_watermark) exist. Those below `local_log_start_offset` are in remote storage only.
    `remote` is the remote part of the log, if a native root tiers its segments or a broker's directory was opened with
    its remote storage, and [readable_start_offset, high_watermark) can be read. `log_end_offset` is the end
    of the last whole, valid batch; it is above the high watermark only in a broker's directory, whose checkpoint may be
    older than its log. The active segment's base offset and size in bytes are -1 where they could only be found by
    reading the file system; in an object root it is the runs that are not merged yet, or else the last segment.

    `replicas` has the partition's replicas if the root consists of several brokers' directories, the one that this is
    first; otherwise it is empty.

    `local_directory` is None for a partition in an object store.

    `topic_id` is Kafka's Uuid text, None if a broker's directory has no id for the topic. It identifies the topic also
    after it was deleted and another topic was created with its name.
    """

    topic: str
    partition: int
    topic_id: str | None
    local_directory: Path | None
    leader_epoch: int
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    log_end_offset: int
    active_base_offset: int = -1
    active_size_bytes: int = -1
    replicas: tuple[ReplicaState, ...] = field(default=(), repr=False)
    remote: RemotePart | None = field(default=None, repr=False)
    #: Gives the extents of a partition without a directory.
    extents_elsewhere: Callable[[], PartitionExtents] | None = field(default=None, repr=False, compare=False)
    #: Gives the producers of a partition without a directory.
    producers_elsewhere: Callable[[], Collection[ProducerState]] | None = field(default=None, repr=False, compare=False)
    #: The last stable offset, or a function that finds it in the files, which a broker's directory needs.
    stable: int | Callable[[PartitionSnapshot], int] = field(repr=False, compare=False)

    @property
    def topic_partition(self) -> TopicPartition:
        """The name of the partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def directory(self) -> Path:
        """The partition's directory. Raises LogDirError if the log is in an object store only."""
        if self.local_directory is None:
            raise LogDirError(
                f"{self.topic_partition} is in an object store: it has no directory, and this works on the files of "
                "a log directory: `kafkalog export --path URL --to DIR` copies them"
            )
        return self.local_directory

    def extents(self) -> PartitionExtents:
        """What a LogReader of the partition reads. Raises LogDirError if the directory is a symbolic link."""
        if self.extents_elsewhere is not None:
            return self.extents_elsewhere()
        from pyspark_kafkalog.storage.log.reader import LocalExtents  # imports compiled code

        if self.remote is None:
            return LocalExtents(self.directory)
        return self.remote.extents(None if self.local_directory is None else LocalExtents(self.local_directory))

    @property
    def readable_start_offset(self) -> int:
        """The first offset that can be read here: the log start, or the local one if remote storage is not known."""
        return self.local_log_start_offset if self.remote is None else self.log_start_offset

    @property
    def latest_tiered_offset(self) -> int:
        """The last offset that was copied to remote storage; -1 if none was, or remote storage is not known."""
        return -1 if self.remote is None else self.remote.log.highest_offset

    @property
    def earliest_pending_upload_offset(self) -> int:
        """The first offset that waits for its copy in remote storage; -1 if remote storage is not known.

        Source of the rule: UnifiedLog.fetchEarliestPendingUploadOffset.
        """
        if self.remote is None or (
            self.latest_tiered_offset < 0 and self.local_log_start_offset > self.log_start_offset
        ):
            return -1
        return max(self.latest_tiered_offset + 1, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the high watermark: the end of read_committed.

        In a broker's directory the batches since the last producer snapshot are read for it. Raises DiskFormatError for
        damage in them.
        """
        return self.stable if isinstance(self.stable, int) else self.stable(self)

    def readable_end(self, isolation: IsolationLevel) -> int:
        """The end of reads with that isolation level: the last stable offset, or the high watermark."""
        if isolation == "read_committed":
            return self.last_stable_offset
        check_one_of("isolation", isolation, get_args(IsolationLevel))
        return self.high_watermark

    @property
    def remote_offsets_count(self) -> int:
        """Number of offsets from the log start on that cannot be read here, as they are in remote storage only."""
        return self.readable_start_offset - self.log_start_offset

    @property
    def offsets_above_high_watermark(self) -> int:
        """Number of offsets in whole, valid batches that are not read because they are above the high watermark."""
        return max(self.log_end_offset - self.high_watermark, 0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartitionSnapshots(Sequence[PartitionSnapshot]):
    """The partitions of a topic as of one time, each described when it is asked for: there may be 10,000 of them.

    Compares and pickles as the tuple of them.
    """

    size: int
    describe: Callable[[int], PartitionSnapshot]

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, at: int) -> PartitionSnapshot: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[PartitionSnapshot, ...]: ...
    def __getitem__(self, at: int | slice) -> PartitionSnapshot | tuple[PartitionSnapshot, ...]:
        chosen = range(self.size)[at]
        return self.describe(chosen) if isinstance(chosen, int) else tuple(map(self.describe, chosen))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSnapshots | tuple) and self[:] == other[:]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self[:])

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self[:],)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic: its id as Kafka's Uuid text (None where a broker's directory has none) and configuration overrides.

    `unreadable` has the error of each partition that is left out because it cannot be read, by number.
    """

    name: str
    topic_id: str | None
    configs: Mapping[str, str]
    partitions: Sequence[PartitionSnapshot]
    unreadable: Mapping[int, KafkalogError | OSError] = field(default_factory=dict, compare=False)
