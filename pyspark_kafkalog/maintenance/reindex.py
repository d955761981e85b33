"""Rebuilds offset, time and transaction indexes and producer snapshots from the `.log` files.

Every segment is read once, starting with the first, with the state of its producers. Index files that are missing, or
wrong by the `.log`, are replaced, each in one step. A correct one stays, even if today's settings would produce
another: with other settings, with another version of Kafka, or across a restart, entries are at other places. (Segments
whose index files differ are verified for that purpose.) With `force` these are rebuilt too.

A readable producer snapshot is kept, and trusted: it may know producers whose records are gone. A missing or damaged
one is rebuilt from the previous snapshot and the batches in between. Where the local log begins behind segments in
remote storage, in which transactions can have begun, the copy there is taken. The `.log` files are never changed;
damage in one is reported. Its index files stay, as they may lead past the damage. Snapshots that are missing after it
stay missing, as the producers in the damaged part are unknown.

The end of the active segment, past the last commit, is left to the next writer, which cuts it off. A kill leaves some
files old and some new, each of them whole.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.errors import CorruptIndexError, LogDirError, UnknownTopicError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, left_to_another_run, partition_lock
from pyspark_kafkalog.maintenance.jobs.runner import (
    JobRun,
    PartitionsJob,
    all_partitions,
    partitions_to_work_on,
    stored_bytes,
)
from pyspark_kafkalog.maintenance.kinds import logs_of
from pyspark_kafkalog.maintenance.objects.reindex import REINDEX_ACTION, ReindexedPartition, damaged, reindex_log
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory
from pyspark_kafkalog.maintenance.verify.scope import native_scopes
from pyspark_kafkalog.maintenance.verify.segment import check_segment
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.offset_index import OFFSET_INDEX_ENTRY
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.artefacts.producer_snapshot import (
    ProducerStateEntry,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
)
from pyspark_kafkalog.storage.artefacts.time_index import TIME_INDEX_ENTRY
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY
from pyspark_kafkalog.storage.filesystem import open_to_read
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
from pyspark_kafkalog.storage.segment.recovery import RebuiltIndexes, read_indexes
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexKind
from pyspark_kafkalog.tiered.segments import TopicIdPartition

#: Entry dtypes of index files, and the field with the offset.
_ENTRIES: Final = {
    INDEX_SUFFIX: (OFFSET_INDEX_ENTRY, "relative_offset"),
    TIME_INDEX_SUFFIX: (TIME_INDEX_ENTRY, "relative_offset"),
    TXN_INDEX_SUFFIX: (TXN_INDEX_ENTRY, "last_offset"),
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
    root, segments with wrong indexes are replaced (objects/reindex.py). Raises
    ReadOnlyLogDirError for a broker's directory, and UnknownTopicError.
    """
    native = root.native()
    chosen = partitions_to_work_on(native, topics, partitions)
    now_ms = native.clock() if now_ms is None else now_ms
    one = logs_of(native, lambda root: partial(reindex_partition, root), lambda root: partial(reindex_log, root))
    return [one(each, now_ms=now_ms, dry_run=dry_run, force=force) for each in chosen]


def reindex_partition(
    root: FileRoot, topic_partition: TopicPartition, *, now_ms: int, dry_run: bool = False, force: bool = False
) -> PartitionReport:
    """`reindex` for one partition."""
    root.refresh()
    state = root.store.image.partition(topic_partition.topic, topic_partition.partition).state
    target = SwapTarget.of(root, topic_partition, now_ms)
    work = _Reindexing(topic_partition, target=target, state=state, dry_run=dry_run, force=force)
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
class _Reindexing(ReindexedPartition):
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
                    damaged(
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


def reindex_job(numbers: tuple[int, ...] = (), *, force: bool = False) -> PartitionsJob:
    """The job: reindexes each partition in a task of its own; only those with the given `numbers`, () for all."""
    return PartitionsJob(
        action=REINDEX_ACTION,
        work=partial(_reindex, force),
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


def _reindex(force: bool, job_run: JobRun, partitions: Sequence[TopicPartition]) -> list[PartitionReport]:
    return reindex(
        job_run.open(),
        partitions=partitions,
        now_ms=job_run.now_ms,
        dry_run=job_run.dry_run,
        force=force,
    )
