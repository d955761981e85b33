"""The live records of groups, from one partition of `__consumer_offsets`: the last value of each key, if not deleted.

The log is replayed once; later calls read only new records. Up to the last stable offset records are decided: those of
committed transactions count, those of aborted ones do not. Records above it are read again each time: records outside
of transactions count at once, those of a transaction once its commit marker is written, all in the order of offsets.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.replay and replayEndTransactionMarker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import pyarrow as pa

from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_of_key
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.reference import RecordBatch, decode_batch

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot

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
                there = self._decided.setdefault(group, {})
                for key, value in of_group.items():
                    if value is None:
                        there.pop(key, None)
                    else:
                        there[key] = value
                if not there:
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
    strange = 0
    for key, value in changes.items():
        named = None if key is None else group_of_key(key)
        if named is None:
            strange += 1
        else:
            grouped.setdefault(named[1], {})[key] = value
    if strange:
        _LOG.warning("%d records of %s are no coordinator's and are passed over", strange, OFFSETS_TOPIC)
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


def group_names(root: Root) -> tuple[str, ...]:
    """Names of all groups with live records, of every kind, in order."""
    logs = GroupLogs.of(root)
    return tuple(sorted({name for each in offsets_partitions(root) for name in logs.caught_up(root, each).groups()}))
