"""Replays `__consumer_offsets`: the live records of groups, each partition read once and then followed.

The live records of a group are the last value of each key, if it was not deleted. Records outside of transactions count
at once. Those of a transaction count once its commit marker is written, at the place of their own offsets: a later
commit of the same key outside of the transaction stays. Those of an aborted transaction never count. Until its marker
is written, a transaction is *open*, and its keys are pending. A deletion of a key outside of transactions ends that.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.replay and replayEndTransactionMarker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from pyspark_kafkalog.groups.classic_group import ClassicGroup
from pyspark_kafkalog.groups.consumer_group import RECORD_TYPES, ConsumerGroup, consumer_group_of
from pyspark_kafkalog.groups.group_state import OtherGroup
from pyspark_kafkalog.groups.offset_records import (
    OFFSET_TYPES,
    OFFSETS_TOPIC,
    group_of_key,
    has_topic_id,
    is_offset,
    parse_offset_key,
)
from pyspark_kafkalog.record.header import NO_PRODUCER_ID
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.root.internal_topic import FollowedLog, LogTail, ReplayStep
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot

#: A group of any kind, as its records have it.
AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup | OtherGroup

_LOG: Final = logging.getLogger(__name__)
_SHARE_TYPES: Final = frozenset(range(10, 16))
_STREAMS_TYPES: Final = frozenset(range(17, 24))

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
        for key, value in changes.items():
            named = group_of_key(key)
            assert named is not None
            self._apply(named[1], (first_offset, key, value))
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
    from pyspark_kafkalog.storage.log.reader import LogReader  # imports compiled code

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
