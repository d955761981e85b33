"""A consumer group of a log directory: what it has committed, and changing that.

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

To read all of them again:

>>> {str(partition): offset for partition, offset in group.reset("earliest").items()}
{'orders-0': 0}
>>> scratch.cleanup()

What a group has is as of the log directory's last `refresh`. A group has no members here: whoever commits last
counts, as with consumers of Kafka that assign partitions to themselves ("simple" groups, shown by Kafka's tools as
Empty).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pyspark_kafkalog.errors import InvalidGroupError, UnknownGroupError, UnknownTopicError
from pyspark_kafkalog.groups.group_id import check_group_id
from pyspark_kafkalog.groups.group_log import GroupLogs, offsets_partitions
from pyspark_kafkalog.groups.group_state import GroupDescription, describe_group
from pyspark_kafkalog.groups.offset_records import (
    NO_EXPIRY,
    OffsetAndMetadata,
    group_key,
    group_partition,
    offset_key,
    offset_value,
    parse_offset_key,
    parse_offset_value,
)
from pyspark_kafkalog.groups.offsets_topic import append_records, group_lock
from pyspark_kafkalog.groups.resets import ResetTarget, ToOffsets, as_target, reset_offsets
from pyspark_kafkalog.storage.flush_mode import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir

_LOG: Final = logging.getLogger(__name__)
_OFFSET_MAX: Final = 2**63 - 1

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group has come in one partition. `log_end_offset` None: the partition is not in this log directory."""

    topic_partition: TopicPartition
    committed: OffsetAndMetadata
    log_end_offset: int | None

    @property
    def lag(self) -> int | None:
        """Offsets that are still to be read; below 0 when the log got shorter than what was read."""
        return None if self.log_end_offset is None else self.log_end_offset - self.committed.offset


class Group:
    """One group. It need not be there: it comes to be with its first commit."""

    def __init__(self, log_dir: LogDir, group_id: str) -> None:
        self.group_id = check_group_id(group_id)
        self._log_dir = log_dir
        self._logs = GroupLogs.of(log_dir)

    def __repr__(self) -> str:
        return f"Group({self.group_id!r}, {str(self._log_dir.path)!r})"

    @property
    def log_dir(self) -> LogDir:
        """The log directory that the group is of."""
        return self._log_dir

    def exists(self) -> bool:
        """Whether there is any record of the group."""
        return bool(self._records())

    def _records(self) -> Mapping[bytes, bytes]:
        """The group's live records in `__consumer_offsets`, value by key."""
        partitions = offsets_partitions(self._log_dir)
        if not partitions:
            return {}
        if not self._log_dir.is_foreign:
            partitions = [group_partition(self.group_id, len(partitions))]
        # Of a broker's partitions maybe not all are here, and so not their number.
        found = (self._logs.caught_up(self._log_dir, each).records(self.group_id) for each in partitions)
        return next((records for records in found if records), {})

    def fetch(self, topics: Collection[str] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that the group has committed, of `topics` or of all, in order.

        Those of a topic that was deleted are left out, also when it was made anew; a broker sees to that itself. Raises
        CorruptRecordError.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for key, value in sorted(self._records().items()):  # an older broker's key of the same partition comes first
            topic_partition = parse_offset_key(key)
            if topic_partition is not None and (topics is None or topic_partition.topic in topics):
                found[topic_partition] = parse_offset_value(value)
        if self._log_dir.is_foreign:
            return dict(sorted(found.items()))
        topic_ids = {topic: self._topic_id(topic) for topic in {each.topic for each in found}}
        return {each: found[each] for each in sorted(found) if found[each].topic_id in (None, topic_ids[each.topic])}

    def lag(self, topics: Collection[str] | None = None) -> list[PartitionLag]:
        """How far the group has come in each partition with a committed offset, in the order of the partitions.

        The end of a partition is its high watermark, as for Kafka's tools.
        """
        return [
            PartitionLag(topic_partition=each, committed=committed, log_end_offset=self._log_end_offset(each))
            for each, committed in self.fetch(topics).items()
        ]

    def commit(self, offsets: AnyOffsets, metadata: str = "", *, flush: FlushMode = "fsync") -> None:
        """Commit the next offset to read of each partition, all or none of them.

        `metadata` is kept with those given as numbers; a commit timestamp below 0 becomes the present time. The first
        commit to a log directory creates `__consumer_offsets`.

        Raises UnknownTopicError, InvalidGroupError, ReadOnlyLogDirError.
        """
        records = self._offset_records(offsets, metadata)
        if records:
            with group_lock(self._log_dir, self.group_id):
                append_records(self._log_dir, self.group_id, records, flush=flush)

    def _offset_records(self, offsets: AnyOffsets, metadata: str) -> dict[bytes, bytes | None]:
        root = self._log_dir.own_root()
        max_chars = root.broker_config().offset_metadata_max_bytes
        now_ms = root.clock()
        given = {as_topic_partition(partition): offset for partition, offset in offsets.items()}
        topics = {name: self._log_dir.topic(name) for name in {each.topic for each in given}}
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        records: dict[bytes, bytes | None] = {}
        for topic_partition, offset in given.items():
            committed = OffsetAndMetadata(offset=offset, metadata=metadata) if isinstance(offset, int) else offset
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
        tell: Callable[[str], None] = _LOG.warning,
    ) -> dict[TopicPartition, int]:
        """Put the group's offsets to `target`, of `partitions` or of all that it has offsets for; returns where to.

        A target is a word, an offset, the time of the first record to read (UTC where it has no zone), or one of
        resets.py. With `dry_run` nothing is committed. `tell` is given what was not possible as asked, a sentence each.

        Raises UnknownTopicError, InvalidGroupError, ReadOnlyLogDirError.
        """
        to = as_target(target)
        if dry_run:
            self._log_dir.refresh()
            return self._reset_offsets(to, partitions, tell)
        with group_lock(self._log_dir, self.group_id):
            offsets = self._reset_offsets(to, partitions, tell)
            append_records(self._log_dir, self.group_id, self._offset_records(offsets, ""))
        return offsets

    def _reset_offsets(
        self, target: ResetTarget, partitions: Iterable[AnyPartition] | None, tell: Callable[[str], None]
    ) -> dict[TopicPartition, int]:
        committed = self.fetch()
        if partitions is None:
            partitions = target.offsets if isinstance(target, ToOffsets) else committed
        return reset_offsets(self._log_dir, committed, map(as_topic_partition, partitions), target, tell)

    def describe(self) -> GroupDescription:
        """Kind, state and members of the group. Raises UnknownGroupError.

        Only a broker's group has members: in a log directory of ours, those that it had when the directory was
        adopted are gone.
        """
        records = self._records()
        if not records:
            raise self._unknown()
        return describe_group(
            self.group_id, records, topic_names=TopicIds(self._log_dir), with_members=self._log_dir.is_foreign
        )

    def delete_offsets(self, partitions: Iterable[AnyPartition]) -> list[TopicPartition]:
        """Delete the group's offsets of these partitions; returns those that it had any for.

        Raises UnknownGroupError, ReadOnlyLogDirError.
        """
        wanted = {as_topic_partition(each) for each in partitions}
        with self._changing() as records:
            had = {key: found for key in records if (found := parse_offset_key(key)) is not None and found in wanted}
            append_records(self._log_dir, self.group_id, dict.fromkeys(had))
        return sorted(set(had.values()))

    def delete(self) -> None:
        """Delete the group with all its offsets. Raises UnknownGroupError, ReadOnlyLogDirError."""
        with self._changing() as records:
            tombstones: dict[bytes, bytes | None] = dict.fromkeys(records)
            # As a broker does it, also where the group has no such record: one that reads the log on forgets the group.
            tombstones.setdefault(group_key("GroupMetadataKey", group=self.group_id))
            append_records(self._log_dir, self.group_id, tombstones)

    def expire_offsets(self, older_than_ms: int) -> list[TopicPartition]:
        """Delete the offsets that were committed before `older_than_ms`; with the last of them the group goes.

        Offsets of brokers before 2.1 say themselves when they expire. Returns the partitions, raises
        UnknownGroupError, ReadOnlyLogDirError.
        """
        with self._changing() as records:
            now_ms = self._log_dir.own_root().clock()
            all_offsets = {key: found for key in records if (found := parse_offset_key(key)) is not None}
            expired = {
                key: found for key, found in all_offsets.items() if _is_expired(records[key], older_than_ms, now_ms)
            }
            # A group without offsets and members has nothing to remember.
            gone = records if len(expired) == len(all_offsets) else expired
            append_records(self._log_dir, self.group_id, dict.fromkeys(gone))
        return sorted(set(expired.values()))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Mapping[bytes, bytes]]:
        """The group's live records, which nobody else changes during the block."""
        self._log_dir.own_root()
        self._log_dir.refresh()
        if not self.exists():  # before a lock file, or the topic, is made for it
            raise self._unknown()
        with group_lock(self._log_dir, self.group_id):
            records = self._records()
            if not records:
                raise self._unknown()
            yield records

    def _unknown(self) -> UnknownGroupError:
        return UnknownGroupError(f"there is no consumer group {self.group_id!r} in {self._log_dir.path}")

    def _topic_id(self, topic: str) -> str | None:
        try:
            return self._log_dir.topic(topic).topic_id
        except UnknownTopicError:
            return None

    def _log_end_offset(self, topic_partition: TopicPartition) -> int | None:
        try:
            return self._log_dir.partition(topic_partition.topic, topic_partition.partition).high_watermark
        except UnknownTopicError:
            return None


class TopicIds:
    """Names of topics by their ids, looked up when the first is asked for."""

    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._names: dict[str | None, str] | None = None

    def __call__(self, topic_id: str) -> str:
        if self._names is None:
            self._names = {self._log_dir.topic(name).topic_id: name for name in self._log_dir.topics()}
        return self._names.get(topic_id, topic_id)


def as_topic_partition(partition: AnyPartition) -> TopicPartition:
    """The partition, also where it is given as its topic and number."""
    return partition if isinstance(partition, TopicPartition) else TopicPartition(*partition)


def _is_expired(value: bytes, older_than_ms: int, now_ms: int) -> bool:
    committed = parse_offset_value(value)
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return committed.expire_timestamp_ms <= now_ms
    return committed.commit_timestamp_ms < older_than_ms


def _check(topic_partition: TopicPartition, committed: OffsetAndMetadata, max_chars: int) -> None:
    if not 0 <= committed.offset <= _OFFSET_MAX:
        raise InvalidGroupError(
            f"the offset {committed.offset} of {topic_partition} cannot be committed: not 0 or more"
        )
    if len(committed.metadata) > max_chars:
        raise InvalidGroupError(
            f"the metadata for {topic_partition} has {len(committed.metadata)} characters, at most {max_chars} are "
            "allowed (offset.metadata.max.bytes)"
        )
