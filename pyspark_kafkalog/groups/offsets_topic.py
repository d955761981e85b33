"""Reads and writes `__consumer_offsets`, which holds the records of groups.

The live records of a group are the last value of each key, if it was not deleted. A partition's log is replayed once;
later calls read only new records. Up to the last stable offset records are decided: those of committed transactions
count, those of aborted ones do not. Records above it are read again each time: records outside of transactions count at
once, those of a transaction once its commit marker is written, all in the order of offsets.

The first commit creates the topic; each change of a group is one append and commit. Batches are encoded without the
compiled encoder: a change has few records, and loading the encoder takes a second and 50 MB, also in the planner of a
streaming query, which commits its progress here.

A writer holds the lock of the group's partition from reading the group's state to appending the change. A deletion and
a concurrent commit therefore leave the group either deleted as a whole or with all offsets of the commit.

A crash leaves a whole change or none of it, as with any append. A crash between creating the topic and the append
leaves the topic empty.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.replay and replayEndTransactionMarker.

*Expiry.* An offset expires if it is older than `offsets.retention.minutes`. Its age counts from its commit, or, in a
classic group that lost its last member after the commit, from that time. Offsets written by brokers before 2.1 carry
their own expiry time, which is used instead. A group whose last offset expires is deleted. Share groups never expire.

A broker expires only the offsets of topics that no member of the group has subscribed to. Groups have no members here.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.cleanupExpiredOffsets,
OffsetExpirationConditionImpl, and the methods offsetExpirationCondition and shouldExpire of the groups.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from pyspark_kafkalog.errors import CommitConflictError, TopicExistsError
from pyspark_kafkalog.groups.group_state import SHARE_TYPES, empty_since_ms
from pyspark_kafkalog.groups.offset_records import (
    NO_EXPIRY,
    OFFSETS_TOPIC,
    group_of_key,
    group_partition,
    parse_offset_key,
    parse_offset_value,
)
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import BATCH_DTYPE, TimestampType, parse_header
from pyspark_kafkalog.record.reference import Record, RecordBatch, decode_batch, encode_batch
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging.staged_file import StagedFileWriter

if TYPE_CHECKING:
    from pyspark_kafkalog.config.topic import LogConfig
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot


@dataclass(frozen=True, slots=True)
class Expired:
    """The keys of a group's records that expire, and the partitions whose offsets these are."""

    keys: Collection[bytes] = ()
    partitions: tuple[TopicPartition, ...] = ()


def find_expired(records: Mapping[bytes, bytes], *, older_than_ms: int, now_ms: int) -> Expired:
    """What expires of a group with these live records, if offsets live until the time `older_than_ms`.

    Raises CorruptRecordError.
    """
    types = {named[0] for named in map(group_of_key, records) if named is not None}
    if types.intersection(SHARE_TYPES):
        return Expired()
    empty_ms = empty_since_ms(records)
    offsets = {key: found for key in records if (found := parse_offset_key(key)) is not None}
    expired = {
        key: found for key, found in offsets.items() if _is_expired(records[key], empty_ms, older_than_ms, now_ms)
    }
    # A group without offsets has no state worth keeping, since it has no members either.
    keys = records if len(expired) == len(offsets) else expired
    return Expired(tuple(keys), tuple(sorted(set(expired.values()))))


def _is_expired(value: bytes, empty_since_ms: int, older_than_ms: int, now_ms: int) -> bool:
    committed = parse_offset_value(value)
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return committed.expire_timestamp_ms <= now_ms
    return max(committed.commit_timestamp_ms, empty_since_ms) < older_than_ms


_LOG: Final = logging.getLogger(__name__)
_KEY_AND_VALUE: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])

#: Values by key; None for a key whose record was deleted.
_Changes = dict[bytes, bytes | None]


class GroupLog:
    """One partition's live records, as of the last `catch_up`."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._origin: object = None
        self._next_offset = 0
        self._end_offset = 0
        self._decided: dict[str, dict[bytes, bytes]] = {}
        self._undecided: dict[str, _Changes] = {}

    def catch_up(self, root: Root, topic_id: str | None) -> None:
        """Read the partition's records that have not been read yet.

        Raises CorruptRecordError, OffsetOutOfRangeError if retention deletes the records meanwhile.
        """
        found = root.partition(OFFSETS_TOPIC, self.partition)
        if self._origin != (topic_id, found.log_start_offset) or found.high_watermark < self._end_offset:
            self._origin = (topic_id, found.log_start_offset)
            self._next_offset = self._end_offset = found.log_start_offset
            self._decided, self._undecided = {}, {}
        if found.high_watermark == self._end_offset and not self._undecided:
            return
        stable_offset = found.last_stable_offset
        self._read_decided(root, found, stable_offset)
        self._undecided = self._read_undecided(root, found.high_watermark)
        self._end_offset = found.high_watermark

    def groups(self) -> set[str]:
        """The groups with live records."""
        return {name for name in self._decided.keys() | self._undecided.keys() if self.records(name)}

    def records(self, group: str) -> Mapping[bytes, bytes]:
        """The group's live records, value by key."""
        decided = self._decided.get(group, {})
        undecided = self._undecided.get(group)
        if undecided is None:
            return decided
        merged = {**decided, **undecided}
        return {key: value for key, value in merged.items() if value is not None}

    def _read_decided(self, root: Root, found: PartitionSnapshot, stable_offset: int) -> None:
        reader = root.reader(OFFSETS_TOPIC, self.partition)
        if stable_offset == found.high_watermark > self._next_offset:
            reader.check_end(stable_offset)
        for batch in reader.read(self._next_offset, stable_offset, schema=_KEY_AND_VALUE, committed=True):
            # If a key has several records in the batch, the last one counts.
            changes: _Changes = dict(
                zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            )
            for group, of_group in _by_group(changes).items():
                live = self._decided.setdefault(group, {})
                for key, value in of_group.items():
                    if value is None:
                        live.pop(key, None)
                    else:
                        live[key] = value
                if not live:
                    del self._decided[group]
        self._next_offset = max(self._next_offset, stable_offset)

    def _read_undecided(self, root: Root, end_offset: int) -> dict[str, _Changes]:
        if self._next_offset >= end_offset:
            return {}
        changes: list[tuple[int, bytes, bytes | None]] = []
        open_transactions: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        for run in root.reader(OFFSETS_TOPIC, self.partition).runs(self._next_offset, end_offset):
            for at in run.batches["position"].tolist():
                batch = decode_batch(run.data, at - run.position, file=run.file, file_position=at)
                producer_id = batch.header.producer_id
                if batch.header.is_control:
                    ended = open_transactions.pop(producer_id, [])
                    changes += ended if _is_commit(batch, run.file, at) else []
                elif batch.header.is_transactional:
                    open_transactions.setdefault(producer_id, []).extend(_changes(batch))
                else:
                    changes += _changes(batch)
        # The order is that of the records' offsets, not that of the transactions' markers.
        return _by_group({key: value for _, key, value in sorted(changes, key=lambda change: change[0])})


def _changes(batch: RecordBatch) -> list[tuple[int, bytes, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in batch.records if record.key is not None]


def _is_commit(batch: RecordBatch, file: str, position: int) -> bool:
    types = [parse_control_type(record.key, file=file, file_position=position) for record in batch.records]
    return ControlRecordType.COMMIT in types


def _by_group(changes: _Changes) -> dict[str, _Changes]:
    grouped: dict[str, _Changes] = {}
    ignored = 0
    for key, value in changes.items():
        named = None if key is None else group_of_key(key)
        if named is None:
            ignored += 1
        else:
            grouped.setdefault(named[1], {})[key] = value
    if ignored:
        _LOG.warning(
            "%d records of %s are ignored: their keys are not those of a group coordinator", ignored, OFFSETS_TOPIC
        )
    return grouped


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
        log.catch_up(root, root.topic(OFFSETS_TOPIC, without_links=True).topic_id)
        return log


_LOGS: Final[WeakKeyDictionary[Root, GroupLogs]] = WeakKeyDictionary()


def offsets_partitions(root: Root) -> list[int]:
    """The partitions of `__consumer_offsets` in this directory: none before the first commit of a group.

    A broker's directory may hold only some of the topic's partitions. Symbolic links are not followed: partitions whose
    directories are links are left out.
    """
    if OFFSETS_TOPIC not in root.topics():
        return []
    return [each.partition for each in root.topic(OFFSETS_TOPIC, without_links=True).partitions]


def group_names(root: Root, partitions: Collection[int] | None = None) -> tuple[str, ...]:
    """Names of all groups with live records, of every kind, in order; with `partitions`, of those alone."""
    logs = GroupLogs.of(root)
    chosen = [each for each in offsets_partitions(root) if partitions is None or each in partitions]
    return tuple(sorted({name for each in chosen for name in logs.caught_up(root, each).groups()}))


#: Bytes of keys and values in one batch; a typical commit is one batch.
_BATCH_BYTES: Final = 256 << 10

#: Of a change of a group with commits to its partition, of any group. Each means that another writer succeeded.
_CONFLICTS_MAX: Final = 50

#: Name of the lock file in the partition's directory; Kafka ignores it.
_LOCK_FILE: Final = ".group-lock"

_Records = Mapping[bytes, "bytes | None"]

T = TypeVar("T")


@contextlib.contextmanager
def group_lock(root: Root, group: str, *, keeps_records: bool = False) -> Iterator[None]:
    """Lock the group against changes for the block, and refresh the root. Readers do not need the lock.

    `keeps_records`: what the block writes does not depend on the group's records, so changes by others do not matter
    to it; on an object store its commit then does not conflict with theirs (see `NativeRoot.locked_partition`).

    Raises LogDirError if another process holds the lock for too long.
    """
    topic_partition = _partition_of(group, ensure_offsets_topic(root))
    with root.native().locked_partition(topic_partition, _LOCK_FILE, may_change=keeps_records):
        yield


def change_locked(root: Root, group: str, change: Callable[[], T]) -> T:
    """Call `change`, which appends to the group what it makes of its records, under the group's lock.

    It is called again if its commit conflicts with another, which happens on object stores, where nobody waits.

    Raises CommitConflictError after `_CONFLICTS_MAX` of them, LogDirError as `group_lock`.
    """
    for _ in range(_CONFLICTS_MAX - 1):
        with contextlib.suppress(CommitConflictError), group_lock(root, group):
            return change()
    with group_lock(root, group):
        return change()


def append_records(root: Root, group: str, records: _Records, *, flush: FlushMode = "fsync") -> None:
    """Append a group's records, value by key, None for a tombstone. All become visible at once.

    The caller holds the group's lock.
    """
    if not records:
        return
    native = root.native()
    topic_partition = _partition_of(group, ensure_offsets_topic(root))
    staging = root.staging(uuid.uuid4().hex, flush=flush)
    writer = staging.task.writer(topic_partition, staging.fs)
    try:
        codec = CompressionType(native.broker_config().offsets_topic_compression_codec)
        for batch in _encode(records, root.log_config(OFFSETS_TOPIC), codec, now_ms=native.clock()):
            _append(writer, batch)
        staged = [writer.finish()]
    except BaseException:
        writer.discard()
        raise
    try:
        topic_id = root.topic(OFFSETS_TOPIC).topic_id or ""
        root.commit_staged(staging.hand_over(staged, {OFFSETS_TOPIC: topic_id}), flush=flush)
    except BaseException:
        staging.discard(staged)
        raise


def _partition_of(group: str, partitions_count: int) -> TopicPartition:
    return TopicPartition(OFFSETS_TOPIC, group_partition(group, partitions_count))


def ensure_offsets_topic(root: Root) -> int:
    """The topic's number of partitions; creates the topic, with Kafka's settings for it, if it does not exist."""
    if OFFSETS_TOPIC not in root.topics():
        config = root.native().broker_config()
        with contextlib.suppress(TopicExistsError):  # another process created it meanwhile
            root.create_topic(
                OFFSETS_TOPIC,
                config.offsets_topic_num_partitions,
                {
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        root.refresh()
    return len(root.topic(OFFSETS_TOPIC).partitions)


def _encode(records: _Records, config: LogConfig, codec: CompressionType, *, now_ms: int) -> Iterator[bytes]:
    """The records as batches, encoded as a leader would by the topic's configuration."""
    codec = config.stored_compression(codec)
    timestamp_type = config.message_timestamp_type
    offset = 0
    for together in _in_batches(records.items()):
        yield encode_batch(
            [
                Record(offset=offset + at, timestamp_ms=now_ms, key=key, value=value)
                for at, (key, value) in enumerate(together)
            ],
            compression=codec,
            timestamp_type=timestamp_type,
            max_timestamp_ms=now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else None,
        )
        offset += len(together)


def _in_batches(records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    together: list[tuple[bytes, bytes | None]] = []
    size_bytes = 0
    for key, value in records:
        together.append((key, value))
        size_bytes += len(key) + len(value or b"")
        if size_bytes >= _BATCH_BYTES:
            yield together
            together, size_bytes = [], 0
    if together:
        yield together


def _append(writer: StagedFileWriter, batch: bytes) -> None:
    header = parse_header(batch, 0, file=OFFSETS_TOPIC, file_position=0)
    table = np.zeros(1, dtype=BATCH_DTYPE)
    for name in table.dtype.names or ():
        if name != "position":
            table[name] = getattr(header, name)
    writer.append(batch, table)
