"""Replaces and deletes the files of segments: atomically, for concurrent readers and after crashes.

A segment that was rewritten from others, by the cleaner or a merge, takes their place in five steps:

    1  <base>.log.cleaned, .index.cleaned, …    written and on disk; after a crash they are removed
    2  renamed to <base>.log.swap, …            the last of these renames decides; after an earlier crash all go
    3  a second name of each takes the place of <base>.log, then of its indexes
    4  the other old segments, .log first, are renamed to `.deleted`
    5  the `.swap` names are removed, the .log's first

Names are made durable between the steps. A reader never finds a hole: from step 3 on the new segment has the records of
the old ones, and only from step 4 on their names are gone. Between 3 and 5 the new segment reaches past the base
offsets of old ones that still have their names. As long as there is a `.log.swap`, a reader accepts such a segment and
continues after its last batch.

After a crash between 2 and 5 `finish_swaps`, or a starting broker, completes the swap: every segment that begins within
the offsets of the swap file is replaced by it. Kafka does step 4 before 3, which leaves a hole for readers that do not
hold its lock. Both orders go through states that its loader accepts (LocalLog.replaceSegments, LogLoader in
org.apache.kafka.storage.internals.log).

Files to be deleted are renamed to `<name>.deleted`, and removed by a later run once file.delete.delay.ms is over. No
process waits for the delay. The time of the renaming is stored as the file's modification time. After a crash before
that is set, the file may be removed early, which is harmless: a reader that has it open continues, and no name refers
to it. A starting Kafka broker removes such files at once. If a full disk has no room for the longer name, the file is
removed at once, too. Source of the rules: LocalLog.deleteSegmentFiles in org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidRecordError, LogDirError, UnknownTopicError
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import FileSystem, is_out_of_space
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    offset_file_name,
    partition_path,
)
from pyspark_kafkalog.storage.segment.segment import LogSegment
from pyspark_kafkalog.storage.staged_file import remove_committed_names
from pyspark_kafkalog.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class SwapTarget:
    """A partition whose segments are to be replaced; the caller holds its maintenance lock.

    Files are renamed under the root's lock, and only while the topic has the id `topic_id`: the directory might belong
    to a re-created topic. `planned_at` is the metadata offset as of which the segments were found: if a follower has
    truncated the log since, the same names may have other records.
    """

    root: FileRoot
    topic_partition: TopicPartition
    topic_id: str
    config: LogConfig
    now_ms: int
    planned_at: int

    @classmethod
    def of(cls, root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> SwapTarget:
        """The partition as of the root's last refresh. Raises UnknownTopicError."""
        topic = topic_partition.topic
        image = root.store.image
        topic_id = image.topic(topic).topic_id
        return cls(root, topic_partition, topic_id, root.log_config(topic), now_ms, image.next_offset)

    @property
    def directory(self) -> Path:
        return partition_path(self.root.path, self.topic_partition)

    def swap(self, base_offset: int, old_bases: Collection[int]) -> None:
        """See `swap_in`.

        Raises UnknownTopicError when the topic has been deleted or re-created, InvalidRecordError when the log may have
        been truncated.
        """
        with self._locked():
            if self.planned_at < self.root.store.image.staging_horizon.offset:
                raise InvalidRecordError(
                    f"{self.topic_partition}: the root's follower has truncated a log while segments were being "
                    "replaced; they stay as they are, run this again"
                )
            swap_in(self.directory, base_offset, old_bases, now_ms=self.now_ms, fs=self.root.fs)

    def finish(self) -> None:
        """See `finish_swaps`. Raises UnknownTopicError when the topic has been deleted or re-created."""
        if has_unfinished(self.directory):
            with self._locked():
                finish_swaps(self.directory, self.config, now_ms=self.now_ms, fs=self.root.fs)

    def state_now(self) -> LogState:
        """The newest state, stable while the caller holds the root's lock.

        Raises UnknownTopicError when the topic has been deleted or re-created.
        """
        state = self.root.store.refresh().state_of(self.topic_partition, self.topic_id)
        if state is None:
            raise UnknownTopicError(f"topic {self.topic_partition.topic!r} was deleted meanwhile")
        return state

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with root_lock(self.root.path, fs=self.root.fs):
            remove_committed_names(self.directory, self.state_now().active_base_offset, self.root.fs)
            yield


def has_directory(root: FileRoot, topic_partition: TopicPartition) -> bool:
    """Whether the partition has a directory, as of the root's last refresh; before the first write it may not.

    Raises LogDirError when it has records but no directory.
    """
    if partition_path(root.path, topic_partition).is_dir():
        return True
    if root.store.image.partition(topic_partition.topic, topic_partition.partition).state.log_end_offset:
        raise LogDirError(f"the directory of {topic_partition} is gone with all its records: restore it from a copy")
    return False


def has_unfinished(directory: Path) -> bool:
    """Whether a killed run left `.cleaned` or `.swap` files."""
    listing = PartitionListing.read(directory)
    return bool(listing.cleaned or listing.swaps)


def swap_in(directory: Path, base_offset: int, old_bases: Collection[int], *, now_ms: int, fs: FileSystem) -> None:
    """Replace the segments at `old_bases` with the one whose `.cleaned` files, at `base_offset`, are on disk.

    `base_offset` is the smallest of `old_bases`. If several segments of a partition are swapped, the one with the
    smallest base offset comes first: a `.cleaned` file at or below a `.swap` file means that the swap was not decided.
    """
    for suffix in SEGMENT_SUFFIXES:
        cleaned = directory / (offset_file_name(base_offset, suffix) + CLEANED_SUFFIX)
        if suffix != TXN_INDEX_SUFFIX or cleaned.exists():
            fs.rename(cleaned, directory / (offset_file_name(base_offset, suffix) + SWAP_SUFFIX))
    fs.fsync_dir(directory)
    _complete(directory, base_offset, old_bases, now_ms=now_ms, fs=fs)


def finish_swaps(directory: Path, config: LogConfig, *, now_ms: int, fs: FileSystem) -> None:
    """Finish or undo what a killed run left. The caller holds the partition's maintenance lock.

    Raises DiskFormatError when a swap file is damaged.
    """
    listing = PartitionListing.read(directory)
    for swap in listing.undecided_swaps:
        fs.unlink_if_there(directory / swap.name)
    if listing.undecided_swaps:
        fs.fsync_dir(directory)  # without .cleaned files, these swaps would count as decided
    for cleaned in sorted(listing.cleaned):
        fs.unlink_if_there(directory / cleaned.name)
    for base_offset in sorted({swap.offset for swap in listing.decided_swaps}):
        if (directory / (offset_file_name(base_offset, LOG_SUFFIX) + SWAP_SUFFIX)).exists():
            end_offset = _end_offset(directory, base_offset, config, fs, now_ms)
            old = [base for base in PartitionListing.read(directory).base_offsets if base_offset <= base < end_offset]
            _complete(directory, base_offset, old, now_ms=now_ms, fs=fs)
        else:
            _remove_swap_names(directory, base_offset, fs)
    if listing.cleaned or listing.swaps:
        fs.fsync_dir(directory)


def _end_offset(directory: Path, base_offset: int, config: LogConfig, fs: FileSystem, now_ms: int) -> int:
    segment = LogSegment(directory, base_offset, config, fs=fs, created_ms=now_ms, suffix=SWAP_SUFFIX)
    try:
        return segment.read_next_offset()
    finally:
        segment.close_files()


def _complete(directory: Path, base_offset: int, old_bases: Iterable[int], *, now_ms: int, fs: FileSystem) -> None:
    """Steps 3 to 5; repeating a step that was done has no effect."""
    for suffix in SEGMENT_SUFFIXES:
        name = offset_file_name(base_offset, suffix)
        swap = directory / (name + SWAP_SUFFIX)
        if swap.exists():
            _take_place(swap, directory / name, fs)
        else:
            mark_deleted(directory, [name], now_ms=now_ms, fs=fs)
    fs.fsync_dir(directory)
    for old in sorted(old_bases):
        if old != base_offset:
            names = [offset_file_name(old, suffix) for suffix in (*SEGMENT_SUFFIXES, PRODUCER_SNAPSHOT_SUFFIX)]
            mark_deleted(directory, names, now_ms=now_ms, fs=fs)
    fs.fsync_dir(directory)
    _remove_swap_names(directory, base_offset, fs)
    fs.fsync_dir(directory)


def _take_place(swap: Path, target: Path, fs: FileSystem) -> None:
    """Give the swap file the target's name as a second name, atomically; does nothing if it has that name already."""
    if target.exists() and os.path.samefile(swap, target):
        return
    second = target.with_name(target.name + DELETED_SUFFIX)
    fs.unlink_if_there(second)
    fs.link(swap, second)
    fs.rename(second, target)


def _remove_swap_names(directory: Path, base_offset: int, fs: FileSystem) -> None:
    """Remove the `.swap` names, the .log's first and durably.

    Next to a `.log.swap`, a missing index would mean that the new segment has none, and the index would be deleted.
    """
    for suffix in SEGMENT_SUFFIXES:
        fs.unlink_if_there(directory / (offset_file_name(base_offset, suffix) + SWAP_SUFFIX))
        if suffix == LOG_SUFFIX:
            fs.fsync_dir(directory)


def mark_deleted(directory: Path, names: Iterable[str], *, now_ms: int, fs: FileSystem) -> None:
    """Rename the named files, if they exist, in the given order; the delay begins at `now_ms`."""
    for name in names:
        target = directory / (name + DELETED_SUFFIX)
        with contextlib.suppress(FileNotFoundError):
            try:
                fs.rename(directory / name, target)
            except OSError as error:
                if not is_out_of_space(error):
                    raise
                fs.unlink(directory / name)
                continue
            fs.set_modified(target, now_ms * NS_PER_MS)


def remove_deleted_files(directory: Path, *, now_ms: int, delay_ms: int, fs: FileSystem) -> int:
    """Remove the segment files that were renamed at least `delay_ms` ago; return the bytes removed."""
    removed_bytes = 0
    for deleted in PartitionListing.read(directory).deleted:
        path = directory / deleted.name
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_mtime_ns // NS_PER_MS + delay_ms <= now_ms:
                fs.unlink_if_there(path)
                removed_bytes += status.st_size
    return removed_bytes
