"""Tables of a root's records: reads of a range of offsets, its end by isolation level; and the append of a table.

`RootPartitions` are the partitions of a root for readers that look again and again: the server and a follower.

*Leader epochs* of a partition, and where each of them ends, come from the `leader-epoch-checkpoint` of the partition's
directory; of a partition in an object store from its extents; of remote storage without a directory from its segments.
The present leader epoch begins at the end of the log if no record was written in it. A crashed writer may have left
epochs behind the committed end: these are left out.

Source of the rules: LeaderEpochFileCache.endOffsetFor.
"""

from __future__ import annotations

import logging
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark_kafkalog.config.definitions import BATCH_SIZE_BYTES, PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.errors import KafkalogError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription, reading_notices, remote_offsets
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry, LeaderEpochCheckpoint
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage
    from pyspark_kafkalog.record.appendable import Appendable
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import IsolationLevel
    from pyspark_kafkalog.root.writes import CommitResult, WriteTransaction
    from pyspark_kafkalog.storage.filesystem import FlushMode

_LOG: Final = logging.getLogger(__name__)


def open_transaction_text(found: PartitionSnapshot) -> str:
    """A message text: the open transaction at which read_committed ends, below the high watermark."""
    from pyspark_kafkalog.root.transactions.states import producers_of

    producers = producers_of(found, expiration_ms=PRODUCER_ID_EXPIRATION_MS, now_ms=time_ms())
    first_offsets = {
        each.current_txn_first_offset: each.producer_id for each in producers if each.current_txn_first_offset >= 0
    }
    end_offset = found.last_stable_offset
    who = f"producer {first_offsets[min(first_offsets)]} has" if first_offsets else "a producer has"
    first_offset = min(first_offsets, default=end_offset)
    return (
        f"{who} a transaction open since offset {first_offset}, and read_committed ends there, at the last stable "
        f"offset {end_offset}, until it is committed or aborted (kafkalog transactions find-hanging)"
    )


def read_table(
    root: Root,
    partitions: Iterable[PartitionSnapshot],
    start_offset: int | None,
    end_offset: int | None,
    isolation: IsolationLevel,
    columns: Sequence[str] | None,
    *,
    local_only: bool = False,
) -> pa.Table:
    """Records of all the partitions in one table, with the given columns, or all.

    Logs a warning if the read goes to the end of a log that has complete batches above its high watermark.
    """
    import pyarrow as pa

    from pyspark_kafkalog.record.arrow import schema_of

    schema = schema_of(columns)
    partitions = tuple(partitions)
    to_the_end = [each for each in partitions if end_offset is None or end_offset > each.high_watermark]
    for notice in reading_notices(to_the_end):
        _LOG.warning(notice)
    batches = [
        batch
        for each in partitions
        for batch in read_partition(root, each, start_offset, end_offset, isolation, schema, local_only=local_only)
    ]
    return pa.Table.from_batches(batches, schema)


def read_partition(
    root: Root,
    found: PartitionSnapshot,
    start_offset: int | None,
    end_offset: int | None,
    isolation: IsolationLevel,
    schema: pa.Schema,
    *,
    local_only: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Records of [start_offset, end_offset), by default all readable ones, as batches of `schema`.

    With `local_only`, a start offset in remote storage is increased to the local log start offset.

    Raises OffsetOutOfRangeError, before the first batch, for a start offset that is outside of
    [log start offset, readable end], or, without `local_only`, in remote storage.
    """
    end_of_log = found.readable_end(isolation)
    start = found.log_start_offset if start_offset is None else start_offset
    if found.log_start_offset <= start < found.readable_start_offset:
        if not local_only:
            raise OffsetOutOfRangeError(f"{remote_offsets(found)}: start there, or read with local_only")
        start = found.readable_start_offset
    end = end_of_log if end_offset is None else min(end_offset, end_of_log)
    if end_of_log < start <= found.high_watermark:
        raise OffsetOutOfRangeError(
            f"offset {start} of {found.topic}-{found.partition} cannot be read as read_committed yet: "
            f"{open_transaction_text(found)}"
        )
    if not found.log_start_offset <= start <= end_of_log:
        raise OffsetOutOfRangeError(
            f"offset {start} of {found.topic}-{found.partition} is not in [{found.log_start_offset}, {end_of_log}]"
        )
    reader = root.reader(found.topic, found.partition)
    if end == found.high_watermark > start:
        reader.check_end(end)
    return reader.read(start, end, schema=schema, committed=isolation == "read_committed")


def append_table(
    root: Root,
    topic: str,
    records: Appendable,
    *,
    partition: int | None,
    compression_type: str | None,
    transaction: WriteTransaction | None,
    flush: FlushMode,
    clock: Callable[[], int],
) -> CommitResult:
    """Write the records to the topic, which is created if it does not exist, in one commit: see `LogDir.append`."""
    from pyspark_kafkalog.record.appendable import arrow_of, is_read_once  # imports pyarrow

    table = arrow_of(records)

    def append() -> CommitResult:
        from pyspark_kafkalog.storage.stager import stage_table  # imports compiled code

        described = root.ensure_topic(topic)
        if partition is not None and not 0 <= partition < len(described.partitions):
            raise UnknownTopicError(f"topic {topic!r} has partitions 0 to {len(described.partitions) - 1}")
        staging = root.staging(uuid.uuid4().hex, flush=flush)
        staged = stage_table(
            staging.task,
            topic,
            table,
            partitions_count=len(described.partitions),
            partition=partition,
            config=root.config_for_write(topic),
            asked_compression=compression_type,
            batch_size_bytes=BATCH_SIZE_BYTES,
            clock_ms=clock,
            fs=staging.fs,
        )
        try:
            handed_over = staging.hand_over(staged, {topic: described.topic_id or ""})
            return root.commit_staged(handed_over, transaction=transaction, flush=flush)
        except BaseException:
            staging.discard(staged)
            raise

    if is_read_once(table):  # so the write cannot be repeated
        root.refresh()
        return append()
    version = root.version
    try:
        return append()
    except UnknownTopicError:  # in an object store, written for the topic as of the last refresh
        root.refresh()
        if root.version == version:
            raise
        return append()


class RootPartitions:
    """The partitions of one root, as of its last `refresh`; for several threads. See `root_partitions`.

    As long as nothing is committed to a partition, `find` returns the same snapshot: so a reader that waits sees that
    the partition has not changed. This class is for a broker's directory: a refresh lists it again, and its partitions
    are read on first access.
    """

    #: Whether `find` and `topic_name` read files, so that an event loop calls them in a thread.
    reads_files: ClassVar[bool] = True

    def __init__(self, root: Root) -> None:
        self._root = root
        self._lock = threading.RLock()

    @property
    def image(self) -> MetadataImage | None:
        """The image of a native root; None for a broker's directory."""
        return None

    @property
    def version(self) -> int | None:
        """A number that is the same as long as no partition changes; None if that is not known."""
        return None if self.image is None else self.image.next_offset

    def refresh(self) -> None:
        """Bring the root up to date. Raises KafkalogError, OSError."""
        with self._lock:
            self._root.refresh()

    def follow(self) -> None:
        """Bring a root up to date that other processes commit to. A broker's directory is not listed again."""

    def topic(self, name: str) -> TopicDescription:
        """One topic with its partitions. Raises UnknownTopicError, KafkalogError, OSError."""
        with self._lock:
            return self._root.topic(name)

    def topic_name(self, topic_id: str) -> str | None:
        """The topic with that id; None if there is none."""
        with self._lock:
            return self._root.topic_name(topic_id)

    def find(self, topic: str, partition: int) -> PartitionSnapshot | None:
        """The partition; None if it does not exist. Raises what reading a broker's directory raises."""
        with self._lock:
            try:
                return self._root.partition(topic, partition)
            except UnknownTopicError:
                return None

    def are_current(self, snapshots: Sequence[PartitionSnapshot | None]) -> Iterable[bool]:
        """Whether `find` returns the same snapshot now."""
        return [each is not None and self._is_found(each) for each in snapshots]

    def _is_found(self, snapshot: PartitionSnapshot) -> bool:
        try:
            return self.find(snapshot.topic, snapshot.partition) is snapshot
        except (KafkalogError, OSError):
            return False  # its reads report the error


@dataclass(frozen=True, slots=True)
class _Known:
    """A snapshot, and the part of the image that it was made from."""

    partition: PartitionImage
    broker_configs: Mapping[str, Mapping[str, str]]
    snapshot: PartitionSnapshot


class NativePartitions(RootPartitions):
    """Those of a native root. A snapshot is made once for each state of its partition."""

    reads_files = False

    def __init__(self, root: NativeRoot) -> None:
        super().__init__(root)
        self._native = root
        self._known: dict[tuple[str, int], _Known] = {}

    @property
    def image(self) -> MetadataImage:
        return self._native.store.image

    def refresh(self) -> None:
        self._native.refresh()

    def follow(self) -> None:
        self._native.refresh()

    def topic_name(self, topic_id: str) -> str | None:
        return self._native.topic_name(topic_id)

    def find(self, topic: str, partition: int) -> PartitionSnapshot | None:
        image = self._native.store.image
        found = image.find(topic, partition)
        name = topic, partition
        if found is None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known.partition is not found or known.broker_configs is not image.broker_configs:
            try:
                snapshot = self._native.partition(topic, partition)
            except UnknownTopicError:  # deleted this moment
                return None
            known = self._known[name] = _Known(found, image.broker_configs, snapshot)
        return known.snapshot

    def are_current(self, snapshots: Sequence[PartitionSnapshot | None]) -> Iterable[bool]:
        """For thousands of partitions: nothing is made for those that have not changed."""
        image, known = self._native.store.image, self._known
        for each in snapshots:
            found = None if each is None else known.get((each.topic, each.partition))
            if (
                each is None
                or found is None
                or found.snapshot is not each
                or found.broker_configs is not image.broker_configs
            ):
                yield False
                continue
            topic = image.topics.get(each.topic)
            partitions = () if topic is None else topic.partitions
            yield each.partition < len(partitions) and partitions[each.partition] is found.partition


def root_partitions(root: Root) -> RootPartitions:
    """The partitions of `root`, for readers that look at them again and again."""
    return NativePartitions(root) if isinstance(root, NativeRoot) else RootPartitions(root)


UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1
UNDEFINED: Final = EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


def end_of_epoch(epochs: Sequence[EpochEntry], requested: int, log_end_offset: int) -> EpochEntry:
    """The largest epoch of `epochs` (increasing) that is not above `requested`, and the offset where it ends.

    (-1, -1) if that cannot be known: without epochs, and for one above all of them.
    """
    if not epochs or requested < 0:
        return UNDEFINED
    if requested == epochs[-1].epoch:
        return EpochEntry(requested, log_end_offset)
    higher = bisect_right(epochs, requested, key=itemgetter(0))
    if higher == len(epochs):
        return UNDEFINED
    if not higher:
        return EpochEntry(requested, epochs[0].start_offset)
    return EpochEntry(epochs[higher - 1].epoch, epochs[higher].start_offset)


def epochs_of(root: Root, of: PartitionSnapshot) -> list[EpochEntry]:
    """The epochs of the partition as of the snapshot, increasing. Reads files. Raises OSError, CorruptIndexError."""
    if of.local_directory is not None:
        stored: Iterable[EpochEntry] = LeaderEpochCheckpoint.open(of.local_directory / LEADER_EPOCH_CHECKPOINT).entries
    elif isinstance(root, NativeRoot):
        partition = root.store.image.find(of.topic, of.partition)
        stored = () if partition is None else leader_epochs(partition)
    elif of.remote is not None:
        stored = [each for segment in of.remote.log.copies for each in segment.leader_epochs]
    else:
        stored = ()
    merged = LeaderEpochCheckpoint(Path("epochs"), stored).entries  # only in memory: without those that contradict
    found = [each for each in merged if each.epoch <= of.leader_epoch and each.start_offset <= of.log_end_offset]
    if of.leader_epoch >= 0 and (not found or found[-1].epoch < of.leader_epoch):
        found.append(EpochEntry(of.leader_epoch, of.log_end_offset))
    return found


def epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int:
    """The epoch in which `offset` was, or will be, written; -1 below the first one."""
    at = bisect_right(epochs, offset, key=itemgetter(1))
    return epochs[at - 1].epoch if at else UNDEFINED_EPOCH


def leader_epochs(partition: PartitionImage) -> Iterator[EpochEntry]:
    """The leader epochs of a partition in an object store, each with the first offset that its extents have of it."""
    last = -1
    for segment in partition.segments:
        for each in segment.leader_epochs:
            if each.leader_epoch > last:
                yield EpochEntry(each.leader_epoch, each.start_offset)
                last = each.leader_epoch
    if not len(partition.runs):
        return
    import numpy as np

    epochs, firsts = np.unique(partition.runs.table["leader_epoch"], return_index=True)
    for epoch, first in zip(epochs.tolist(), firsts.tolist(), strict=True):
        if epoch > last:
            yield EpochEntry(epoch, int(partition.runs.table["base_offset"][first]))
            last = epoch
