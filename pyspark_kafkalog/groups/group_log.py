"""Replays `__consumer_offsets`: the live records of groups, each partition read once and then followed.

The live records of a group are the last value of each key, if it was not deleted. Records outside of transactions count
at once. Those of a transaction count once its commit marker is written, at the place of their own offsets: a later
commit of the same key outside of the transaction stays. Those of an aborted transaction never count. Until its marker
is written, a transaction is *open*, and its keys are pending. A deletion of a key outside of transactions ends that.

Many records up to the last stable offset, where no transaction is open, are read by the compiled decoder; a few, and
those above it, batch by batch without it, because loading it takes a second and 50 MB.

The cleaner removes tombstones some time after they were written (delete.retention.ms). Who follows a partition and
finds that records are missing which it has not read may have missed the deletion of what it knows: it reads all again.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.replay and replayEndTransactionMarker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import NO_PRODUCER_ID
from pyspark_kafkalog.record.reference import RecordBatch, decode_batch
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot

#: A group of any kind, as its records have it.
AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup | OtherGroup

_LOG: Final = logging.getLogger(__name__)
_SHARE_TYPES: Final = frozenset(range(10, 16))
_STREAMS_TYPES: Final = frozenset(range(17, 24))
_RECORDS: Final = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])

#: Offsets from which on the compiled decoder is worth loading.
_MANY_OFFSETS: Final = 500

#: Offset, key and value; a value of None deletes the key.
_Change = tuple[int, bytes, "bytes | None"]


class _RecordsCleanedError(Exception):
    """Records that were not read yet have been removed by the cleaner: the partition has to be read from its start."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The records of one batch; `producer_id` is that of their transaction, and `is_commit` is set by its marker."""

    producer_id: int
    changes: Sequence[tuple[int, bytes | None, bytes | None]] = ()
    is_commit: bool | None = None


@dataclass(frozen=True, slots=True)
class LogTail:
    """The records of [start_offset, end_offset), read while the steps are taken. `is_new`: all are read again."""

    origin: object
    is_new: bool
    start_offset: int
    end_offset: int
    steps: Iterable[ReplayStep]

    def read(self) -> LogTail | None:
        """The same with its records read; None if all records of the partition have to be read again.

        Raises as `GroupLog.catch_up`.
        """
        try:
            return None if self.is_new else replace(self, steps=tuple(self.steps))
        except _RecordsCleanedError:
            return None


class GroupLog:
    """One partition's live records, as of the last `catch_up`."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.end_offset = 0
        self._origin: object = None
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
        """Read the partition's records that have not been read yet; the groups that have some other than offsets.

        None: all records were read again, because the partition was replaced, its beginning was deleted, or records
        were cleaned that had not been read.

        Raises CorruptRecordError, OffsetOutOfRangeError if retention deletes the records meanwhile.
        """
        try:
            return self.apply(self.tail(root, topic_id))
        except _RecordsCleanedError:
            return self.apply(self.tail(root, topic_id))

    def tail(self, root: Root, topic_id: str | None) -> LogTail:
        """The records that have not been read yet. Reads nothing before its steps are taken, and changes nothing."""
        found = root.partition(OFFSETS_TOPIC, self.partition)
        origin = (topic_id, found.log_start_offset)
        is_new = self._origin != origin or found.high_watermark < self.end_offset
        start_offset = found.log_start_offset if is_new else self.end_offset
        steps = self._steps(root, found, start_offset, is_new=is_new) if found.high_watermark > start_offset else ()
        return LogTail(origin, is_new, start_offset, found.high_watermark, steps)

    def apply(self, tail: LogTail) -> frozenset[str] | None:
        """Take over a tail, as `catch_up` does. After an error the next tail is of all records."""
        if tail.is_new:
            self._live, self._offsets_at, self._open, self._pending, self._written_at = {}, {}, {}, {}, {}
        self._origin = None  # if a step fails, applied records cannot be distinguished from the rest
        changed: set[str] = set()
        for step in tail.steps:
            changed |= self._take(step)
        self._origin, self.end_offset = tail.origin, tail.end_offset
        return None if tail.is_new else frozenset(changed)

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

    def _steps(self, root: Root, found: PartitionSnapshot, start_offset: int, *, is_new: bool) -> Iterator[ReplayStep]:
        reader = root.reader(OFFSETS_TOPIC, self.partition)
        whole = None if is_new else _Whole(start_offset)
        has_open = bool(self._open) and not is_new
        if not has_open and found.high_watermark - start_offset >= _MANY_OFFSETS:
            if whole is not None:
                for run in reader.runs(start_offset, found.high_watermark):
                    whole.check(run.batches)
                whole.check_end(found.high_watermark)
                whole = None
            stable_offset = max(found.last_stable_offset, start_offset)
            if stable_offset == found.high_watermark:
                reader.check_end(stable_offset)
            for batch in reader.read(start_offset, stable_offset, schema=_RECORDS, committed=True):
                columns = (batch.column(name).to_pylist() for name in _RECORDS.names)
                yield ReplayStep(NO_PRODUCER_ID, list(zip(*columns, strict=True)))
            start_offset = stable_offset
        if start_offset < found.high_watermark:
            reader.check_end(found.high_watermark)
            for run in reader.runs(start_offset, found.high_watermark):
                if whole is not None:
                    whole.check(run.batches)
                for at in run.batches["position"].tolist():
                    batch = decode_batch(run.data, at - run.position, file=run.file, file_position=at)
                    yield _step(batch, start_offset, run.file, at)
            if whole is not None:
                whole.check_end(found.high_watermark)

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


class _Whole:
    """Checks that the batches from an offset on have all records that were written."""

    def __init__(self, start_offset: int) -> None:
        self._next_offset = start_offset

    def check(self, batches: NDArray[np.void]) -> None:
        """The next ones (BATCH_DTYPE). Raises _RecordsCleanedError."""
        if not len(batches):
            return
        base_offsets, next_offsets = batches["base_offset"], batches["last_offset"] + 1
        if (
            base_offsets[0] > self._next_offset
            or np.any(base_offsets[1:] != next_offsets[:-1])
            or np.any(batches["records_count"] != next_offsets - base_offsets)
        ):
            raise _RecordsCleanedError
        self._next_offset = int(next_offsets[-1])

    def check_end(self, end_offset: int) -> None:
        """There are no further ones up to `end_offset`. Raises _RecordsCleanedError."""
        if self._next_offset < end_offset:
            raise _RecordsCleanedError


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


def _step(batch: RecordBatch, start_offset: int, file: str, position: int) -> ReplayStep:
    header = batch.header
    if header.is_control:
        types = [parse_control_type(record.key, file=file, file_position=position) for record in batch.records]
        return ReplayStep(header.producer_id, is_commit=ControlRecordType.COMMIT in types)
    changes = [(each.offset, each.key, each.value) for each in batch.records if each.offset >= start_offset]
    return ReplayStep(header.producer_id if header.is_transactional else NO_PRODUCER_ID, changes)


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
