"""Replays `__consumer_offsets`: the live records of groups, each partition read once and then followed.

The live records of a group are the last value of each key, if it was not deleted. Records outside of transactions count
at once. Those of a transaction count once its commit marker is written, at the place of their own offsets: a later
commit of the same key outside of the transaction stays. Those of an aborted transaction never count. Until its marker
is written, a transaction is *open*, and its keys are pending.

Many records up to the last stable offset, where no transaction is open, are read by the compiled decoder; a few, and
those above it, batch by batch without it, because loading it takes a second and 50 MB.

Source of the rules: org.apache.kafka.coordinator.group.OffsetMetadataManager.replay and replayEndTransactionMarker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
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

#: Offsets from which on the compiled decoder is worth loading.
_MANY_OFFSETS: Final = 500

#: Offset, key and value; a value of None deletes the key.
_Change = tuple[int, bytes, "bytes | None"]


class GroupLog:
    """One partition's live records, as of the last `catch_up`."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.end_offset = 0
        self._origin: object = None
        self._live: dict[str, dict[bytes, bytes]] = {}
        self._open: dict[int, list[_Change]] = {}
        self._pending: dict[bytes, set[int]] = {}
        #: Where keys were last written since the oldest open transaction began.
        self._written_at: dict[bytes, int] = {}

    def catch_up(self, root: Root, topic_id: str | None) -> frozenset[str] | None:
        """Read the partition's records that have not been read yet; the groups that have some.

        None: all was read anew, because the partition was replaced or its beginning was deleted.

        Raises CorruptRecordError, OffsetOutOfRangeError if retention deletes the records meanwhile.
        """
        found = root.partition(OFFSETS_TOPIC, self.partition)
        is_new = self._origin != (topic_id, found.log_start_offset) or found.high_watermark < self.end_offset
        if is_new:
            self._origin = (topic_id, found.log_start_offset)
            self.end_offset = found.log_start_offset
            self._live, self._open, self._pending, self._written_at = {}, {}, {}, {}
        if found.high_watermark == self.end_offset:
            return None if is_new else frozenset()
        try:
            changed = self._read(root, found)
        except BaseException:
            self._origin = None  # what was read of it cannot be told from what was not
            raise
        return None if is_new else changed

    def advance(self, first_offset: int, end_offset: int, changes: Mapping[bytes, bytes | None]) -> None:
        """Take over what the caller has appended at the end, outside of transactions, without reading it."""
        assert first_offset == self.end_offset
        for key, value in changes.items():
            named = group_of_key(key)
            assert named is not None
            self._apply(named[1], (first_offset, key, value))
        self.end_offset = end_offset

    def groups(self) -> set[str]:
        """The groups with live records."""
        return set(self._live)

    def records(self, group: str) -> Mapping[bytes, bytes]:
        """The group's live records, value by key."""
        return self._live.get(group, {})

    def is_pending(self, key: bytes) -> bool:
        """Whether an open transaction has written the key."""
        return key in self._pending

    def pending_keys(self) -> Iterable[bytes]:
        """The keys that open transactions have written."""
        return self._pending.keys()

    def _read(self, root: Root, found: PartitionSnapshot) -> frozenset[str]:
        reader = root.reader(OFFSETS_TOPIC, self.partition)
        changed: set[str] = set()
        if not self._open and found.high_watermark - self.end_offset >= _MANY_OFFSETS:
            stable_offset = found.last_stable_offset
            if stable_offset == found.high_watermark > self.end_offset:
                reader.check_end(stable_offset)
            for batch in reader.read(self.end_offset, stable_offset, schema=_KEY_AND_VALUE, committed=True):
                keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
                decided = ((self.end_offset, key, value) for key, value in zip(keys, values, strict=True))
                changed |= self._apply_all(decided)
            self.end_offset = max(self.end_offset, stable_offset)
        if self.end_offset < found.high_watermark:
            reader.check_end(found.high_watermark)
            for run in reader.runs(self.end_offset, found.high_watermark):
                for at in run.batches["position"].tolist():
                    batch = decode_batch(run.data, at - run.position, file=run.file, file_position=at)
                    changed |= self._replay(batch, run.file, at)
        self.end_offset = found.high_watermark
        return frozenset(changed)

    def _replay(self, batch: RecordBatch, file: str, position: int) -> set[str]:
        producer_id = batch.header.producer_id
        changes = [
            (record.offset, record.key, record.value)
            for record in batch.records
            if record.offset >= self.end_offset and record.key is not None
        ]
        if batch.header.is_control:
            types = [parse_control_type(key, file=file, file_position=position) for _, key, _ in changes]
            return self._end_transaction(producer_id, is_commit=ControlRecordType.COMMIT in types)
        if not batch.header.is_transactional:
            return self._apply_all(changes)
        self._open.setdefault(producer_id, []).extend(changes)
        for _, key, _ in changes:
            self._pending.setdefault(key, set()).add(producer_id)
        return set()

    def _end_transaction(self, producer_id: int, *, is_commit: bool) -> set[str]:
        changes = self._open.pop(producer_id, [])
        for _, key, _ in changes:
            producers = self._pending.get(key, set())
            producers.discard(producer_id)
            if not producers:
                self._pending.pop(key, None)
        changed = self._apply_all(changes) if is_commit else set()
        if not self._open:
            self._written_at.clear()
        return changed

    def _apply_all(self, changes: Iterable[tuple[int, bytes | None, bytes | None]]) -> set[str]:
        changed: set[str] = set()
        ignored = 0
        for offset, key, value in changes:
            named = None if key is None else group_of_key(key)
            if key is None or named is None:
                ignored += 1
            else:
                self._apply(named[1], (offset, key, value))
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
        elif group in self._live:
            self._live[group].pop(key, None)
            if not self._live[group]:
                del self._live[group]


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
