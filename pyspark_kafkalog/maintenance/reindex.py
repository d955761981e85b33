"""Rebuilds indexes and producer snapshots from the `.log` of segments: files, and segment objects in a store.

*Files.* Every segment is read once, starting with the first, with the state of its producers. Index files that are
missing, or wrong by the `.log`, are replaced, each in one step. A correct one stays, even if today's settings would
produce another: with other settings, with another version of Kafka, or across a restart, entries are at other places.
(Segments whose index files differ are verified for that purpose.) With `force` these are rebuilt too.

A readable producer snapshot is kept, and trusted: it may know producers whose records are gone. A missing or damaged
one is rebuilt from the previous snapshot and the batches in between. Where the local log begins behind segments in
remote storage, in which transactions can have begun, the copy there is taken. The `.log` files are never changed;
damage in one is reported. Its index files stay, as they may lead past the damage. Snapshots that are missing after it
stay missing, as the producers in the damaged part are unknown.

The end of the active segment, past the last commit, is left to the next writer, which cuts it off. A kill leaves some
files old and some new, each of them whole.

*Segment objects* are reindexed one by one:

    1  get the `.log` into a scratch directory, and rebuild its indexes as for a file (storage/segment/recovery.py)
    2  compare with the stored ones: an offset or time index is right if each entry is right by the batches
    3  put the segment again, under a new id: the same `.log`, the indexes and producer snapshot that are right, those
       that are not rebuilt, and the manifest
    4  commit that it takes the place of the old one

Names are written once, so nothing is put over an object that a reader may have open. A kill leaves objects that no
commit names, for the clean-up. If the segment is gone at the commit, because another job has replaced it or retention
has dropped it, nothing changes. A damaged `.log` is an error of the report, and its segment stays as it is. Entries of
a readable transaction index stay if the markers confirm them. Producers behind a damaged `.log` are unknown until the
next snapshot that can be read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    DiskFormatError,
    LogDirError,
    UnknownTopicError,
)
from pyspark_kafkalog.maintenance.jobs.partition import (
    PartitionReport,
    PartitionWork,
    left_to_another_run,
    partition_lock,
)
from pyspark_kafkalog.maintenance.jobs.runner import (
    JobRun,
    PartitionsJob,
    all_partitions,
    partitions_to_work_on,
    stored_bytes,
)
from pyspark_kafkalog.maintenance.objects.segments import fetch_log, replace_extents, segments_record
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory
from pyspark_kafkalog.maintenance.verify.findings import FindingSink, Severity
from pyspark_kafkalog.maintenance.verify.indexes import IndexChecks, IndexExpectation, StoredIndex
from pyspark_kafkalog.maintenance.verify.scope import native_scopes
from pyspark_kafkalog.maintenance.verify.segment import check_segment
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.reads import leader_epochs
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry, parse_epochs
from pyspark_kafkalog.storage.artefacts.index_file import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.artefacts.producer_snapshot import (
    NO_OFFSET,
    ProducerStateEntry,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
)
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY, parse_aborted
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system, open_to_read
from pyspark_kafkalog.storage.log.isolation import SegmentTransactions
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producers import ProducerStateManager, java_hash_order
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader
from pyspark_kafkalog.storage.segment.recovery import RebuiltIndexes, read_indexes
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import OwnLayout, index_place, log_key, put_segment, segment_keys
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT64_MAX

REINDEX_ACTION: Final = "reindex"
_MANIFEST: Final = "manifest"

_T = TypeVar("_T")
#: Entry dtypes of index files, and the field with the offset.
_ENTRIES: Final = {
    INDEX_SUFFIX: (np.dtype(OFFSET_INDEX_ENTRY), "relative_offset"),
    TIME_INDEX_SUFFIX: (np.dtype(TIME_INDEX_ENTRY), "relative_offset"),
    TXN_INDEX_SUFFIX: (np.dtype(TXN_INDEX_ENTRY), "last_offset"),
}


def reindex(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    partitions: Collection[TopicPartition] | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> list[PartitionReport]:
    """Rebuild missing, damaged or wrong files of all topics, of `topics`, or of `partitions`; one report a partition.

    `files_written` of a report counts the files replaced or, with `dry_run`, the files that would be. Damage in a
    `.log` is the report's error; everything else is rebuilt nevertheless. `force`: also replace correct index files
    that differ from those that today's settings produce. A partition that another run works on is skipped. On an object
    root, segments with wrong indexes are replaced. Raises ReadOnlyLogDirError for a broker's directory, and
    UnknownTopicError.
    """
    native = root.native()
    chosen = partitions_to_work_on(native, topics, partitions)
    now_ms = native.clock() if now_ms is None else now_ms
    one = for_kind(native, lambda root: partial(reindex_partition, root), lambda root: partial(reindex_log, root))
    return [one(each, now_ms=now_ms, dry_run=dry_run, force=force) for each in chosen]


@dataclass(slots=True, eq=False, kw_only=True)
class _ReindexedPartition(PartitionWork):
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


def _damaged(file: str, rebuilt: RebuiltIndexes, *, advice: str) -> CorruptRecordError:
    """The error of a `.log` that is not whole batches to its end."""
    return CorruptRecordError(
        file=file,
        position=rebuilt.valid_bytes,
        expected=f"batches up to byte {rebuilt.size_bytes}",
        found="a damaged or torn batch",
        advice=advice,
    )


def reindex_partition(
    root: FileRoot, topic_partition: TopicPartition, *, now_ms: int, dry_run: bool = False, force: bool = False
) -> PartitionReport:
    """`reindex` for one partition."""
    root.refresh()
    state = root.store.image.partition(topic_partition.topic, topic_partition.partition).state
    target = SwapTarget.of(root, topic_partition, now_ms)
    work = _FileReindexing(topic_partition, target=target, state=state, dry_run=dry_run, force=force)
    with work.step(REINDEX_ACTION):
        has_files = has_directory(root, topic_partition)
        if dry_run:
            work.go()
        elif has_files:
            with partition_lock(work.directory, fs=root.fs) as is_mine:
                if not is_mine:
                    return left_to_another_run(topic_partition, REINDEX_ACTION)
                work.go()
    return work.reindexed(len(work.written))


@dataclass(slots=True, eq=False, kw_only=True)
class _FileReindexing(_ReindexedPartition):
    """The work on one partition, whose state was `state` at the start."""

    target: SwapTarget
    state: LogState
    is_known: bool = True  # whether all producers so far are known
    written: set[Path] = field(default_factory=set)

    @property
    def root(self) -> FileRoot:
        return self.target.root

    @property
    def directory(self) -> Path:
        return self.target.directory

    def go(self) -> None:
        if not self.directory.is_dir():
            return
        if not self.dry_run:
            self.target.finish()
        bases = [base for base in list_base_offsets(self.directory) if base <= self.state.active_base_offset]
        producers = self._no_producers()
        for base_offset in bases:
            producers = self._producers_at(base_offset, producers, is_first=base_offset == bases[0])
            is_active = base_offset == self.state.active_base_offset
            rebuilt = read_indexes(
                self.directory,
                base_offset,
                self.target.config,
                producers,
                size_bytes=self.state.active_size_bytes if is_active else None,
                is_closed=not is_active,
            )
            self.bytes_read += rebuilt.size_bytes
            if rebuilt.valid_bytes < rebuilt.size_bytes:
                self.errors.append(
                    _damaged(
                        str(segment_file(self.directory, base_offset, LOG_SUFFIX)),
                        rebuilt,
                        advice="restore the file from a copy; its indexes are left as they are",
                    )
                )
                self.is_known = False
            else:
                self._replace_indexes(base_offset, rebuilt)
        self._remove_damaged_snapshots()

    def _no_producers(self) -> ProducerStateManager:
        expiration_ms = self.root.broker_config().producer_id_expiration_ms
        return ProducerStateManager(self.directory, expiration_ms=expiration_ms, fs=self.root.fs)

    def _producers_at(self, base_offset: int, so_far: ProducerStateManager, *, is_first: bool) -> ProducerStateManager:
        """The producers' state at the start of a segment: its snapshot's, or else `so_far`, stored as a snapshot."""
        path = segment_file(self.directory, base_offset, PRODUCER_SNAPSHOT_SUFFIX)
        entries = _read_entries(path)
        if entries is None and is_first and self.state.log_start_offset < base_offset and self.state.has_remote_start:
            copy = copied_snapshot(self.root, self.target.topic_partition, base_offset)
            self._replace({path: copy})
            entries = decode_snapshot(copy, file=str(path))
        if entries is not None:
            producers = self._no_producers()
            producers.begin_at(base_offset, entries, self.target.now_ms)
            self.is_known = True
            return producers
        so_far.end_offset = base_offset
        # A snapshot at or below the log start offset is never read; the state before the first segment is unknown.
        if not is_first and base_offset > self.state.log_start_offset and self.is_known:
            so_far.remove_expired(self.target.now_ms)
            snapshot = encode_snapshot(state.entry() for state in java_hash_order(so_far.producers))
            self._replace({path: snapshot})
        return so_far

    def _replace_indexes(self, base_offset: int, rebuilt: RebuiltIndexes) -> None:
        """Replace the index files that differ, each in one step; an empty transaction index is written as no file."""
        changed: dict[Path, bytes | None] = {}
        for suffix, content in rebuilt.files().items():
            path = segment_file(self.directory, base_offset, suffix)
            content_now = content if content or suffix != TXN_INDEX_SUFFIX else None
            if _content(path, len(content)) != content_now:
                changed[path] = content_now
        if changed and not self.force:
            right = self._right_files(base_offset, changed)
            changed = {path: content_now for path, content_now in changed.items() if path not in right}
        self._replace(changed)

    def _right_files(self, base_offset: int, changed: Collection[Path]) -> set[Path]:
        """The segment's files that differ but are correct, and have no entries past the last commit."""
        [scope] = native_scopes(self.root, [self.target.topic_partition], are_records_checked=False)
        following = scope.live(scope.bases()).get(base_offset)
        wrong = {finding.file for finding in check_segment(scope, base_offset, following, None).findings}
        end_offset = self.state.log_end_offset
        return {path for path in changed if str(path) not in wrong and _last_offset(path, base_offset) < end_offset}

    def _remove_damaged_snapshots(self) -> None:
        """Remove damaged snapshots that could not be rebuilt, since their contents are unknown."""
        paths = [
            segment_file(self.directory, at, PRODUCER_SNAPSHOT_SUFFIX)
            for at in PartitionListing.read(self.directory).snapshot_offsets
        ]
        self._replace({path: None for path in paths if _read_entries(path) is None})

    def _replace(self, files: Mapping[Path, bytes | None]) -> None:
        """Write files, or remove those with None, and count them; a changed active segment is left to its writer.

        Raises UnknownTopicError when the topic was deleted or re-created.
        """
        if not files:
            return
        self.written.update(files)
        if self.dry_run:
            return
        with root_lock(self.root.path, fs=self.root.fs):
            state = self.target.state_now()
            for path, content in files.items():
                parsed = parse_segment_file(path.name)
                if state != self.state and (parsed is None or parsed[0] >= self.state.active_base_offset):
                    self.written.discard(path)  # a writer has changed the active segment and maintained its indexes
                elif content is None:
                    self.root.fs.unlink_if_there(path)
                else:
                    self.root.fs.write_file_atomic(path, content, durable=False)


def copied_snapshot(root: FileRoot, topic_partition: TopicPartition, offset: int) -> bytes:
    """The copy in remote storage of the producer snapshot at `offset`, the end of a segment there.

    Raises LogDirError if no segment ends there, ObjectStoreError, FileNotFoundError, CorruptRecordError.
    """
    topic = root.store.image.topic(topic_partition.topic)
    partition = root.store.image.partition(topic.name, topic_partition.partition)
    segment = next((each for each in partition.segments if each.end_offset == offset), None)
    if segment is None or root.remote_storage is None:
        raise LogDirError(
            f"{topic_partition}: the producer snapshot at offset {offset}, where the local log begins, is missing or "
            "damaged: expected a segment in remote storage that ends there, found none: restore the file from a copy"
        )
    of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
    return root.remote_storage.extent(of, segment).index_bytes(IndexKind.PRODUCER_SNAPSHOT)


def _read_entries(path: Path) -> tuple[ProducerStateEntry, ...] | None:
    try:
        return read_snapshot(path)
    except (FileNotFoundError, CorruptIndexError, LogDirError):
        return None


def _content(path: Path, size_bytes: int) -> bytes | None:
    """The file's bytes, None without a file; of one longer than `size_bytes`, only one byte more than that.

    A link or a pipe counts as a file with other bytes.
    """
    try:
        with open_to_read(path) as file:
            return file.read(size_bytes + 1)  # bounded: the size of what was rebuilt
    except FileNotFoundError:
        return None
    except LogDirError:
        return bytes(size_bytes + 1)  # bounded: the size of what was rebuilt


def _last_offset(path: Path, base_offset: int) -> int:
    """The offset of the last entry of an index file, -1 without an entry or a file."""
    entry, name = _ENTRIES[path.suffix]
    try:
        with open_to_read(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - entry.itemsize, 0))
            rows = np.frombuffer(file.read(entry.itemsize), dtype=entry)
    except FileNotFoundError:
        return -1
    if not len(rows):
        return -1
    offset = int(rows[name][-1])
    return offset if path.suffix == TXN_INDEX_SUFFIX else base_offset + offset


def reindex_log(
    root: ObjectRoot, topic_partition: TopicPartition, *, now_ms: int, dry_run: bool = False, force: bool = False
) -> PartitionReport:
    """Reindex the segments of one partition; see `reindex`. Raises UnknownTopicError."""
    root.refresh()
    image = root.store.image
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    work = _ObjectReindexing(
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
class _ObjectReindexing(_ReindexedPartition):
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
            raise _damaged(
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
            found = bytes(self.root.objects.get_range(key, ByteRange(place.start, place.size_bytes)))
            if len(found) == place.size_bytes:
                return found
        return None

    def _right_aborted(
        self, segment: SegmentObject, stored: Mapping[IndexKind, bytes | None], rebuilt: RebuiltIndexes, directory: Path
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


def reindex_job(numbers: tuple[int, ...] = (), *, force: bool = False) -> PartitionsJob:
    """The job: reindexes each partition in a task of its own; only those with the given `numbers`, () for all."""
    return PartitionsJob(
        action=REINDEX_ACTION,
        work=partial(reindex, force=force),
        chosen=partial(_with_numbers, numbers),
        sizes=stored_bytes,
    )


def _with_numbers(numbers: Collection[int], job_run: JobRun) -> Sequence[TopicPartition]:
    """The partitions of the run's topics. Raises UnknownTopicError for a topic without one of the numbers."""
    found = all_partitions(job_run)
    if not numbers:
        return found
    for topic in dict.fromkeys(each.topic for each in found):
        for number in numbers:
            if TopicPartition(topic, number) not in found:
                raise UnknownTopicError(f"topic {topic!r} has no partition {number}")
    return [each for each in found if each.partition in numbers]
