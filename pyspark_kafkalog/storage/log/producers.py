"""A partition's producer state: live producers, open transactions, and the `.snapshot` files that store them.

The state at an offset is the latest snapshot at or below it plus the batches after that. A snapshot is written at each
roll, named after the new segment's base offset, and at a clean close and in recovery, named after the log end offset. A
crash in between costs a longer replay and nothing else.

Source of the rules: org.apache.kafka.storage.internals.log.ProducerStateManager.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.producer_snapshot import (
    NO_OFFSET,
    ProducerStateEntry,
    read_snapshot,
    write_snapshot,
)
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log.producer_append import (
    AppendOrigin,
    CompletedTransaction,
    ProducerAppend,
    ProducerBatch,
    ProducerState,
)
from pyspark_kafkalog.storage.names import PRODUCER_SNAPSHOT_SUFFIX, parse_segment_file, segment_file


@dataclass(frozen=True, slots=True)
class CheckedAppend:
    """Batches that have passed the producer checks but are not applied yet. For a duplicate, nothing is appended."""

    producers: tuple[ProducerAppend, ...]
    completed: tuple[CompletedTransaction, ...]
    duplicate: tuple[int, int] | None = None


class ProducerStateManager:
    """Producer state of the partition in `directory`, up to `end_offset`."""

    def __init__(self, directory: Path, *, expiration_ms: int, fs: FileSystem = LOCAL) -> None:
        self.directory = directory
        self.producers: dict[int, ProducerState] = {}
        self.end_offset = 0
        self._expiration_ms = expiration_ms
        self._fs = fs
        self._open: dict[int, int] = {}  # first offset of an open transaction -> producer id
        self._unreplicated: dict[int, int] = {}  # first offset -> marker's offset, until that is replicated
        self._last_snapshot_offset = 0

    @functools.cached_property
    def _snapshots(self) -> set[int]:
        """Offsets of the snapshots, listed on first use: a scan of a long log segment by segment does not need them."""
        return list_snapshots(self.directory)

    @property
    def is_empty(self) -> bool:
        return not self.producers and not self._unreplicated

    @property
    def last_entry(self) -> ProducerStateEntry | None:
        """The entry of the producer that has written last; None if no live producer has written."""
        writers = [state for state in self.producers.values() if state.batches]
        if not writers:
            return None
        return max(writers, key=lambda state: state.batches[-1].last_offset).entry()

    @property
    def latest_snapshot_offset(self) -> int | None:
        return max(self._snapshots, default=None)

    # Appending

    def check(self, batches: Iterable[ProducerBatch], origin: AppendOrigin) -> CheckedAppend:
        """Check the batches of one append. Raises as ProducerAppend.append does, and changes nothing."""
        appends: dict[int, ProducerAppend] = {}
        completed = []
        for batch in batches:
            known = self.producers.get(batch.producer_id)
            if origin is AppendOrigin.CLIENT and known is not None:
                duplicate = known.find_duplicate(batch)
                if duplicate is not None:
                    return CheckedAppend((), (), (duplicate.first_offset, duplicate.last_offset))
            append = appends.get(batch.producer_id)
            if append is None:
                append = ProducerAppend(known or ProducerState(batch.producer_id), origin)
                appends[batch.producer_id] = append
            transaction = append.append(batch)
            if transaction is not None:
                completed.append(transaction)
        return CheckedAppend(tuple(appends.values()), tuple(completed))

    def apply(
        self, checked: CheckedAppend, end_offset: int, on_completed: Callable[[CompletedTransaction, int], None]
    ) -> None:
        """Apply a checked append; `end_offset` is the offset after it.

        `on_completed` is called with each transaction that ended and the last stable offset right after its end.
        """
        for append in checked.producers:
            self._update(append)
        for transaction in checked.completed:
            on_completed(transaction, self._last_stable_offset_after(transaction))
            self._complete(transaction)
        self.end_offset = end_offset

    def replay(
        self, batches: Iterable[ProducerBatch], on_completed: Callable[[CompletedTransaction, int], None]
    ) -> None:
        """Apply stored batches one after the other, as recovery does."""
        for batch in batches:
            self.apply(self.check((batch,), AppendOrigin.REPLICATION), batch.last_offset + 1, on_completed)

    def _update(self, append: ProducerAppend) -> None:
        updated = append.updated
        current = self.producers.get(updated.producer_id)
        self.producers[updated.producer_id] = updated if current is None else current.merged(updated)
        for first_offset in append.started_transactions:
            self._open[first_offset] = updated.producer_id

    def _complete(self, transaction: CompletedTransaction) -> None:
        self._open.pop(transaction.first_offset, None)
        self._unreplicated[transaction.first_offset] = transaction.last_offset

    def _last_stable_offset_after(self, transaction: CompletedTransaction) -> int:
        others = [first for first, producer_id in self._open.items() if producer_id != transaction.producer_id]
        return min(others, default=transaction.last_offset + 1)

    # Open and unreplicated transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or was ended at or above the high watermark."""
        return min((*self._open, *self._unreplicated), default=None)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return min(self._open, default=None)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Forget transactions whose markers are now below the high watermark."""
        ended = [first for first, last in self._unreplicated.items() if last < high_watermark]
        for first_offset in ended:
            del self._unreplicated[first_offset]

    def log_start_moved(self, log_start_offset: int) -> None:
        """Follow an increase of the log start offset."""
        self.high_watermark_moved(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)
        latest = self.latest_snapshot_offset
        self._last_snapshot_offset = log_start_offset if latest is None else latest

    # Snapshots

    def take_snapshot(self, *, durable: bool = False) -> None:
        """Write a snapshot at `end_offset`, unless the last one is at or above that offset."""
        if self.end_offset <= self._last_snapshot_offset:
            return
        entries = [state.entry() for state in java_hash_order(self.producers)]
        write_snapshot(self._path(self.end_offset), entries, fs=self._fs, durable=durable)
        self._snapshots.add(self.end_offset)
        self._last_snapshot_offset = self.end_offset

    def load(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Reset the state to a snapshot at or below `log_end_offset`, or to empty; the caller replays the rest.

        Snapshots outside (log start, log end] and damaged ones are removed. Expired producers without an open
        transaction are left out.
        """
        for offset in sorted(self._snapshots):
            if offset > log_end_offset or offset <= log_start_offset:
                self.remove_snapshot(offset)
        if log_end_offset == self.end_offset:
            self.log_start_moved(log_start_offset)
            return
        self._clear()
        self._load_latest(log_start_offset, now_ms)

    def _load_latest(self, log_start_offset: int, now_ms: int) -> None:
        while (offset := self.latest_snapshot_offset) is not None:
            try:
                entries = read_snapshot(self._path(offset))
            except (CorruptIndexError, FileNotFoundError):
                self.remove_snapshot(offset)
                continue
            self.begin_at(offset, entries, now_ms)
            return
        self.begin_at(log_start_offset, (), now_ms)

    def begin_at(self, offset: int, entries: Iterable[ProducerStateEntry], now_ms: int) -> None:
        """Start from the entries of a snapshot at `offset`, without expired ones."""
        self._last_snapshot_offset = self.end_offset = offset
        for entry in entries:
            if is_expired(entry, now_ms, self._expiration_ms):
                continue
            state = ProducerState.of_entry(entry)
            self.producers[entry.producer_id] = state
            if state.current_txn_first_offset != NO_OFFSET:
                self._open[state.current_txn_first_offset] = entry.producer_id

    def remove_expired(self, now_ms: int) -> None:
        """Forget producers that have not written for `producer.id.expiration.ms` and have no open transaction."""
        for producer_id, state in list(self.producers.items()):
            if is_expired(state.entry(), now_ms, self._expiration_ms):
                del self.producers[producer_id]

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything, and remove all snapshots."""
        self._clear()
        for snapshot in sorted(self._snapshots):
            self.remove_snapshot(snapshot)
        self._last_snapshot_offset = 0
        self.end_offset = offset

    def remove_stray_snapshots(self, base_offsets: Iterable[int]) -> None:
        """Keep only the snapshots at base offsets of segments, and the largest other one if it is above them all."""
        bases = set(base_offsets)
        self._snapshots = list_snapshots(self.directory)
        strays = sorted(self._snapshots - bases)
        if strays and (not bases or strays[-1] >= max(bases)):
            strays.pop()
        for offset in strays:
            self.remove_snapshot(offset)

    def remove_snapshot(self, offset: int) -> None:
        """Remove the snapshot file at `offset`, if there is one."""
        self._snapshots.discard(offset)
        self._fs.unlink_if_there(self._path(offset))

    def _clear(self) -> None:
        self.producers.clear()
        self._open.clear()
        self._unreplicated.clear()

    def _path(self, offset: int) -> Path:
        return segment_file(self.directory, offset, PRODUCER_SNAPSHOT_SUFFIX)


def is_expired(entry: ProducerStateEntry, now_ms: int, expiration_ms: int) -> bool:
    """Whether a producer without an open transaction has expired, by the timestamp of its last records."""
    return entry.current_txn_first_offset < 0 and now_ms - entry.last_timestamp_ms >= expiration_ms


def list_snapshots(directory: Path) -> set[int]:
    """Offsets of the `.snapshot` files in `directory`."""
    offsets = set()
    with os.scandir(directory) as files:
        for file in files:
            parsed = parse_segment_file(file.name)
            if parsed is not None and parsed[1] == PRODUCER_SNAPSHOT_SUFFIX:
                offsets.add(parsed[0])
    return offsets


def java_hash_order(producers: dict[int, ProducerState]) -> list[ProducerState]:
    """The iteration order of a java.util.HashMap<Long, …> of these keys: the order of entries in Kafka's snapshots."""
    buckets = 16
    while len(producers) > buckets * 3 // 4:
        buckets *= 2

    def bucket(producer_id: int) -> int:
        folded = (producer_id ^ (producer_id >> 32)) & 0xFFFFFFFF
        return (folded ^ (folded >> 16)) & (buckets - 1)

    return [producers[producer_id] for producer_id in sorted(producers, key=bucket)]
