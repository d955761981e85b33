"""Writes `__consumer_offsets`, which holds the records of groups; `group_log` reads it.

The first commit creates the topic; each change of a group is one append and commit. Batches are encoded without the
compiled encoder: a change has few records, and loading the encoder takes a second and 50 MB, also in the planner of a
streaming query, which commits its progress here.

A writer holds the lock of the groups' partition from reading the group's state to appending the change. A deletion and
a concurrent commit therefore leave the group either deleted as a whole or with all offsets of the commit.

A crash leaves a whole change or none of it, as with any append. A crash between creating the topic and the append
leaves the topic empty.

*Expiry.* An offset expires if it is older than `offsets.retention.minutes`. Its age counts from its commit, or, in a
classic group that lost its last member after the commit, from that time. Offsets written by brokers before 2.1 carry
their own expiry time, which is used instead. A group whose last offset expires is deleted. Share groups never expire.

An offset of a topic that was deleted, or deleted and created again, expires at once (`offsets_filter`). A broker
deletes such offsets with the topic.

Offsets of topics that a member of the group subscribes to do not expire, nor those of groups with members of another
protocol. Members are those of the group's records. Nothing that an open transaction has written expires.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.cleanupExpiredOffsets,
OffsetExpirationConditionImpl, and the methods offsetExpirationCondition and shouldExpire of the groups.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np

from pyspark_kafkalog.errors import CommitConflictError, KafkalogError, TopicExistsError
from pyspark_kafkalog.groups.group_log import AnyGroup, GroupLog, GroupLogs
from pyspark_kafkalog.groups.offset_records import (
    NO_EXPIRY,
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    parse_offset_key,
    parse_offset_value,
)
from pyspark_kafkalog.metadata.image import may_be_elsewhere
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.header import BATCH_DTYPE, RECORD_BATCH_OVERHEAD_BYTES, TimestampType, parse_header
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staging.staged_file import StagedFileWriter

if TYPE_CHECKING:
    from pyspark_kafkalog.config.topic import LogConfig
    from pyspark_kafkalog.root.protocol import Root


@dataclass(frozen=True, slots=True)
class Expired:
    """The keys of a group's records that expire, and the partitions whose offsets these are."""

    keys: Collection[bytes] = ()
    partitions: tuple[TopicPartition, ...] = ()


#: Whether an offset, which the record with this key commits, is one of the topic that exists now.
OffsetsFilter: TypeAlias = Callable[[TopicPartition, OffsetAndMetadata, bytes], bool]


def offsets_filter(root: Root, log: GroupLog) -> OffsetsFilter:
    """Tells offsets of `log` that count from those of topics that were deleted. A broker deletes the latter itself."""
    if root.is_broker_directory:
        return lambda topic_partition, committed, key: True
    image = root.native().store.image
    return lambda topic_partition, committed, key: image.has_committed(
        topic_partition.topic, committed.topic_id, log.written_at(key)
    )


def expiry_filter(root: Root, log: GroupLog) -> OffsetsFilter:
    """A filter of offsets that stay until they are old: they count, or another broker may have their topic."""
    is_current = offsets_filter(root, log)
    if root.is_broker_directory:
        return is_current
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
    if not root.is_broker_directory:
        topic = root.native().store.image.topics.get(OFFSETS_TOPIC)
        return range(0 if topic is None else len(topic.partitions))
    if OFFSETS_TOPIC not in root.topics():
        return []
    return root.partition_numbers(OFFSETS_TOPIC)


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

#: Of a change of groups with commits to their partition, of any group. Each means that another writer succeeded.
_CONFLICTS_MAX: Final = 50

#: Name of the lock file in the partition's directory; Kafka ignores it.
_LOCK_FILE: Final = ".group-lock"

GroupRecords = Mapping[bytes, "bytes | None"]

T = TypeVar("T")


@contextlib.contextmanager
def partition_lock(root: Root, number: int, *, keeps_records: bool = False) -> Iterator[None]:
    """Lock the groups of a partition against changes for the block, and refresh the root. Readers do not need the lock.

    `keeps_records`: what the block writes does not depend on the groups' records, so changes by others do not matter
    to it; on an object store its commit then does not conflict with theirs (see `NativeRoot.locked_partition`).

    Raises LogDirError if another process holds the lock for too long.
    """
    topic_partition = TopicPartition(OFFSETS_TOPIC, number)
    with root.native().locked_partition(topic_partition, _LOCK_FILE, may_change=keeps_records):
        yield


def change_locked(root: Root, number: int, change: Callable[[], T]) -> T:
    """Call `change`, which appends to a partition what it makes of its records, under the partition's lock.

    It is called again if its commit conflicts with another, which happens on object stores, where writers do not wait.

    Raises CommitConflictError after `_CONFLICTS_MAX` of them, LogDirError as `partition_lock`.
    """
    for _ in range(_CONFLICTS_MAX - 1):
        with contextlib.suppress(CommitConflictError), partition_lock(root, number):
            return change()
    with partition_lock(root, number):
        return change()


def append_records(root: Root, number: int, records: GroupRecords, *, flush: FlushMode = "fsync") -> None:
    """Append records of groups to their partition, value by key, None for a tombstone. All become visible at once.

    The caller holds the partition's lock.
    """
    if not records:
        return
    native = root.native()
    topic_partition = TopicPartition(OFFSETS_TOPIC, number)
    staging = root.staging(uuid.uuid4().hex, flush=flush)
    writer = staging.task.writer(topic_partition, staging.fs)
    try:
        codec = CompressionType(native.broker_config().offsets_topic_compression_codec)
        for batch in encode_records(records, root.log_config(OFFSETS_TOPIC), codec, now_ms=native.clock()):
            _append(writer, batch)
        staged = [writer.finish()]
    except BaseException:
        writer.discard()
        raise
    try:
        topic_id = native.store.image.topic(OFFSETS_TOPIC).topic_id
        root.commit_staged(staging.hand_over(staged, {OFFSETS_TOPIC: topic_id}), flush=flush)
    except BaseException:
        staging.discard(staged)
        raise


def ensure_offsets_topic(root: Root) -> int:
    """The topic's number of partitions; creates the topic, with Kafka's settings for it, if it does not exist."""
    if not offsets_partitions(root):
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
    return len(root.native().store.image.topic(OFFSETS_TOPIC).partitions)


def encode_records(records: GroupRecords, config: LogConfig, codec: CompressionType, *, now_ms: int) -> Iterator[bytes]:
    """The records as batches, encoded as a leader would by the topic's configuration."""
    codec = config.stored_compression(codec)
    timestamp_type = config.message_timestamp_type
    offset = 0
    limit_bytes = min(_BATCH_BYTES, config.max_message_bytes - RECORD_BATCH_OVERHEAD_BYTES)
    for together in _in_batches(records.items(), limit_bytes):
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


def _append(writer: StagedFileWriter, batch: bytes) -> None:
    header = parse_header(batch, 0, file=OFFSETS_TOPIC, file_position=0)
    table = np.zeros(1, dtype=BATCH_DTYPE)
    for name in table.dtype.names or ():
        if name != "position":
            table[name] = getattr(header, name)
    writer.append(batch, table)
