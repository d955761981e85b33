"""Topics and partitions as seen at one time, the same for all kinds of roots.

*Notices* say what a reader of a broker's directory does not get: offsets above the high watermark, in whole batches
that the broker's checkpoint does not cover yet, and offsets in remote storage, below the first local segment of a
tiered topic. Of several directories it reads one replica of each partition; a notice reports where another has other
records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args, overload

from pyspark_kafkalog.errors import KafkalogError, LogDirError
from pyspark_kafkalog.storage.artefacts.marker_files import BrokerProcess, broker_process
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import plural
from pyspark_kafkalog.values import check_one_of, dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.planned import RemotePart
    from pyspark_kafkalog.storage.log.producers import ProducerState
    from pyspark_kafkalog.storage.log.reader import PartitionExtents

_OPTION: Final = "the option readToLogEnd (--read-to-log-end)"
_LISTED_MAX: Final = 5


def known_size_bytes(active_base_offset: int, active_size_bytes: int, start_offset: int) -> int | None:
    """The size of the active segment if it has all records from `start_offset` on; None if not, or if it is unknown."""
    is_known = 0 <= active_base_offset <= start_offset and active_size_bytes >= 0
    return active_size_bytes if is_known else None


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
        from pyspark_kafkalog.storage.log.reader import LocalExtents  # no description needs it

        if self.remote is None:
            return LocalExtents(self.directory)
        return self.remote.extents(None if self.local_directory is None else LocalExtents(self.local_directory))

    @property
    def has_active_file(self) -> bool:
        """Whether the active segment is a file that has the last records. By now it may be closed, or deleted."""
        is_file = self.local_directory is not None and (self.remote is None or not self.remote.is_all)
        return is_file and 0 <= self.active_base_offset < self.high_watermark

    def known_size_bytes(self, start_offset: int) -> int | None:
        """A bound on the bytes from `start_offset` on, if that is in the active segment and its size is known."""
        return known_size_bytes(self.active_base_offset, self.active_size_bytes, start_offset)

    def stored_producers(self) -> Collection[ProducerState] | None:
        """The producers of a partition in an object store; None for a partition whose files have them."""
        return None

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


# Notices


def reading_notices(partitions: Iterable[PartitionSnapshot]) -> list[str]:
    """What a reader of the partitions should know, for each directory that it reads, then for replicas that differ."""
    found = tuple(partitions)
    above: dict[Path, list[PartitionSnapshot]] = {}
    disks: dict[str, set[Path]] = {}
    for each in found:
        if each.offsets_above_high_watermark:
            above.setdefault(each.directory.parent, []).append(each)
        for replica in each.replicas:
            if replica.directory_id is not None:
                disks.setdefault(replica.directory_id, set()).add(replica.directory.parent)
    notices = [_above_high_watermark(root, unread) for root, unread in above.items()]
    differing = differing_replicas(found)
    if differing is not None:
        notices.append(differing)
    return notices + [_copies(directory_id, paths) for directory_id, paths in disks.items() if len(paths) > 1]


def differing_replicas(partitions: Iterable[PartitionSnapshot]) -> str | None:
    """Where replicas have other records than those that are read; None if nowhere."""
    found = [each for each in partitions if any(replica.difference for replica in each.replicas)]
    if not found:
        return None
    listed = _listed(found, lambda each: "; ".join(describe_differences(each)))
    return (
        f"replicas of {plural(len(found), 'partition')} differ below their high watermarks ({listed}). The replica of "
        "the latest leader epoch is read, as its cluster does; kafkalog verify compares all of them"
    )


def describe_differences(found: PartitionSnapshot) -> list[str]:
    """Where each replica that differs from the one that is read does so."""
    return [
        f"offsets {each.difference.offset} to {each.difference.end_offset - 1} are of leader epoch "
        f"{each.difference.epoch} in {found.directory.parent} and of {each.difference.other_epoch} in "
        f"{each.directory.parent}"
        for each in found.replicas
        if each.difference is not None
    ]


def _copies(directory_id: str, found: Iterable[Path]) -> str:
    return (
        f"{' and '.join(sorted(map(str, found)))} have the same directory.id, {directory_id}: they are copies of one "
        "disk, and of each partition the better copy is read"
    )


def _above_high_watermark(root: Path, found: Sequence[PartitionSnapshot]) -> str:
    """The number of offsets above the high watermarks, with the reason and advice."""
    total = sum(each.offsets_above_high_watermark for each in found)
    listed = _listed(found, lambda each: f"{each.offsets_above_high_watermark:,}")
    return (
        f"{plural(total, 'offset')} in {plural(len(found), 'partition')} of {root} ({listed}) "
        f"are above the high watermark of its checkpoint and are not read: {reason_and_advice(broker_process(root))}"
    )


def reason_and_advice(process: BrokerProcess) -> str:
    """Why there are whole batches above the checkpointed high watermark, and how to read them."""
    if process is BrokerProcess.RUNNING:
        return (
            "a broker is running there, which writes its checkpoint every 5 seconds. They are read after its next "
            f"checkpoint, or now with {_OPTION}, whether all in-sync replicas have them or not"
        )
    if process is BrokerProcess.STOPPED:
        return (
            "the broker was stopped cleanly before all in-sync replicas had them. Take them from the partition's "
            f"leader, or read them with {_OPTION}"
        )
    return (
        "the broker was not stopped cleanly, so its checkpoint is older than its logs. Read them with "
        f"{_OPTION}, start the broker and stop it cleanly, or adopt the directory (kafkalog adopt)"
    )


def in_remote_storage(partitions: Iterable[PartitionSnapshot]) -> str | None:
    """The offsets in remote storage; None if there are no such offsets."""
    found = [each for each in partitions if each.remote_offsets_count]
    if not found:
        return None
    listed = _listed(found, lambda each: f"{each.log_start_offset} to {each.local_log_start_offset - 1}")
    return (
        f"earlier offsets of {plural(len(found), 'partition')} are in remote storage, not in this directory ({listed})"
    )


def remote_offsets(found: PartitionSnapshot) -> str:
    """The partition's log start offset and its local log start offset."""
    return (
        f"offsets {found.log_start_offset} to {found.local_log_start_offset - 1} of {found.topic}-{found.partition} "
        f"are in remote storage (tiered storage), the first one in this directory is {found.local_log_start_offset}"
    )


def _listed(partitions: Sequence[PartitionSnapshot], what: Callable[[PartitionSnapshot], str]) -> str:
    listed = ", ".join(f"{each.topic}-{each.partition}: {what(each)}" for each in partitions[:_LISTED_MAX])
    more = len(partitions) - _LISTED_MAX
    return f"{listed} and {more:,} more" if more > 0 else listed
