"""Merges small closed segments into full ones by copying their bytes; batches and offsets do not change.

    1  `.cleaned` files of the new segment: the `.log`s one after the other, copied in the kernel; indexes rebuilt from
       the headers of the copy; the transaction indexes one after the other
    2  all on disk, with the modification time of the last old segment, which retention may use
    3  a swap (swap.py) replaces the old segments with them

Offsets, log start offset and high watermark do not change, so nothing is committed. The partition's maintenance lock
excludes other runs. The root's lock is held for step 3 only, where the topic id is checked. A kill before step 3 leaves
`.cleaned` files, which the next run removes; after a kill in step 3 the next run completes it.

Small neighbours are merged, within Kafka's limits for one segment. A small segment has less than half of segment.bytes.
A merged segment stays within segment.bytes, within segment.index.bytes for either index, and within 2^31 offsets. The
other segments of a group have together at least half the size of its largest one; otherwise a segment that grows with
every run would be copied again and again. No group crosses a boundary: the offset up to which the log has been cleaned,
or copied to remote storage.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.jobs.partition import (
    PartitionReport,
    PartitionWork,
    left_to_another_run,
    partition_lock,
)
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, PartitionsJob, chunks, known_sizes, partitions_to_work_on
from pyspark_kafkalog.maintenance.objects.merge import MERGE_ACTION, MergedObjects
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory, remove_deleted_files
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import cleaned_offsets
from pyspark_kafkalog.storage.artefacts.index_file import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.artefacts.transaction_index import read_aborted
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    offset_file_name,
    segment_file,
)
from pyspark_kafkalog.storage.segment.index_entries import IndexRows
from pyspark_kafkalog.storage.segment.recovery import check_closed_segment, scan_closed_segment
from pyspark_kafkalog.storage.segment.stored import StoredSegment, closed_segments

_LOG: Final = logging.getLogger(__name__)

ACTION: Final = MERGE_ACTION
#: A task opens the log directory once for so many partitions.
_TASK_PARTITIONS: Final = 16


def merge_segments(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    partitions: Collection[TopicPartition] | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> list[PartitionReport]:
    """Merge small closed segments of all topics, of `topics`, or of `partitions`; return one report for each partition.

    `bytes_read` of a report is the number of bytes copied, `segments_dropped` the reduction in segments. A partition
    that another run works on is skipped. A failure is in the partition's report; its remaining segments stay as they
    are, and the other partitions continue. With `dry_run` nothing changes. On an object root the runs of data objects
    become segments (objects/merge.py). Raises ReadOnlyLogDirError for a broker's
    directory, and UnknownTopicError.
    """
    logs = _logs_of(root, now_ms)
    return logs.merge(partitions_to_work_on(root.native(), topics, partitions), dry_run=dry_run)


def _logs_of(root: Root, now_ms: int | None = None) -> MergedFiles | MergedObjects:
    return for_kind(root, lambda root: MergedFiles(root, root.clock() if now_ms is None else now_ms), MergedObjects)


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """The logs of a root on a file system: small closed segments are merged."""

    root: FileRoot
    now_ms: int

    def merge(self, partitions: Sequence[TopicPartition], *, dry_run: bool) -> list[PartitionReport]:
        """Merge what can be merged of each partition."""
        return [_merge_partition(self.root, each, self.now_ms, dry_run) for each in partitions]

    def bytes_to_merge(self, topic_partition: TopicPartition) -> int:
        """The bytes that a merge reads, as of the root's last refresh. Raises KafkalogError, OSError."""
        partition = self.root.store.image.find(topic_partition.topic, topic_partition.partition)
        if partition is None or not partition.state.has_closed_segments:
            return 0
        groups = _PartitionMerge.of(self.root, topic_partition, self.now_ms).plan()
        return sum(segment.size_bytes for group in groups for segment in group)

    def groups(self, partitions: Sequence[TopicPartition], slots: int) -> list[Sequence[TopicPartition]]:
        """The partitions of each task."""
        return chunks(partitions, slots, _TASK_PARTITIONS)

    def end_run(self) -> None:
        """Does nothing: merges of files leave nothing behind."""


def _merge_partition(root: FileRoot, topic_partition: TopicPartition, now_ms: int, dry_run: bool) -> PartitionReport:
    work = PartitionWork(topic_partition)
    done: list[Sequence[StoredSegment]] = []
    with work.step("merging segments"):
        merge = _PartitionMerge.of(root, topic_partition, now_ms)
        has_files = has_directory(root, topic_partition)
        if dry_run:
            done += merge.checked(merge.plan())
        elif has_files and not merge.is_done():
            root.refresh()
            merge = _PartitionMerge.of(root, topic_partition, now_ms)
            with partition_lock(merge.directory, fs=root.fs) as is_mine:
                if not is_mine:
                    return left_to_another_run(topic_partition, ACTION)
                for group in merge.go():
                    done.append(group)
    copied_bytes = sum(each.size_bytes for group in done for each in group)
    return work.report(
        ACTION, bytes_read=copied_bytes, bytes_kept=copied_bytes, segments_dropped=sum(len(group) - 1 for group in done)
    )


@dataclass(frozen=True, slots=True)
class _PartitionMerge:
    target: SwapTarget
    state: LogState

    @classmethod
    def of(cls, root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> _PartitionMerge:
        """The partition as of the root's last refresh. Raises UnknownTopicError."""
        state = root.store.image.partition(topic_partition.topic, topic_partition.partition).state
        return cls(SwapTarget.of(root, topic_partition, now_ms), state)

    @property
    def directory(self) -> Path:
        return self.target.directory

    def go(self) -> Iterator[Sequence[StoredSegment]]:
        """Finish or undo what a killed run left, then merge the groups; yield each merged group."""
        self.target.finish()
        for group in self.checked(self.plan()):
            if self.join(group):
                yield group
        delay_ms = self.target.config.file_delete_delay_ms
        remove_deleted_files(self.directory, now_ms=self.target.now_ms, delay_ms=delay_ms, fs=self.target.root.fs)

    def is_done(self) -> bool:
        """Whether there is nothing to merge, to finish or to remove, by one listing: then no lock is needed."""
        listing = PartitionListing.read(self.directory)
        return listing.is_tidy and not self.plan(listing, refresh=False)

    def plan(self, listing: PartitionListing | None = None, *, refresh: bool = True) -> list[tuple[StoredSegment, ...]]:
        """The groups to merge; segments below the local log start offset are left to retention."""
        active = self.state.active_base_offset
        segments = closed_segments(self.directory, active, with_index_sizes=True, listing=listing)
        kept = [each for each in segments if each.end_offset > self.state.local_log_start_offset]
        return plan_merge(kept, self.target.config, boundaries=list(self._boundaries(refresh=refresh)))

    def checked(self, groups: Sequence[Sequence[StoredSegment]]) -> list[tuple[StoredSegment, ...]]:
        """Check the segments before the first of them is replaced: batches by their headers, transaction indexes.

        Offsets that are missing between two segments of a topic that is not compacted end a group: a segment may be
        lost there, and its copy could not be put back into a merged one.

        Raises CorruptRecordError when the bytes of a segment are not batches of increasing offsets throughout,
        CorruptIndexError when a transaction index, which a merge copies, lacks an abort marker of its segment.
        """
        extents = LocalExtents(self.directory)
        parts: list[list[StoredSegment]] = []
        for group in groups:
            parts.append([])
            for segment in group:
                end_offset = check_closed_segment(self.directory, segment, are_crcs_checked=False)
                extents.check_transaction_index(segment.base_offset, segment.end_offset)
                parts[-1].append(segment)
                if end_offset < segment.end_offset and not self.target.config.compact:
                    _LOG.warning(
                        "%s: offsets %d to %d are missing, where a segment may be lost; segments are merged on either "
                        "side only: see kafkalog verify",
                        self.target.topic_partition,
                        end_offset,
                        segment.end_offset - 1,
                    )
                    parts.append([])
        return [tuple(part) for part in parts if part and _is_worth_it(part)]

    def _boundaries(self, *, refresh: bool) -> Iterator[int]:
        topic_partition = self.target.topic_partition
        if self.target.config.compact:
            cleaned = cleaned_offsets(self.target.root.path)
            if topic_partition in cleaned:
                yield cleaned[topic_partition]
        # Since the image that `state` is from, another run may have copied segments, until this one took the lock.
        store = self.target.root.store
        image = store.refresh() if refresh else store.image
        partition = image.find(topic_partition.topic, topic_partition.partition)
        if partition is not None and partition.segments:
            yield partition.segments[-1].end_offset

    def join(self, group: Sequence[StoredSegment]) -> bool:
        """Merge the group into one segment; False if its indexes would be too large."""
        joined = _JoinedSegment(self.directory, group, self.target.config, self.target.root.fs)
        fits = False
        try:
            fits = joined.write()
        finally:
            if not fits:  # from the swap on, `finish` handles the files
                joined.remove()
        if fits:
            bases = [each.base_offset for each in group]
            self.target.swap(bases[0], bases)
        return fits


def plan_merge(
    segments: Sequence[StoredSegment], config: LogConfig, *, boundaries: Collection[int] = ()
) -> list[tuple[StoredSegment, ...]]:
    """Groups of two or more neighbours of `segments`, which are in order; each group is to become one segment.

    A group ends before a segment that begins at or above an offset of `boundaries` if the previous one began below it.
    """
    groups: list[tuple[StoredSegment, ...]] = []
    group: list[StoredSegment] = []
    for segment in segments:
        if group and not _may_join(group, segment, config, boundaries):
            groups.append(tuple(group))
            group = []
        if 2 * segment.size_bytes < config.segment_bytes:
            group.append(segment)
        elif group:
            groups.append(tuple(group))
            group = []
    if group:
        groups.append(tuple(group))
    return [each for each in groups if _is_worth_it(each)]


def _may_join(
    group: Sequence[StoredSegment], segment: StoredSegment, config: LogConfig, boundaries: Collection[int]
) -> bool:
    first, last = group[0], group[-1]
    joined = [*group, segment]
    # A rebuilt index may have one entry more for each segment than the indexes of the parts.
    offset_index_bytes = sum(each.offset_index_bytes + OffsetIndex.entry_struct.size for each in joined)
    time_index_bytes = sum(each.time_index_bytes + TimeIndex.entry_struct.size for each in joined)
    return (
        last.end_offset == segment.base_offset
        and sum(each.size_bytes for each in joined) <= config.segment_bytes
        and max(offset_index_bytes, time_index_bytes) <= config.segment_index_bytes
        and segment.end_offset - 1 - first.base_offset <= MAX_RELATIVE_OFFSET
        and not any(last.base_offset < boundary <= segment.base_offset for boundary in boundaries)
    )


def _is_worth_it(group: Sequence[StoredSegment]) -> bool:
    largest_bytes = max(each.size_bytes for each in group)
    return len(group) > 1 and 2 * sum(each.size_bytes for each in group) >= 3 * largest_bytes


@dataclass(frozen=True, slots=True)
class _JoinedSegment:
    """The new segment's `.cleaned` files."""

    directory: Path
    group: Sequence[StoredSegment]
    config: LogConfig
    fs: FileSystem

    def write(self) -> bool:
        """Write all files durably; False if an index would exceed its limit.

        Raises CorruptRecordError when the bytes of the group are not batches of increasing offsets throughout.
        """
        size_bytes = sum(each.size_bytes for each in self.group)
        rows = IndexRows(self.group[0].base_offset, self.config)
        self.remove()  # what a killed run left
        fd = self.fs.open(self._path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._copy(fd)
            self._index(fd, size_bytes, rows)
            if not rows.fits:
                return False
            self.fs.fsync(fd)
        finally:
            self.fs.close(fd)
        self._write_whole(INDEX_SUFFIX, rows.offset_index())
        self._write_whole(TIME_INDEX_SUFFIX, rows.time_index())
        aborted = b"".join(
            read_aborted(segment_file(self.directory, each.base_offset, TXN_INDEX_SUFFIX)) for each in self.group
        )
        if aborted:
            self._write_whole(TXN_INDEX_SUFFIX, aborted)
        modified_ns = max(each.modified_ns for each in self.group)
        self.fs.set_modified(self._path(LOG_SUFFIX), modified_ns)
        return True

    def remove(self) -> None:
        """Remove the written files."""
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            self.fs.unlink_if_there(self._path(suffix))

    def _copy(self, fd: int) -> None:
        position = 0
        for each in self.group:
            source_fd = open_file(segment_file(self.directory, each.base_offset, LOG_SUFFIX))
            try:
                self.fs.copy_range(source_fd, 0, fd, position, each.size_bytes)
            finally:
                os.close(source_fd)
            position += each.size_bytes

    def _index(self, fd: int, size_bytes: int, rows: IndexRows) -> None:
        """Index the copy's batches by their headers alone: the mapping reads no other pages."""
        if not size_bytes:
            return
        # Not closed explicitly: a mapping cannot be closed while an array refers to it.
        # bounded: the file that was just written
        data = np.frombuffer(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ), dtype=np.uint8)
        position = 0
        for each in self.group:
            self._index_part(data[position : position + each.size_bytes], each, rows)
            position += each.size_bytes

    def _index_part(self, data: NDArray[np.uint8], part: StoredSegment, rows: IndexRows) -> None:
        file = str(segment_file(self.directory, part.base_offset, LOG_SUFFIX))
        for batches in scan_closed_segment(data, part, file=file):
            rows.add(batches)

    def _write_whole(self, suffix: str, data: bytes) -> None:
        fd = self.fs.open(self._path(suffix), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self.fs.pwrite_all(fd, data, 0)
            self.fs.fsync(fd)
        finally:
            self.fs.close(fd)

    def _path(self, suffix: str) -> Path:
        return self.directory / (offset_file_name(self.group[0].base_offset, suffix) + CLEANED_SUFFIX)


def _sizes(job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
    return known_sizes(partitions, _logs_of(job_run.open()).bytes_to_merge)


def _groups(job_run: JobRun, partitions: Sequence[TopicPartition], slots: int) -> list[Sequence[TopicPartition]]:
    return _logs_of(job_run.open()).groups(partitions, slots)


def _finish(root: Root, *, now_ms: int | None, dry_run: bool) -> list[PartitionReport]:
    if not dry_run:
        _logs_of(root, now_ms).end_run()
    return []


#: A task for some partitions; on an object root one for all whose runs are in the same objects.
MERGE_JOB: Final = PartitionsJob(action=ACTION, work=merge_segments, sizes=_sizes, groups=_groups, finish=_finish)
