"""`RootLeader`: another root as a leader to follow: a native one on a file system or in an object store, or a broker's
directory.

It is only read, without a lock, beside its writers and its maintenance. A fetch that finds nothing waits by looking
for new commits: a few milliseconds apart on a file system, where a look costs microseconds, further apart in an object
store, where it is a request, and for a broker's directory, which is read again.

*Whole batches* are read by bytes, one partition after the other. The extent at which a partition's last read has ended
stays open, with its position, for the next read. A read returns batches of one extent: of a local segment by one call
of pread, of remote segments and of objects by ranges that are requested ahead. Of the active segment of a native root,
the bytes up to the committed size are read; of others all, and the end offset decides.

Retention, the cleaner, merges and tiering may delete or replace an extent at any time. Its bytes stay as they are while
it is open. A local file that has lost its name is not read further, so a log that was truncated is not either. What is
gone is looked up again, as in LogReader.

`LocalLogs` are the follower's own logs as they are committed: where they end, in which leader epochs, and with which
batch.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_kafkalog.errors import (
    DiskFormatError,
    KafkalogError,
    LeaderUnavailableError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.image import MetadataImage, broker_configs
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader, Buffer
from pyspark_kafkalog.replication.leader import (
    EpochEnd,
    FetchOutcome,
    FetchPosition,
    LeaderAnswer,
    LeaderDescription,
    LeaderTopic,
    SelectsTopic,
    old_format_answer,
)
from pyspark_kafkalog.replication.partition_state import PartitionState, epochs_with_records
from pyspark_kafkalog.replication.topics_plan import TOPIC_DEFAULTS
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.reads import UNDEFINED_EPOCH, end_of_epoch, epochs_of, root_partitions
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.direct_io import LentMemory
from pyspark_kafkalog.storage.log.extent_search import (
    LostExtentError,
    open_at,
    search_from,
    search_listed,
    whole_batches,
)
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment.reader import Extent, LocalExtent, SegmentReader

_LOCAL_INTERVAL_S: Final = 0.005
_SLOW_INTERVAL_S: Final = 0.25
#: Requests of an object store take a while, so several are under way.
_OBJECT_READERS: Final = 4
_OPEN_EXTENTS_MAX: Final = 64
_NOTHING: Final = b""


class _Key(NamedTuple):
    topic_id: str
    partition: int


@dataclass(slots=True)
class _Open:
    """An open extent, and where its next batch begins, whose offsets are `next_offset` or above."""

    reader: SegmentReader
    inode: int
    position: int
    next_offset: int


class RootBatches:
    """Reads batches of one root's partitions. For one thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[_Key, _Open] = OrderedDict()
        self._memory = LentMemory()

    def read(self, of: PartitionSnapshot, offset: int, *, max_bytes: int, may_exceed: bool) -> Buffer:
        """Batches from the one that holds `offset` on, below the high watermark; empty if there is none.

        At most `max_bytes`; with `may_exceed`, a first batch that is larger is returned nevertheless. Raises
        OffsetOutOfRangeError if the offset is below all extents, CorruptRecordError, ObjectStoreError, OSError.
        """
        if offset >= of.high_watermark:
            return _NOTHING
        key = _Key(of.topic_id or of.topic, of.partition)
        kept = self._open.pop(key, None)
        if kept is not None:
            if kept.next_offset == offset and _is_current(kept, of):
                found = self._read_open(key, kept, of, offset, max_bytes, may_exceed)
                if found is not None:
                    return found
            else:
                kept.reader.close()
        found = search_from(
            of.extents(),
            offset,
            of.high_watermark,
            lambda extent: self._read_extent(key, extent, of, offset, max_bytes, may_exceed),
            partition=of.topic_partition,
            high_watermark=of.high_watermark,
        )
        return _NOTHING if found is None else found

    def close(self) -> None:
        for each in self._open.values():
            each.reader.close()
        self._open.clear()

    def _read_extent(
        self, key: _Key, extent: Extent, of: PartitionSnapshot, offset: int, max_bytes: int, may_exceed: bool
    ) -> Buffer | None:
        """None if the extent has no batch at or above the offset. Raises FileNotFoundError."""
        opened = open_at(extent, offset)
        if opened is None:
            return None
        reader, position = opened
        try:
            at = _Open(reader, _inode(extent), position, offset)
        except BaseException:
            reader.close()
            raise
        return self._read_open(key, at, of, offset, max_bytes, may_exceed)

    def _read_open(
        self, key: _Key, at: _Open, of: PartitionSnapshot, offset: int, max_bytes: int, may_exceed: bool
    ) -> Buffer | None:
        """None if the extent has no further batch; it is closed then, and also after an error."""
        is_kept = False
        try:
            found = _batches_at(at, of, offset, self._memory, max_bytes=max_bytes, may_exceed=may_exceed)
            is_kept = found is not None
        except DiskFormatError as error:
            raise at.reader.placed(error) from None
        finally:
            if not is_kept:
                at.reader.close()
        if found is not None:
            self._open[key] = at
            while len(self._open) > _OPEN_EXTENTS_MAX:
                self._open.popitem(last=False)[1].reader.close()
        return found


def last_batch(of: PartitionSnapshot, end_offset: int) -> BatchHeader | None:
    """The header of the partition's last batch below `end_offset`; None if there is none.

    Raises CorruptRecordError, ObjectStoreError, OSError.
    """
    return search_listed(of.extents(), lambda current: _last_of(current, end_offset))


def _last_of(current: Sequence[Extent], end_offset: int) -> BatchHeader | None:
    for extent in reversed(current):
        if extent.base_offset >= end_offset:
            continue
        found: BatchHeader | None = None
        try:
            with SegmentReader(extent) as reader:
                for _, header in reader.headers(reader.position_for_offset(end_offset - 1)):
                    if header.base_offset >= end_offset:
                        break
                    found = header
        except FileNotFoundError:
            raise LostExtentError(extent) from None
        if found is not None:
            return found
    return None


def _inode(extent: Extent) -> int:
    """The inode behind the name of a local extent, 0 for others. Raises FileNotFoundError."""
    if not isinstance(extent, LocalExtent):
        return 0
    return os.stat(segment_file(extent.directory, extent.base_offset, LOG_SUFFIX), follow_symlinks=False).st_ino


def _is_current(kept: _Open, of: PartitionSnapshot) -> bool:
    """Whether the extent can be read further: a local one is still the file of its name."""
    extent = kept.reader.extent
    if isinstance(extent, LocalExtent) and extent.directory != of.local_directory:
        return False
    try:
        return _inode(extent) == kept.inode
    except OSError:
        return False


def _end_position(reader: SegmentReader, of: PartitionSnapshot) -> int:
    """Where the committed bytes of the extent end: of a segment that was active when it was opened, as far as known."""
    if reader.base_offset == of.active_base_offset and of.active_size_bytes >= 0:
        return of.active_size_bytes
    return reader.size_bytes


def _batches_at(
    at: _Open, of: PartitionSnapshot, offset: int, memory: LentMemory, *, max_bytes: int, may_exceed: bool
) -> Buffer | None:
    """The batches from the position on, which then is behind them; None at the end of the extent."""
    end_position = _end_position(at.reader, of)
    if end_position <= at.position:
        return None
    if max_bytes <= 0:
        return _NOTHING
    found = whole_batches(
        at.reader,
        at.position,
        offset,
        end_position=end_position,
        end_offset=of.high_watermark,
        piece_bytes=max_bytes,
        max_bytes=max_bytes,
        may_exceed=may_exceed,
        memory=memory.lend,
    )
    if len(found.data):
        at.position += len(found.data)
        at.next_offset = found.last_offset + 1
    return found.data


@dataclass(frozen=True, slots=True)
class LocalLog:
    """A partition's log: its state to fetch from, its leader epochs with records, and the state as committed."""

    state: PartitionState
    epochs: tuple[EpochEntry, ...]
    committed: LogState


class LocalLogs:
    """The logs of the follower's root."""

    def __init__(self, root: NativeRoot) -> None:
        self._root = root

    def refresh(self) -> MetadataImage:
        """The newest image. Raises as NativeRoot.refresh."""
        self._root.refresh()
        return self._root.store.image

    def batch_at(self, topic_partition: TopicPartition, offset: int) -> BatchHeader | None:
        """The header of the first committed batch that ends above `offset`, as of the last refresh; None without one.

        Raises as `load`.
        """
        batches = RootBatches()
        try:
            of = self._root.partition(topic_partition.topic, topic_partition.partition)
            data = batches.read(of, offset, max_bytes=RECORD_BATCH_OVERHEAD_BYTES, may_exceed=True)
        finally:
            batches.close()
        return BatchHeader.unpack(data) if len(data) else None

    def load(self, topic_partition: TopicPartition, topic_id: str, *, is_verified: bool) -> LocalLog:
        """The log as of the last refresh. Unless `is_verified`, its last batch is to be compared with the leader's.

        Raises UnknownTopicError, CorruptIndexError, CorruptRecordError, ObjectStoreError, OSError.
        """
        committed = self._root.store.image.partition(topic_partition.topic, topic_partition.partition).state
        of = self._root.partition(topic_partition.topic, topic_partition.partition)
        end_offset = of.log_end_offset
        is_empty = of.log_start_offset == end_offset
        epochs = () if is_empty else epochs_with_records(epochs_of(self._root, of), end_offset)
        state = PartitionState(
            topic_partition=topic_partition,
            topic_id=topic_id,
            log_start_offset=of.log_start_offset,
            end_offset=end_offset,
            last_epoch=epochs[-1].epoch if epochs else -1,
            unverified=None if is_verified or is_empty else last_batch(of, end_offset),
        )
        return LocalLog(state, epochs, committed)


class RootLeader:
    """A `LeaderEndPoint`: reads `root`. The caller does not use `root` otherwise while this is in use."""

    def __init__(
        self,
        root: Root,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._snapshots = root_partitions(root)
        self._is_local = self._snapshots.image is not None and bool(root.directories)
        readers = 1 if root.directories else _OBJECT_READERS
        self._batches = {f"reader-{number}": RootBatches() for number in range(readers)}
        self._epochs: dict[TopicPartition, tuple[PartitionSnapshot, list[EpochEntry]]] = {}

    @property
    def name(self) -> str:
        return str(self._root.path)

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        self._refresh()
        identity = self._root.identity
        if identity is None or identity.cluster_id is None:
            raise LeaderUnavailableError(f"{self.name} has no cluster.id in meta.properties: it cannot be recognized")
        topics: dict[str, LeaderTopic] = {}
        unreadable: dict[str, str] = {}
        for name in filter(selects, self._root.topics()):
            try:
                found = self._describe_topic(name)
            except UnknownTopicError:  # deleted this moment
                continue
            except (KafkalogError, OSError) as error:
                found = str(error)
            if isinstance(found, str):
                unreadable[name] = found
            else:
                topics[name] = found
        image = self._snapshots.image
        configs = {} if image is None else broker_configs(image)
        return LeaderDescription(
            cluster_id=identity.cluster_id,
            topics=topics,
            unreadable=unreadable,
            cluster_configs={name: value for name, value in configs.items() if name in TOPIC_DEFAULTS},
            group_configs=None if image is None else image.group_configs,
            acls=None if image is None else tuple(image.acls.values()),
            has_authorizer=AccessControl(self._root).has_authorizer(),
            quotas=None if image is None else image.client_quotas,
        )

    def _describe_topic(self, name: str) -> LeaderTopic | str:
        image = self._snapshots.image
        if image is not None:
            topic = image.topic(name)
            epochs = tuple(each.state.leader_epoch for each in topic.partitions)
            return LeaderTopic(name, topic.topic_id, epochs, topic.configs, topic.offsets_ends)
        described = self._snapshots.topic(name)
        if described.topic_id is None:
            return "it has no topic id: it was last written by a broker older than Kafka 2.8"
        numbers = [each.partition for each in described.partitions]
        if numbers != list(range(len(numbers))):
            return f"only its partitions {', '.join(map(str, numbers))} are there: name the directories of all brokers"
        return LeaderTopic(
            name, described.topic_id, tuple(each.leader_epoch for each in described.partitions), described.configs
        )

    def sources(self, partitions: Collection[TopicPartition]) -> Mapping[str, Sequence[TopicPartition]]:
        names = list(self._batches)
        found: dict[str, list[TopicPartition]] = {name: [] for name in names}
        for each in partitions:
            # The same partition always has the same reader, which keeps its extents open.
            found[names[(zlib.crc32(each.topic.encode()) + each.partition) % len(names)]].append(each)
        return {name: each for name, each in found.items() if each}

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        deadline_s = self._monotonic_s() + wait_ms / 1000
        self._refresh()
        while True:
            seen = self._root.version
            answers = self._look(self._batches[source], positions, max_bytes, partition_bytes)
            if any(each.outcome is not FetchOutcome.RECORDS or len(each.data) for each in answers):
                return answers
            if not self._wait_for_commit(seen, deadline_s):
                return answers

    def range_of(self, position: FetchPosition) -> tuple[int, int]:
        self._refresh()
        found = self._found(position)
        if found is None:
            raise LeaderUnavailableError(f"{self.name} has no partition {position.topic_partition} of that topic")
        return found.readable_start_offset, found.high_watermark

    def epoch_end(self, position: FetchPosition, epoch: int) -> EpochEnd | None:
        self._refresh()
        found = self._found(position)
        if found is None:
            raise LeaderUnavailableError(f"{self.name} has no partition {position.topic_partition} of that topic")
        try:
            return self._epoch_end(found, epoch)
        except (KafkalogError, OSError) as error:
            raise LeaderUnavailableError(str(error)) from error

    def close(self) -> None:
        for each in self._batches.values():
            each.close()

    def _refresh(self) -> None:
        try:
            self._snapshots.refresh()
        except (KafkalogError, OSError) as error:
            raise LeaderUnavailableError(f"{self.name} cannot be read: {error}") from error

    def _wait_for_commit(self, seen: int | None, deadline_s: float) -> bool:
        """Whether there are new commits, or for a broker's directory there may be, before the deadline."""
        interval_s = _LOCAL_INTERVAL_S if self._is_local else _SLOW_INTERVAL_S
        while True:
            left_s = deadline_s - self._monotonic_s()
            if left_s <= 0:
                return False
            self._sleep(min(interval_s, left_s))
            self._refresh()
            if seen is None or self._root.version != seen:
                return True

    def _look(
        self, batches: RootBatches, positions: Sequence[FetchPosition], max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        answers: list[LeaderAnswer] = []
        left_bytes = max_bytes
        for position in positions:
            answer = self._answer(
                batches, position, max_bytes=min(left_bytes, partition_bytes), may_exceed=left_bytes == max_bytes
            )
            left_bytes = max(left_bytes - len(answer.data), 0)
            answers.append(answer)
        return answers

    def _answer(
        self, batches: RootBatches, position: FetchPosition, *, max_bytes: int, may_exceed: bool
    ) -> LeaderAnswer:
        name = position.topic_partition
        try:
            found = self._found(position)
            if found is None:
                return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.TOPIC_CHANGED)
            diverging = self._diverging(found, position)
            if diverging is not None:
                return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.DIVERGING, diverging=diverging)
            if not found.readable_start_offset <= position.offset <= found.log_end_offset:
                return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.OUT_OF_RANGE)
            data = batches.read(found, position.offset, max_bytes=max_bytes, may_exceed=may_exceed)
        except OffsetOutOfRangeError:  # retention has deleted it since
            return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.OUT_OF_RANGE)
        except UnsupportedFormatError as error:
            return old_format_answer(position, self.name, error)
        except (KafkalogError, OSError) as error:
            return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.FAILED, error=str(error))
        return LeaderAnswer(
            topic_partition=name,
            outcome=FetchOutcome.RECORDS,
            data=data,
            high_watermark=found.high_watermark,
            log_start_offset=found.readable_start_offset,
        )

    def _found(self, position: FetchPosition) -> PartitionSnapshot | None:
        """The partition; None if its topic is gone, or another one of that name."""
        name = position.topic_partition
        found = self._snapshots.find(name.topic, name.partition)
        return found if found is not None and found.topic_id == position.topic_id else None

    def _diverging(self, found: PartitionSnapshot, position: FetchPosition) -> EpochEnd | None:
        """The end of the follower's last epoch, if it is not here; see Partition.readRecords of a broker.

        Raises OffsetOutOfRangeError if nothing is known of its epoch.
        """
        last = position.last_epoch
        if last < 0 or (last == found.leader_epoch and position.offset <= found.log_end_offset):
            return None
        end = self._epoch_end(found, last)
        if end is None:
            raise OffsetOutOfRangeError(f"{found.topic_partition} has no leader epoch {last}")
        return end if end.epoch < last or end.end_offset < position.offset else None

    def _epoch_end(self, found: PartitionSnapshot, epoch: int) -> EpochEnd | None:
        known = self._epochs.get(found.topic_partition)
        if known is None or known[0] is not found:
            known = self._epochs[found.topic_partition] = (found, epochs_of(self._root, found))
        end = end_of_epoch(known[1], epoch, found.log_end_offset)
        return None if end.epoch == UNDEFINED_EPOCH else EpochEnd(end.epoch, end.start_offset)
