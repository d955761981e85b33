"""The topic `__consumer_offsets`: replays it, each partition read once and then followed, and appends to it.

The live records of a group are the last value of each key, if it was not deleted. Records outside of transactions count
at once. Those of a transaction count once its commit marker is written, at the place of their own offsets: a later
commit of the same key outside of the transaction stays. Those of an aborted transaction never count. Until its marker
is written, a transaction is *open*, and its keys are pending. A deletion of a key outside of transactions ends that.

The first commit creates the topic; each change of a group is one unit of a commit (root/commit). Batches are encoded
without the compiled encoder: a change has few records.

A change that depends on a group's records is planned inside its commit, on the newest records. A deletion and a
concurrent commit therefore leave the group either deleted as a whole or with all offsets of the commit.

A crash leaves a whole change or none of it, as with any append. A crash between creating the topic and the append
leaves the topic empty.

*Expiry.* An offset expires if it is older than `offsets.retention.minutes`. Its age counts from its commit, or, in a
classic group that lost its last member after the commit, from that time. Offsets written by brokers before 2.1 carry
their own expiry time, which is used instead. A group whose last offset expires is deleted. Share groups never expire.

An offset of a topic that was deleted, or deleted and created again, expires at once (`offsets_filter`). A broker
deletes such offsets with the topic.

Offsets of topics that a member of the group subscribes to do not expire, nor those of groups with members of another
protocol. Members are those of the group's records. Nothing that an open transaction has written expires.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager (replay, replayEndTransactionMarker,
cleanupExpiredOffsets), OffsetExpirationConditionImpl, and the methods offsetExpirationCondition and shouldExpire of the
groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.groups.classic_group import ClassicGroup
from pyspark_kafkalog.groups.consumer_group import RECORD_TYPES, ConsumerGroup, consumer_group_of
from pyspark_kafkalog.groups.group_state import OtherGroup
from pyspark_kafkalog.groups.offset_records import (
    NO_EXPIRY,
    OFFSET_TYPES,
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    group_of_key,
    has_topic_id,
    is_offset,
    parse_offset_key,
    parse_offset_value,
)
from pyspark_kafkalog.metadata.image import may_be_elsewhere
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.header import NO_PRODUCER_ID, RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.record.reference import decode_batch, encode_pairs
from pyspark_kafkalog.root.internal_topic import FollowedLog, LogTail, ReplayStep, ensure_internal_topic
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.config.topic import LogConfig
    from pyspark_kafkalog.metadata.image import MetadataImage
    from pyspark_kafkalog.root.commit.changes import LeaderAppend
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot

#: A group of any kind, as its records have it.
AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup | OtherGroup

_LOG: Final = logging.getLogger(__name__)
_SHARE_TYPES: Final = frozenset(range(10, 16))
_STREAMS_TYPES: Final = frozenset(range(17, 24))

#: Where the name of the group is in a key, after an int16 with its length.
_NAME_AT: Final = 2
#: Offset, key and value; a value of None deletes the key.
_Change = tuple[int, bytes, "bytes | None"]


class GroupLog(FollowedLog):
    """One partition's live records, as of the last `catch_up`."""

    def __init__(self, partition: int) -> None:
        super().__init__()
        self.partition = partition
        self._live: dict[str, dict[bytes, bytes]] = {}
        #: Where live offsets were written whose values may lack the topic's id.
        self._offsets_at: dict[bytes, int] = {}
        #: What open transactions have written, by producer and key.
        self._open: dict[int, dict[bytes, _Change]] = {}
        #: The producers that have written pending keys, by group and key.
        self._pending: dict[str, dict[bytes, set[int]]] = {}
        #: Where keys were last written since the oldest open transaction began.
        self._written_at: dict[bytes, int] = {}

    def catch_up(self, root: Root, topic_id: str | None) -> frozenset[str] | None:
        """Read the records that have not been read yet; the groups that have some other than offsets.

        None, and errors: as `follow`.
        """
        return self.follow(root.partition(OFFSETS_TOPIC, self.partition), topic_id)

    def tail(self, root: Root, topic_id: str | None) -> LogTail:
        """As `tail_of`, of the partition as of the last refresh of `root`."""
        return self.tail_of(root.partition(OFFSETS_TOPIC, self.partition), topic_id)

    def advance(self, first_offset: int, end_offset: int, changes: Mapping[bytes, bytes | None]) -> None:
        """Take over what the caller has appended at the end, outside of transactions, without reading it."""
        assert first_offset == self.end_offset
        name, group = b"", ""
        for key, value in changes.items():
            if not name or not key.startswith(name, _NAME_AT):  # most are of the group of the one before
                named = group_of_key(key)
                assert named is not None
                group = named[1]
                name = key[_NAME_AT : _NAME_AT + 2 + int.from_bytes(key[_NAME_AT : _NAME_AT + 2], "big")]
            self._apply(group, (first_offset, key, value))
        self.end_offset = end_offset

    def groups(self) -> set[str]:
        """The groups with live records, or with offsets of open transactions."""
        return self._live.keys() | self._pending.keys()

    def has(self, group: str) -> bool:
        """Whether the group is one of `groups`."""
        return group in self._live or group in self._pending

    def records(self, group: str) -> Mapping[bytes, bytes]:
        """The group's live records, value by key."""
        return self._live.get(group, {})

    def state_records(self, group: str) -> dict[bytes, bytes]:
        """The group's live records but its offsets."""
        return {key: value for key, value in self.records(group).items() if key[:2] not in OFFSET_TYPES}

    def group(self, group: str) -> AnyGroup:
        """The group that the live records make. Raises CorruptRecordError, UnsupportedFormatError."""
        return group_of(group, self.records(group))

    def written_at(self, key: bytes) -> tuple[int, int] | None:
        """The partition and the offset of the live record of a committed offset; None if its value tells the topic."""
        offset = self._offsets_at.get(key)
        return None if offset is None else (self.partition, offset)

    def pending_keys(self, group: str) -> Collection[bytes]:
        """The keys of the group that open transactions have written."""
        return self._pending.get(group, {}).keys()

    def pending(self, group: str, key: bytes) -> Iterator[tuple[tuple[int, int], bytes]]:
        """What open transactions have written of the key: partition and offset of the record, and its value."""
        for producer_id in self._pending.get(group, {}).get(key, ()):
            offset, _, value = self._open[producer_id][key]
            if value is not None:
                yield (self.partition, offset), value

    def _clear(self) -> None:
        self._live, self._offsets_at, self._open, self._pending, self._written_at = {}, {}, {}, {}, {}

    def _has_open_transactions(self) -> bool:
        return bool(self._open)

    def _take(self, step: ReplayStep) -> set[str]:
        if step.is_commit is not None:
            return self._end_transaction(step.producer_id, is_commit=step.is_commit)
        if step.producer_id == NO_PRODUCER_ID:
            return self._apply_all(step.changes)
        written = self._open.setdefault(step.producer_id, {})
        for offset, key, value in step.changes:
            named = None if key is None else group_of_key(key)
            if key is not None and named is not None:
                written[key] = (offset, key, value)
                self._pending.setdefault(named[1], {}).setdefault(key, set()).add(step.producer_id)
        return set()

    def _end_transaction(self, producer_id: int, *, is_commit: bool) -> set[str]:
        written = self._open.pop(producer_id, {})
        for key in written:
            self._settle(key, {producer_id})
        changed = self._apply_all(written.values()) if is_commit else set()
        if not self._open:
            self._written_at.clear()
        return changed

    def _settle(self, key: bytes, producers: Collection[int]) -> None:
        """The key is not pending any more because of these producers."""
        named = group_of_key(key)
        keys = self._pending.get(named[1], {}) if named is not None else {}
        if named is None or key not in keys:
            return
        keys[key].difference_update(producers)
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._pending[named[1]]

    def _apply_all(self, changes: Iterable[tuple[int, bytes | None, bytes | None]]) -> set[str]:
        changed: set[str] = set()
        ignored = 0
        for offset, key, value in changes:
            named = None if key is None else group_of_key(key)
            if key is None or named is None:
                ignored += 1
            else:
                self._apply(named[1], (offset, key, value))
                if not is_offset(named[0]):
                    changed.add(named[1])
        if ignored:
            _LOG.warning(
                "%d records of %s are ignored: their keys are not those of a group coordinator", ignored, OFFSETS_TOPIC
            )
        return changed

    def _apply(self, group: str, change: _Change) -> None:
        offset, key, value = change
        if self._written_at.get(key, -1) > offset:
            return
        if self._open:
            self._written_at[key] = offset
        if value is not None:
            self._live.setdefault(group, {})[key] = value
            if key[:2] in OFFSET_TYPES:
                if has_topic_id(value):
                    self._offsets_at.pop(key, None)
                else:
                    self._offsets_at[key] = offset
            return
        self._offsets_at.pop(key, None)
        if group in self._live:
            self._live[group].pop(key, None)
            if not self._live[group]:
                del self._live[group]
        for producer_id in tuple(self._pending.get(group, {}).get(key, ())):
            if self._open[producer_id][key][0] < offset:
                del self._open[producer_id][key]
                self._settle(key, {producer_id})


def group_of(group_id: str, records: Mapping[bytes, bytes]) -> AnyGroup:
    """The group with these live records; one without records other than offsets is a classic group without members.

    Raises CorruptRecordError, UnsupportedFormatError.
    """
    types = {int.from_bytes(key[:2], "big") for key in records}
    if not types.isdisjoint(_STREAMS_TYPES):
        return OtherGroup(group_id, "Streams")
    if not types.isdisjoint(_SHARE_TYPES):
        return OtherGroup(group_id, "Share")
    if not types.isdisjoint(RECORD_TYPES):
        return consumer_group_of(group_id, records)
    return ClassicGroup.of_records(group_id, records)


def groups_changed(snapshot: PartitionSnapshot, start_offset: int, end_offset: int) -> set[str]:
    """The groups of which [start_offset, end_offset) has records other than committed offsets.

    Raises CorruptRecordError, OffsetOutOfRangeError.
    """
    changed: set[str] = set()
    reader = LogReader(snapshot.extents(), TopicPartition(OFFSETS_TOPIC, snapshot.partition))
    for run in reader.runs(start_offset, end_offset):
        for at in run.batches["position"].tolist():
            batch = decode_batch(run.data, at - run.position, file=run.file, file_position=at)
            keys = () if batch.header.is_control else (each.key for each in batch.records)
            for key in keys:
                named = None if key is None or parse_offset_key(key) is not None else group_of_key(key)
                if named is not None:
                    changed.add(named[1])
    return changed


class GroupLogs:
    """The partitions of one log directory's `__consumer_offsets`, each read on first use."""

    def __init__(self) -> None:
        self._logs: dict[int, GroupLog] = {}

    @staticmethod
    def of(root: Root) -> GroupLogs:
        """The cache of `root`, which lives as long as `root` does."""
        return _LOGS.setdefault(root, GroupLogs())

    def caught_up(self, root: Root, partition: int) -> GroupLog:
        """The live records of one partition as of the last refresh of `root`."""
        log = self._logs.setdefault(partition, GroupLog(partition))
        log.catch_up(root, root.topic(OFFSETS_TOPIC, readable_only=True).topic_id)
        return log


_LOGS: Final[WeakKeyDictionary[Root, GroupLogs]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Expired:
    """The keys of a group's records that expire, and the partitions whose offsets these are."""

    keys: Collection[bytes] = ()
    partitions: tuple[TopicPartition, ...] = ()


#: Whether an offset, which the record with this key commits, is one of the topic that exists now.
OffsetsFilter: TypeAlias = Callable[[TopicPartition, OffsetAndMetadata, bytes], bool]


def offsets_filter(root: Root, log: GroupLog) -> OffsetsFilter:
    """Tells offsets of `log` that count from those of topics that were deleted. A broker deletes the latter itself."""
    if root.has_broker_coordinator:
        return lambda topic_partition, committed, key: True
    image = root.native().store.image
    return lambda topic_partition, committed, key: image.has_committed(
        topic_partition.topic, committed.topic_id, log.written_at(key)
    )


def expiry_filter(root: Root, log: GroupLog) -> OffsetsFilter:
    """A filter of offsets that stay until they are old: they count, or another broker may have their topic.

    Raises ReadOnlyLogDirError for a broker's directory, whose offsets its broker deletes.
    """
    is_current = offsets_filter(root, log)
    image = root.native().store.image
    return lambda topic_partition, committed, key: (
        is_current(topic_partition, committed, key)
        or may_be_elsewhere(image, topic_partition.topic, log.written_at(key))
    )


def find_expired(
    log: GroupLog, group: AnyGroup, is_current: OffsetsFilter, *, older_than_ms: int, now_ms: int
) -> Expired:
    """What expires of a group of `log`, if offsets live until the time `older_than_ms`.

    Members are as last written. Those that are gone are removed by the server that coordinates the group. Raises
    CorruptRecordError.
    """
    if group.kind == "Share":
        return Expired()
    records, pending = log.records(group.group_id), log.pending_keys(group.group_id)
    kept = group.subscribed_topics
    offsets = {key: found for key in records if (found := parse_offset_key(key)) is not None}
    expired: dict[bytes, TopicPartition] = {}
    for key, topic_partition in offsets.items():
        committed = parse_offset_value(records[key])
        is_kept = kept is None or topic_partition.topic in kept
        if key not in pending and (
            not is_current(topic_partition, committed, key)
            or (not is_kept and _is_expired(committed, group.empty_since_ms, older_than_ms, now_ms))
        ):
            expired[key] = topic_partition
    # A group without offsets and members has no state worth keeping.
    is_unused = len(expired) == len(offsets) and not pending and group.is_empty
    return Expired(tuple(records if is_unused else expired), tuple(sorted(set(expired.values()))))


def _is_expired(committed: OffsetAndMetadata, empty_since_ms: int, older_than_ms: int, now_ms: int) -> bool:
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return committed.expire_timestamp_ms <= now_ms
    return max(committed.commit_timestamp_ms, empty_since_ms) < older_than_ms


def offsets_partitions(root: Root) -> Sequence[int]:
    """The partitions of `__consumer_offsets` in this directory: none before the first commit of a group.

    A broker's directory may hold only some of the topic's partitions.
    """
    try:
        return root.partition_numbers(OFFSETS_TOPIC)
    except UnknownTopicError:
        return ()


#: Takes the error of a part of `__consumer_offsets`, a partition or a group's records, that is left out because of it.
LeftOut: TypeAlias = Callable[[str, Exception], None]


def group_names(
    root: Root, partitions: Collection[int] | None = None, *, left_out: LeftOut | None = None
) -> tuple[str, ...]:
    """Names of all groups with live records, of every kind, in order; with `partitions`, of those alone.

    `left_out` takes the errors of partitions that cannot be read; without it they are raised.
    """
    logs = GroupLogs.of(root)
    names: set[str] = set()
    for each in offsets_partitions(root):
        if partitions is None or each in partitions:
            try:
                names.update(logs.caught_up(root, each).groups())
            except (KafkalogError, OSError) as error:
                if left_out is None:
                    raise
                left_out(f"{OFFSETS_TOPIC}-{each}", error)
    return tuple(sorted(names))


#: Bytes of records in one batch; a typical commit is one batch.
_BATCH_BYTES: Final = 256 << 10
#: What a record has besides key and value, at most: lengths, a time, an offset, the number of headers.
_RECORD_OVERHEAD_BYTES: Final = 32

GroupRecords = Mapping[bytes, "bytes | None"]

T = TypeVar("T")


def change_records(root: Root, number: int, plan: Callable[[GroupLog], tuple[GroupRecords, T]]) -> T:
    """Append the records that `plan` makes of a partition's newest records, in one commit; return the plan's result.

    `plan` is called inside the commit, and again if another commit to the root wins the race. On a file system other
    writers wait meanwhile, so callers read the partition before. `plan` may raise KafkalogError: nothing is appended.
    """
    planned: list[T] = []

    def newest() -> GroupRecords:
        records, result = plan(GroupLogs.of(root).caught_up(root, number))
        planned[:] = [result]
        return records

    _commit(root, number, newest, "fsync")
    return planned[0]


def append_records(root: Root, number: int, records: GroupRecords, *, flush: FlushMode = "fsync") -> None:
    """Append records of groups to their partition, value by key, None for a tombstone. All become visible at once."""
    if records:
        _commit(root, number, lambda: records, flush)


def _commit(root: Root, number: int, plan: Callable[[], GroupRecords], flush: FlushMode) -> None:
    """Commit the records that `plan` makes when the root's image is the newest."""
    from pyspark_kafkalog.root.commit.changes import AppendOrigin, CommitUnit, LeaderAppend  # imports compiled code

    native = root.native()
    topic_partition = TopicPartition(OFFSETS_TOPIC, number)

    def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
        records = plan()
        if not records:
            return ()
        codec = CompressionType(native.configs.broker(image).offsets_topic_compression_codec)
        config = native.configs.of(image, image.topic(OFFSETS_TOPIC))
        data = b"".join(encode_records(records, config, codec, now_ms=native.clock()))
        return (LeaderAppend(topic_partition=topic_partition, data=data, origin=AppendOrigin.COORDINATOR),)

    native.commit_unit(CommitUnit(appends=appends), flush=flush)


def ensure_offsets_topic(root: Root) -> int:
    """The topic's number of partitions; creates the topic, with Kafka's settings for it, if it does not exist."""
    native = root.native()
    if not offsets_partitions(root):
        config = native.broker_config()
        ensure_internal_topic(
            native,
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            compression="producer",
            segment_bytes=config.offsets_topic_segment_bytes,
        )
    return len(native.store.image.topic(OFFSETS_TOPIC).partitions)


def encode_records(records: GroupRecords, config: LogConfig, codec: CompressionType, *, now_ms: int) -> Iterator[bytes]:
    """The records as batches for an append, in the codec of the topic's configuration."""
    codec = config.stored_compression(codec)
    offset = 0
    limit_bytes = min(_BATCH_BYTES, config.max_message_bytes - RECORD_BATCH_OVERHEAD_BYTES)
    for together in _in_batches(records.items(), limit_bytes):
        yield encode_pairs(together, base_offset=offset, timestamp_ms=now_ms, compression=codec)
        offset += len(together)


def _in_batches(
    records: Iterable[tuple[bytes, bytes | None]], limit_bytes: int
) -> Iterator[list[tuple[bytes, bytes | None]]]:
    together: list[tuple[bytes, bytes | None]] = []
    size_bytes = 0
    for key, value in records:
        record_bytes = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
        if together and size_bytes + record_bytes > limit_bytes:  # a large record has a batch of its own
            yield together
            together, size_bytes = [], 0
        together.append((key, value))
        size_bytes += record_bytes
    if together:
        yield together
