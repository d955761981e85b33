"""Rebuilds the indexes of segment objects from their `.log`, where they are missing, damaged or wrong.

    1  get the `.log` into a scratch directory, and rebuild its indexes as for a file (storage/segment/recovery.py)
    2  compare with the stored ones: an offset or time index is right if each entry is right by the batches
    3  put the segment again, under a new id: the same `.log`, the indexes and producer snapshot that are right, those
       that are not rebuilt, and the manifest
    4  commit that it takes the place of the old one

Names are written once, so nothing is put over an object that a reader may have open. A kill leaves objects that no
commit names, for the clean-up. If the segment is gone at the commit, because another job has replaced it or retention
has dropped it, nothing changes. A damaged `.log` is an error of the report, and its segment stays as it is.

A producer snapshot that can be read is trusted: it may know of records that were cleaned away. Entries of a readable
transaction index stay if the markers confirm them. Producers behind a damaged `.log` are unknown until the next
snapshot that can be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, PartitionWork
from pyspark_kafkalog.maintenance.objects.segments import fetch_log, replace_extents, segments_record
from pyspark_kafkalog.maintenance.verify.findings import FindingSink, Severity
from pyspark_kafkalog.maintenance.verify.indexes import IndexChecks, IndexExpectation, StoredIndex
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.objects.extents import ObjectLog
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.reads import leader_epochs
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry, parse_epochs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import (
    NO_OFFSET,
    ProducerStateEntry,
    decode_snapshot,
    encode_snapshot,
)
from pyspark_kafkalog.storage.artefacts.transaction_index import parse_aborted
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.log.isolation import SegmentTransactions
from pyspark_kafkalog.storage.log.producers import ProducerStateManager, java_hash_order
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    segment_file,
)
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory
from pyspark_kafkalog.storage.segment.extent import LocalExtent
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.storage.segment.recovery import RebuiltIndexes, read_indexes
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexKind
from pyspark_kafkalog.tiered.own_layouts import OwnLayout, index_place, log_key, segment_keys
from pyspark_kafkalog.tiered.own_segments import put_segment
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT64_MAX

REINDEX_ACTION: Final = "reindex"
_MANIFEST: Final = "manifest"

_T = TypeVar("_T")


@dataclass(slots=True, eq=False, kw_only=True)
class ReindexedPartition(PartitionWork):
    """The work on one partition of either kind of root. `errors`: those of segments, after which the work continues."""

    topic_partition: TopicPartition = field(kw_only=False)
    dry_run: bool
    force: bool
    bytes_read: int = 0
    errors: list[Exception] = field(default_factory=list)

    def reindexed(self, files_written: int) -> PartitionReport:
        """The report, with all errors."""
        errors = [*self.errors, self.error] if self.error is not None else self.errors
        report = self.report(
            REINDEX_ACTION, bytes_read=self.bytes_read, bytes_kept=self.bytes_read, files_written=files_written
        )
        return replace(report, error="; ".join(map(str, errors)) or None)


def damaged(file: str, rebuilt: RebuiltIndexes, *, advice: str) -> CorruptRecordError:
    """The error of a `.log` that is not whole batches to its end."""
    return CorruptRecordError(
        file=file,
        position=rebuilt.valid_bytes,
        expected=f"batches up to byte {rebuilt.size_bytes}",
        found="a damaged or torn batch",
        advice=advice,
    )


def reindex_log(
    root: ObjectRoot, topic_partition: TopicPartition, *, now_ms: int, dry_run: bool = False, force: bool = False
) -> PartitionReport:
    """Reindex the segments of one partition; see `reindex`. Raises UnknownTopicError."""
    root.refresh()
    image = root.store.image
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    work = _Reindexing(
        topic_partition,
        root=root,
        of=ObjectLog.of(image, topic_partition).topic_id_partition,
        config=root.log_config(topic_partition.topic),
        epochs=tuple(leader_epochs(partition)),
        now_ms=now_ms,
        dry_run=dry_run,
        force=force,
    )
    for segment in partition.segments:
        with work.step(REINDEX_ACTION), ScratchDirectory("reindex") as directory:
            work.go(segment, directory)
        if work.error is not None:
            work.errors.append(work.error)
            work.error = None
            work.producers = None
    return work.reindexed(work.replaced_count)


@dataclass(slots=True, eq=False, kw_only=True)
class _Reindexing(ReindexedPartition):
    """The work on one partition. `producers` are those at the end of the last segment, None if they are unknown.

    `last_ends` has the marker of the last transaction that has ended, by producer.
    """

    root: ObjectRoot
    of: TopicIdPartition
    config: LogConfig
    epochs: tuple[EpochEntry, ...]
    now_ms: int
    replaced_count: int = 0
    producers: tuple[ProducerStateEntry, ...] | None = ()
    last_ends: dict[int, int] = field(default_factory=dict)

    def go(self, segment: SegmentObject, directory: Path) -> None:
        """Check one segment, and replace it if one of its indexes is wrong."""
        extent = RemoteExtent(self.root.objects, self.of, segment, OwnLayout.AIVEN)
        fetch_log(extent, segment_file(directory, segment.base_offset, LOG_SUFFIX), flushing_file_system(LOCAL, "os"))
        stored = self._stored(segment)
        manager = self._producers_at(segment.base_offset, directory)
        rebuilt = read_indexes(directory, segment.base_offset, self.config, manager)
        self.bytes_read += rebuilt.size_bytes
        if rebuilt.valid_bytes < rebuilt.size_bytes:
            self.producers = None
            raise damaged(
                self._name(segment),
                rebuilt,
                advice="restore the object from an earlier version; its indexes are left as they are",
            )
        known = manager if self.producers is not None else None
        content = _Content.of(segment, stored, rebuilt, known, self._right_aborted(segment, stored, rebuilt, directory))
        wrong = content.wrong(directory, force=self.force)
        wrong += [] if self._has_manifest(segment) else [_MANIFEST]
        self.producers = content.entries
        if not wrong:
            return
        if content.entries is None:
            raise self._unknown_producers(segment)
        if not self.dry_run and not self._replace(segment, content, set(wrong), directory):
            return
        self.replaced_count += len(wrong)

    def _stored(self, segment: SegmentObject) -> Mapping[IndexKind, bytes | None]:
        """The stored indexes, None for one that is missing or too short. Not from the cache of this process."""
        return {kind: self._stored_index(segment, kind) for kind in IndexKind}

    def _stored_index(self, segment: SegmentObject, kind: IndexKind) -> bytes | None:
        key, place = index_place(self.of, segment, kind, OwnLayout.AIVEN)
        if place is None:
            return b""
        with contextlib.suppress(ObjectNotFoundError):
            found = bytes(self.root.objects.get_ranges(key, [ByteRange(place.start, place.size_bytes)])[0])
            if len(found) == place.size_bytes:
                return found
        return None

    def _right_aborted(
        self,
        segment: SegmentObject,
        stored: Mapping[IndexKind, bytes | None],
        rebuilt: RebuiltIndexes,
        directory: Path,
    ) -> bytes:
        """The transaction index by the markers: entries that are stored and right, and rebuilt ones for the others."""
        offsets = range(segment.base_offset, segment.end_offset)
        indexed = _parsed(partial(parse_aborted, offsets=offsets), stored[IndexKind.TRANSACTION])
        if indexed is None:
            return rebuilt.txn_index
        open_before = {each.producer_id: each.current_txn_first_offset for each in self.producers or ()}
        open_before = {key: first for key, first in open_before.items() if first != NO_OFFSET}
        found = SegmentTransactions(open_before, self.last_ends)
        with SegmentReader(LocalExtent(directory, segment.base_offset)) as reader:
            for run in reader.runs(0, start_offset=segment.base_offset, end_offset=INT64_MAX):
                found.add(run)
        anew = {(each.producer_id, each.last_offset): each for each in parse_aborted(rebuilt.txn_index, file="")}
        right = found.right_entries(indexed)
        known = set(indexed)
        entries = [each if each in known else anew.get((each.producer_id, each.last_offset), each) for each in right]
        return b"".join(each.pack() for each in entries)

    def _has_manifest(self, segment: SegmentObject) -> bool:
        *_, manifest = segment_keys(self.of, segment.base_offset, segment.segment_id)
        try:
            self.root.objects.head(manifest)
        except ObjectNotFoundError:
            return False
        return True

    def _producers_at(self, base_offset: int, directory: Path) -> ProducerStateManager:
        expiration_ms = self.root.broker_config().producer_id_expiration_ms
        manager = ProducerStateManager(directory, expiration_ms=expiration_ms)
        manager.begin_at(base_offset, self.producers or (), self.now_ms)
        return manager

    def _replace(self, segment: SegmentObject, content: _Content, wrong: set[str], directory: Path) -> bool:
        """Put the segment with right indexes and commit it; False if it is not there any more."""
        content.write(directory, wrong)
        planned_at = self.root.store.image.next_offset
        put = put_segment(
            self.root.objects,
            self.of,
            directory,
            segment.base_offset,
            segment.end_offset,
            epochs=self.epochs,
            segment_id=new_segment_id(planned_at),
            now_ms=self.root.clock(),
            is_cleaned=segment.is_cleaned,
        )
        record = segments_record(self.of, planned_at, [segment], [put])
        made = replace_extents(self.root.store, self.root.objects, [(self.of, record)], operation=REINDEX_ACTION)
        return bool(made)

    def _name(self, segment: SegmentObject) -> str:
        return f"{self.root.objects.url}/{log_key(self.of, segment, OwnLayout.AIVEN)}"

    def _unknown_producers(self, segment: SegmentObject) -> CorruptRecordError:
        return CorruptRecordError(
            file=self._name(segment),
            position=0,
            expected="known producers at its end: a snapshot of them, or no damage before it",
            found="a damaged snapshot after a damaged segment",
            advice="restore the damaged objects from earlier versions, and run kafkalog reindex again",
        )


@dataclass(frozen=True, slots=True)
class _Content:
    """The indexes of one segment, stored and rebuilt. `entries`: the producers at its end, None if unknown."""

    segment: SegmentObject
    stored: Mapping[IndexKind, bytes | None]
    rebuilt: Mapping[IndexKind, bytes]
    entries: tuple[ProducerStateEntry, ...] | None

    @classmethod
    def of(
        cls,
        segment: SegmentObject,
        stored: Mapping[IndexKind, bytes | None],
        rebuilt: RebuiltIndexes,
        producers: ProducerStateManager | None,
        right_aborted: bytes,
    ) -> _Content:
        entries = _parsed(decode_snapshot, stored[IndexKind.PRODUCER_SNAPSHOT])
        if entries is None and producers is not None:
            entries = tuple(each.entry() for each in java_hash_order(producers.producers))
        return cls(
            segment,
            stored,
            {
                IndexKind.OFFSET: rebuilt.offset_index,
                IndexKind.TIMESTAMP: rebuilt.time_index,
                IndexKind.TRANSACTION: right_aborted,
                IndexKind.PRODUCER_SNAPSHOT: encode_snapshot(entries or ()),
            },
            entries,
        )

    def wrong(self, directory: Path, *, force: bool) -> list[str]:
        """The kinds of indexes that are wrong, or with `force` differ from what is built today."""
        stored = self.stored
        found = [kind for kind in (IndexKind.OFFSET, IndexKind.TIMESTAMP) if not self._is_right(kind, directory, force)]
        if stored[IndexKind.TRANSACTION] != self.rebuilt[IndexKind.TRANSACTION]:
            found.append(IndexKind.TRANSACTION)
        if _parsed(decode_snapshot, stored[IndexKind.PRODUCER_SNAPSHOT]) is None:
            found.append(IndexKind.PRODUCER_SNAPSHOT)
        if _parsed(parse_epochs, stored[IndexKind.LEADER_EPOCH]) is None:
            found.append(IndexKind.LEADER_EPOCH)
        return [kind.value for kind in found]

    def _is_right(self, kind: IndexKind, directory: Path, force: bool) -> bool:
        """Of the offset or time index: whether each entry is right by the batches of the `.log` in `directory`."""
        stored = self.stored[kind]
        if stored is None or stored == self.rebuilt[kind] or force:
            return stored == self.rebuilt[kind]
        base_offset, sink = self.segment.base_offset, FindingSink(None)
        expected = IndexExpectation(visible_end=INT64_MAX, may_have_zeros=False, severity=Severity.ERROR)
        index = StoredIndex.of_bytes(stored, kind.value)
        offsets, times = (index, None) if kind is IndexKind.OFFSET else (None, index)
        checks = IndexChecks(base_offset, offsets, times, sink, expected)
        with SegmentReader(LocalExtent(directory, base_offset)) as reader:
            for run in reader.runs(0, start_offset=base_offset, end_offset=INT64_MAX):
                checks.add(run.batches)
            checks.finish(self.segment.size_bytes, is_closed=True)
        return not any(each.severity is Severity.ERROR for each in sink.findings)

    def write(self, directory: Path, wrong: set[str]) -> None:
        """Write the files that `put_segment` takes: those that are right as they are stored, the others rebuilt."""
        base_offset = self.segment.base_offset
        for kind, suffix, at in (
            (IndexKind.OFFSET, INDEX_SUFFIX, base_offset),
            (IndexKind.TIMESTAMP, TIME_INDEX_SUFFIX, base_offset),
            (IndexKind.TRANSACTION, TXN_INDEX_SUFFIX, base_offset),
            (IndexKind.PRODUCER_SNAPSHOT, PRODUCER_SNAPSHOT_SUFFIX, self.segment.end_offset),
        ):
            stored = self.stored[kind]
            content = self.rebuilt[kind] if stored is None or kind.value in wrong else stored
            segment_file(directory, at, suffix).write_bytes(content)


def _parsed(parse: Callable[..., _T], data: Buffer | None) -> _T | None:
    """The index's content, None if it is missing or damaged."""
    if data is None:
        return None
    try:
        return parse(bytes(data), file="")
    except (DiskFormatError, ValueError):
        return None
