"""A consumer group of a log directory: fetches, commits, resets and deletes its offsets.

    >>> import tempfile, pyarrow as pa
    >>> from pyspark_kafkalog import LogDir
    >>> scratch = tempfile.TemporaryDirectory()
    >>> log_dir = LogDir.create(scratch.name + "/log")
    >>> _ = log_dir.append("orders", pa.table({"value": ["1", "2", "3"]}))
    >>> group = log_dir.group("nightly")
    >>> group.commit({("orders", 0): 2})
    >>> {str(partition): committed.offset for partition, committed in group.fetch().items()}
    {'orders-0': 2}
    >>> [(str(each.topic_partition), each.lag) for each in group.lag()]
    [('orders-0', 1)]

To read all records again:

    >>> {str(partition): offset for partition, offset in group.reset("earliest").items()}
    {'orders-0': 0}
    >>> scratch.cleanup()

Offsets are as of the log directory's last `refresh`. A group has no members here: the last commit wins, as with Kafka
consumers that assign partitions to themselves ("simple" groups, shown by Kafka's tools as Empty).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from pyspark_kafkalog.errors import (
    InvalidGroupError,
    InvalidOptionError,
    KafkalogError,
    UnknownGroupError,
    UnknownTopicError,
    without_frames,
)
from pyspark_kafkalog.groups.group_state import GroupDescription
from pyspark_kafkalog.groups.offset_records import (
    OFFSET_TYPES,
    OffsetAndMetadata,
    group_key,
    group_partition,
    offset_key,
    offset_of_topic,
    offset_value,
    parse_offset_key,
    parse_offset_value,
    split_key,
)
from pyspark_kafkalog.groups.offsets_topic import (
    Expired,
    GroupLog,
    GroupLogs,
    GroupRecords,
    append_records,
    change_records,
    ensure_offsets_topic,
    expiry_filter,
    find_expired,
    offsets_filter,
    offsets_partitions,
)
from pyspark_kafkalog.groups.resets import ResetTarget, ToOffsets, as_target, reset_offsets
from pyspark_kafkalog.metadata.image import UNKNOWN_ENDS, may_be_elsewhere
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataKey
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition, decode_uuid, validate_group_id
from pyspark_kafkalog.units import INT64_MAX, MINUTE_MS
from pyspark_kafkalog.values import check_mapping, check_number, check_one_of, check_text, check_texts, quick_dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)

#: A partition, or its topic and number.
AnyPartition: TypeAlias = TopicPartition | tuple[str, int]
#: The next offset to read of each partition.
AnyOffsets: TypeAlias = (
    Mapping[TopicPartition, int]
    | Mapping[TopicPartition, OffsetAndMetadata]
    | Mapping[TopicPartition, int | OffsetAndMetadata]
    | Mapping[tuple[str, int], int]
    | Mapping[tuple[str, int], OffsetAndMetadata]
    | Mapping[tuple[str, int], int | OffsetAndMetadata]
)


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """A group's progress in one partition.

    `log_end_offset` is None if the partition is not in this log directory, or cannot be read, which `error` then says.
    """

    topic_partition: TopicPartition
    committed: OffsetAndMetadata
    log_end_offset: int | None
    error: KafkalogError | OSError | None = field(default=None, compare=False)

    @property
    def lag(self) -> int | None:
        """Number of offsets still to be read; below 0 if the log ends before the committed offset."""
        return None if self.log_end_offset is None else self.log_end_offset - self.committed.offset

    def lag_ms(self, root: Root) -> int | None:
        """The ms from the timestamp of the record at the committed offset to the largest one of the records after it.

        0 at the end of the partition. If the record at the offset is gone, or in remote storage only, the first one
        that can be read stands for it. None if the partition is not here, or no record has a timestamp. Raises
        KafkalogError, OSError if records cannot be read.
        """
        if self.lag is None or self.lag <= 0:
            return None if self.lag is None else 0
        of = self.topic_partition
        partition = root.partition(of.topic, of.partition)
        start, end = max(self.committed.offset, partition.readable_start_offset), partition.high_watermark
        reader = root.reader(of.topic, of.partition)
        first = reader.offset_for_timestamp(0, start, end)
        if first is None:
            return None
        newest = reader.offset_of_max_timestamp(start, end)
        return 0 if newest is None else newest.timestamp_ms - first.timestamp_ms  # None: one before has the largest


class _End(NamedTuple):
    partition: tuple[str, int]
    topic_id: bytes
    offset: int


class KnownEnds:
    """The ends of partitions of a native root, as the keys of committed offsets name them."""

    def __init__(self, root: Root) -> None:
        self._image = root.native().store.image
        self._by_key: dict[bytes, _End | None] = {}

    def of(self, key: bytes) -> _End | None:
        """Of the partition in the key of an offset; None if it does not exist. Raises CorruptRecordError."""
        _, named = split_key(key)
        try:
            return self._by_key[named]
        except KeyError:
            pass
        topic_partition = parse_offset_key(key)
        found = None if topic_partition is None else self._image.find(topic_partition.topic, topic_partition.partition)
        end = None
        if topic_partition is not None and found is not None:
            topic_id = decode_uuid(self._image.topics[topic_partition.topic].topic_id)
            end = _End((topic_partition.topic, topic_partition.partition), topic_id, found.high_watermark)
        self._by_key[named] = end
        return end


class Group:
    """One group. It need not exist: its first commit creates it."""

    def __init__(self, root: Root, group_id: str) -> None:
        self.group_id = validate_group_id(group_id)
        self._root = root
        self._logs = GroupLogs.of(root)

    def __repr__(self) -> str:
        return f"Group({self.group_id!r}, {str(self._root.path)!r})"

    @property
    def root(self) -> Root:
        """The log directory that stores the group."""
        return self._root

    def exists(self) -> bool:
        """Whether the group has any record, also if it is only one of an open transaction."""
        return self._log() is not None

    def _log(self) -> GroupLog | None:
        """The partition of `__consumer_offsets` with the group's records; None if it has none."""
        partitions = offsets_partitions(self._root)
        if partitions and not self._root.has_broker_coordinator:
            partitions = (group_partition(self.group_id, len(partitions)),)
        failed: KafkalogError | OSError | None = None
        for each in partitions:
            try:
                log = self._logs.caught_up(self._root, each)
            except (KafkalogError, OSError) as error:
                failed = error
                continue
            if log.has(self.group_id):
                return log
        if failed is not None:
            raise failed  # the group may be there
        return None

    def fetch(self, topics: Collection[str] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, for `topics` or for all, in the order of the partitions.

        In a native log directory, offsets of a deleted topic are omitted, even if the topic was re-created; a broker
        deletes such offsets itself. Raises CorruptRecordError.
        """
        if topics is not None:
            check_texts("topics", topics)
        log = self._log()
        return {} if log is None else self._committed(log, topics)

    def _committed(
        self, log: GroupLog, topics: Collection[str] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        is_current = offsets_filter(self._root, log)
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for key, value in sorted(log.records(self.group_id).items()):  # an older broker's key of a partition is first
            topic_partition = parse_offset_key(key)
            if topic_partition is None or (topics is not None and topic_partition.topic not in topics):
                continue
            found.pop(topic_partition, None)
            committed = parse_offset_value(value)
            if is_current(topic_partition, committed, key):
                found[topic_partition] = committed
        return {each: found[each] for each in sorted(found, key=lambda each: (each.topic, each.partition))}

    def lag(self, topics: Collection[str] | None = None) -> list[PartitionLag]:
        """The group's progress in each partition with a committed offset, in the order of the partitions.

        The end of a partition is its high watermark, as in Kafka's tools.
        """
        return [self._lag_in(each, committed) for each, committed in self.fetch(topics).items()]

    def commit(self, offsets: AnyOffsets, metadata: str = "", *, flush: FlushMode = "fsync") -> None:
        """Commit the next offset to read of each partition, atomically.

        `metadata` is stored with offsets that are given as numbers. A commit timestamp below 0 is replaced with the
        current time. The first commit to a log directory creates `__consumer_offsets`.

        Raises UnknownTopicError for a topic or partition that does not exist, InvalidGroupError for an offset below 0
        or metadata above offset.metadata.max.bytes, ReadOnlyLogDirError.
        """
        check_mapping("offsets", offsets)
        check_one_of("flush", flush, get_args(FlushMode))
        records = self._offset_records(offsets, metadata)
        if records:
            append_records(self._root, self._number(), records, flush=flush)

    def _number(self) -> int:
        """The partition of `__consumer_offsets` that the group's records go to. The topic exists afterwards."""
        return group_partition(self.group_id, ensure_offsets_topic(self._root))

    def _offset_records(self, offsets: AnyOffsets, metadata: str) -> dict[bytes, bytes | None]:
        root = self._root.native()
        max_chars = root.broker_config().offset_metadata_max_bytes
        now_ms = root.clock()
        given = {as_topic_partition(partition): offset for partition, offset in offsets.items()}
        topics = {name: root.store.image.topic(name) for name in {each.topic for each in given}}
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        records: dict[bytes, bytes | None] = {}
        for topic_partition, offset in given.items():
            if isinstance(offset, OffsetAndMetadata):
                committed = offset
            else:
                check_number(f"the offset of {topic_partition}", offset)
                committed = OffsetAndMetadata(offset=offset.__index__(), metadata=metadata)
            _check(topic_partition, committed, max_chars)
            if not 0 <= topic_partition.partition < counts[topic_partition.topic]:
                raise UnknownTopicError(
                    f"no partition {topic_partition}: the topic has {counts[topic_partition.topic]}"
                )
            committed = replace(
                committed,
                commit_timestamp_ms=now_ms if committed.commit_timestamp_ms < 0 else committed.commit_timestamp_ms,
                topic_id=topics[topic_partition.topic].topic_id,
            )
            records[offset_key(self.group_id, topic_partition)] = offset_value(committed)
        return records

    def reset(
        self,
        target: ResetTarget | Literal["earliest", "latest", "current"] | int | datetime,
        partitions: Iterable[AnyPartition] | None = None,
        *,
        dry_run: bool = False,
        notify: Callable[[str], None] = _LOG.warning,
    ) -> dict[TopicPartition, int]:
        """Reset the group's offsets to `target`; return the new offsets by partition.

        - `target`: "earliest", "latest", "current", an offset, the time of the first record to read (UTC if it has no
          time zone), or a target of resets.py
        - `partitions`: the partitions to reset; the default is those that the group has offsets for
        - `dry_run`: commit nothing
        - `notify`: called with one sentence for each partition whose new offset differs from the requested one

        Raises UnknownTopicError, InvalidGroupError, ReadOnlyLogDirError.
        """
        to = as_target(target)
        chosen = None if partitions is None else [*map(as_topic_partition, partitions)]

        def reset_from(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
            given = (to.offsets if isinstance(to, ToOffsets) else committed) if chosen is None else chosen
            return reset_offsets(self._root, committed, map(as_topic_partition, given), to, notify)

        self._root.refresh()
        committed = self.fetch()
        offsets = reset_from(committed)  # may search logs, so it is not left to the commit
        if dry_run:
            return offsets

        def plan(log: GroupLog) -> tuple[GroupRecords, dict[TopicPartition, int]]:
            newest = self._committed(log)
            new_offsets = offsets if newest == committed else reset_from(newest)
            return self._offset_records(new_offsets, ""), new_offsets

        return change_records(self._root, self._number(), plan)

    def describe(self) -> GroupDescription:
        """Kind, state and members of the group. Raises UnknownGroupError.

        Only groups in a broker's directory have members. In an adopted one, the members of the former broker's groups
        are not shown.
        """
        log = self._log()
        if log is None:
            raise self._unknown()
        group = log.group(self.group_id)
        described = group.described(lambda topic_id: self._root.topic_name(topic_id) or topic_id)
        return described if self._root.has_broker_coordinator else described.without_members()

    def delete_offsets(self, partitions: Iterable[AnyPartition]) -> list[TopicPartition]:
        """Delete the group's offsets of these partitions; return the partitions that had one.

        Raises UnknownGroupError, ReadOnlyLogDirError.
        """
        chosen = {as_topic_partition(each) for each in partitions}

        def plan(log: GroupLog) -> tuple[GroupRecords, list[TopicPartition]]:
            keys = {*log.records(self.group_id), *log.pending_keys(self.group_id)}
            had = {key: found for key in keys if (found := parse_offset_key(key)) is not None and found in chosen}
            return dict.fromkeys(had), sorted(set(had.values()))

        return self._change(plan)

    def delete(self) -> None:
        """Delete the group with all its offsets, also those of open transactions.

        Raises UnknownGroupError, ReadOnlyLogDirError.
        """

        def plan(log: GroupLog) -> tuple[GroupRecords, None]:
            tombstones: dict[bytes, bytes | None] = dict.fromkeys(log.records(self.group_id))
            tombstones |= dict.fromkeys(log.pending_keys(self.group_id))
            # Even if the group has no such record, as a broker does: a broker that replays the log drops the group.
            tombstones.setdefault(group_key(GroupMetadataKey(group=self.group_id)))
            return tombstones, None

        self._change(plan)

    def expire_offsets(
        self, older_than_ms: int, *, now_ms: int | None = None, dry_run: bool = False
    ) -> list[TopicPartition]:
        """Delete the offsets that were committed before the time `older_than_ms`, and those of topics that were
        deleted; return their partitions.

        A group whose last offset is deleted is deleted too (see `groups.offsets_topic`). `now_ms` is the current time,
        by default the clock's. With `dry_run` nothing is deleted. Raises UnknownGroupError, ReadOnlyLogDirError.
        """
        now_ms = self._root.native().clock() if now_ms is None else now_ms
        self._root.refresh()
        log = self._log()
        if log is None:
            raise self._unknown()
        found = self._expired(log, older_than_ms, now_ms)
        if dry_run or not found.keys:
            return list(found.partitions)

        def plan(log: GroupLog) -> tuple[GroupRecords, list[TopicPartition]]:
            found = self._expired(log, older_than_ms, now_ms)
            return dict.fromkeys(found.keys), list(found.partitions)

        return self._change(plan)

    def _expired(self, log: GroupLog, older_than_ms: int, now_ms: int) -> Expired:
        is_current = expiry_filter(self._root, log)
        return find_expired(log, log.group(self.group_id), is_current, older_than_ms=older_than_ms, now_ms=now_ms)

    def _change(self, plan: Callable[[GroupLog], tuple[GroupRecords, T]]) -> T:
        """As `change_records` of the partition with the group's records. Raises UnknownGroupError."""
        self._root.native()
        self._root.refresh()
        if not self.exists():  # checked first, so that no topic is created for it
            raise self._unknown()

        def of_group(log: GroupLog) -> tuple[GroupRecords, T]:
            if not log.has(self.group_id):
                raise self._unknown()
            return plan(log)

        return change_records(self._root, self._number(), of_group)

    def _unknown(self) -> UnknownGroupError:
        return UnknownGroupError(f"there is no consumer group {self.group_id!r} in {self._root.path}")

    def _lag_in(self, topic_partition: TopicPartition, committed: OffsetAndMetadata) -> PartitionLag:
        end_offset, failed = None, None
        try:
            end_offset = self._root.high_watermark(topic_partition.topic, topic_partition.partition)
        except UnknownTopicError:
            pass
        except (KafkalogError, OSError) as error:
            failed = without_frames(error)
        return PartitionLag(
            topic_partition=topic_partition, committed=committed, log_end_offset=end_offset, error=failed
        )


def known_lags(group: Group, ends: KnownEnds) -> dict[tuple[str, int], int]:
    """A group's lag in each partition that exists, by topic and number, in a root that is not a broker's directory.

    As `Group.lag`, for many groups and offsets: without objects for each. `ends` is kept from one group to the next.
    """
    log = group._log()
    if log is None:
        return {}
    is_current = offsets_filter(group.root, log)
    found: dict[tuple[str, int], int] = {}
    for key, value in sorted(log.records(group.group_id).items()):  # as in `Group.fetch`
        if key[:2] not in OFFSET_TYPES:
            continue
        end = ends.of(key)
        if end is None:
            continue
        found.pop(end.partition, None)
        offset = offset_of_topic(value, end.topic_id)
        if offset is None:
            committed = parse_offset_value(value)
            if not is_current(TopicPartition(*end.partition), committed, key):
                continue
            offset = committed.offset
        found[end.partition] = end.offset - offset
    return dict(sorted(found.items()))


def expire_offsets(
    root: Root,
    *,
    partitions: Collection[int] | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    refresh: bool = True,
) -> dict[str, list[TopicPartition]]:
    """Delete the offsets that are older than offsets.retention.minutes, with one commit for a partition that has any.

    `partitions` are those of `__consumer_offsets` to go through, by default all. Returns the partitions of the deleted
    offsets by group. `now_ms` is the current time, by default the clock's. With `dry_run` nothing is deleted. Without
    `refresh` the caller has refreshed the root.

    Raises ReadOnlyLogDirError for a broker's directory, CorruptRecordError.
    """
    native = root.native()
    if refresh:
        root.refresh()
    now_ms = native.clock() if now_ms is None else now_ms
    older_than_ms = now_ms - native.broker_config().offsets_retention_minutes * MINUTE_MS
    expired: dict[str, list[TopicPartition]] = {}
    for number in offsets_partitions(root):
        if partitions is None or number in partitions:
            expiry = _Expiry(root, older_than_ms, now_ms)
            found = expiry.find(GroupLogs.of(root).caught_up(root, number))
            if found and not dry_run:
                found = change_records(root, number, expiry.plan)
            expired |= {name: list(each.partitions) for name, each in found.items() if each.partitions}
    return expired


def offsets_of_unknown_topics(root: Root) -> list[tuple[str, TopicPartition]]:
    """Group and partition of the offsets that may be of an earlier topic of that name.

    They do not name the topic's id, and the topic is of a snapshot that an earlier version wrote. Raises
    CorruptRecordError.
    """
    unknown = {name for name, each in root.native().store.image.topics.items() if each.offsets_ends == UNKNOWN_ENDS}
    found = []
    for number in offsets_partitions(root) if unknown else ():
        log = GroupLogs.of(root).caught_up(root, number)
        for group in sorted(log.groups()):
            for key in log.records(group):
                topic_partition = parse_offset_key(key)
                if topic_partition is not None and topic_partition.topic in unknown and log.written_at(key) is not None:
                    found.append((group, topic_partition))
    return found


def delete_outdated_offsets(root: Root) -> int:
    """Delete the offsets of topics that were deleted since, in open transactions too; return their number.

    Here they do not count, but a broker that reads `__consumer_offsets` does not know that of an offset without a topic
    id. Offsets from before an adoption stay if the root does not have their topic: other brokers may have it. Raises
    FollowingRootError if there are any to delete and `root` follows, CorruptRecordError.
    """
    root.refresh()
    deleted = 0
    for number in offsets_partitions(root):
        outdated = _Outdated(root)
        keys = outdated.find(GroupLogs.of(root).caught_up(root, number))
        if keys:
            keys = change_records(root, number, outdated.plan)
        deleted += len(keys)
    return deleted


@dataclass(frozen=True, slots=True)
class _Outdated:
    """The keys of offsets in one partition of `__consumer_offsets` whose topics were deleted since."""

    root: Root

    def find(self, log: GroupLog) -> list[bytes]:
        found: set[bytes] = set()
        for name in log.groups():
            live = log.records(name)
            found.update(key for key, value in live.items() if self._is_outdated(key, value, log.written_at(key)))
            for key in log.pending_keys(name):
                if key in found or key not in live:
                    pending = log.pending(name, key)
                    found.update(key for at, value in pending if self._is_outdated(key, value, at))
        return sorted(found)

    def _is_outdated(self, key: bytes, value: bytes, written_at: tuple[int, int] | None) -> bool:
        """False also for what cannot be decoded, which other commands report."""
        try:
            topic_partition = parse_offset_key(key)
            topic_id = parse_offset_value(value).topic_id if topic_partition is not None else None
        except KafkalogError:
            return False
        image = self.root.native().store.image
        return (
            topic_partition is not None
            and not image.has_committed(topic_partition.topic, topic_id, written_at)
            and not may_be_elsewhere(image, topic_partition.topic, written_at)
        )

    def plan(self, log: GroupLog) -> tuple[GroupRecords, list[bytes]]:
        """Their tombstones, and the keys."""
        found = self.find(log)
        return dict.fromkeys(found), found


@dataclass(frozen=True, slots=True)
class _Expiry:
    """What expires in one partition of `__consumer_offsets`."""

    root: Root
    older_than_ms: int
    now_ms: int

    def find(self, log: GroupLog) -> dict[str, Expired]:
        """By group, in order."""
        is_current = expiry_filter(self.root, log)
        found = {
            name: find_expired(log, log.group(name), is_current, older_than_ms=self.older_than_ms, now_ms=self.now_ms)
            for name in sorted(log.groups())
        }
        return {name: each for name, each in found.items() if each.keys}

    def plan(self, log: GroupLog) -> tuple[GroupRecords, dict[str, Expired]]:
        """The tombstones, and what they delete."""
        found = self.find(log)
        return {key: None for each in found.values() for key in each.keys}, found


def as_topic_partition(partition: AnyPartition) -> TopicPartition:
    """`partition` as a TopicPartition, if it is given as topic and number."""
    if isinstance(partition, TopicPartition):
        return partition
    if not isinstance(partition, tuple) or len(partition) != 2:
        raise InvalidOptionError(f"{partition!r} is no partition: expected (topic, number), such as ('orders', 0)")
    check_text("topic", partition[0])
    check_number("partition", partition[1])
    return TopicPartition(*partition)


def _check(topic_partition: TopicPartition, committed: OffsetAndMetadata, max_chars: int) -> None:
    if not 0 <= committed.offset <= INT64_MAX:
        raise InvalidGroupError(
            f"the offset {committed.offset} of {topic_partition} cannot be committed: not 0 or more"
        )
    if len(committed.metadata) > max_chars:
        raise InvalidGroupError(
            f"the metadata for {topic_partition} has {len(committed.metadata)} characters, at most {max_chars} are "
            "allowed (offset.metadata.max.bytes)"
        )
