"""Copies the logs of a log directory on a file system as of one commit, while writers and maintenance continue.

While the logs are copied, hard links pin their files:

    <root>/__cluster_metadata-0.<32 hex>-exporting-stray/
      .maintenance-lock        held by the process that pinned them
      orders-0/                hard links to the files of the log as of the commit

The links are created under the root's lock. Commits, swaps of cleaned or merged segments, the removal of old segments
and the deletion of topics all take that lock, so all links are as of the same moment. Afterwards writers and
maintenance continue: they replace and remove names, and only append bytes beyond the ends that the commit has. The
links are removed at the end. After a crash they stay until the next export of the root, which removes every such
directory that is not locked. To Kafka the directory is a stray partition of the metadata topic, which it ignores.

A log is copied from its pinned files and closed as a broker closes it. Closed segments can be hard links, since their
bytes never change. The active segment and the small files are copied, since the next writer changes them in place. The
copy is then resumed from the commit's LogState, which cuts off anything beyond it, and closed, which writes the last
index entries and a producer snapshot. Copies keep the modification time, which retention uses for segments without
timestamps.

Segments that exist only in remote storage are restored, so that the copy is complete, unless they are to stay there.
Their objects are the files that they had: `.log`, indexes, and the producer snapshot at the end. The objects stay the
log directory's. Nothing keeps retention from deleting them meanwhile; then the export ends with an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError, LogDirError
from pyspark_kafkalog.maintenance.export.copy import (
    CopiedLog,
    CopyOptions,
    Source,
    chosen_topics,
    drop_outdated_offsets,
    exported_partition,
    first_base,
    make_partition,
    tiered_segments,
)
from pyspark_kafkalog.maintenance.jobs.partition import partition_lock
from pyspark_kafkalog.maintenance.objects.segments import fetch_log
from pyspark_kafkalog.maintenance.swap import SwapTarget, finish_swaps
from pyspark_kafkalog.metadata.image import ALL_BROKERS, MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.commit.open_logs import PartitionLogs
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LeaderEpochCheckpoint,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.below_root import refuse_link, scan
from pyspark_kafkalog.storage.filesystem import FileSystem, flush_earlier
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    offset_file_name,
    parse_segment_file,
    partition_path,
    segment_file,
)
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_location import LAYOUT_CONFIG, LOCATION_CONFIG
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.remote_storage import OwnStorage
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition
from pyspark_kafkalog.units import INT32_MAX

_PIN_SUFFIX: Final = "-exporting-stray"
#: Each with a few windows of its object in memory.
_SEGMENTS_AT_ONCE: Final = 4
_SUFFIXES: Final[Mapping[IndexKind, str]] = {
    IndexKind.OFFSET: INDEX_SUFFIX,
    IndexKind.TIMESTAMP: TIME_INDEX_SUFFIX,
    IndexKind.TRANSACTION: TXN_INDEX_SUFFIX,
}


@dataclass(frozen=True, slots=True)
class PinnedLogs:
    """`image` is that of the commit. `directories` has the links of each partition with records; `cleaned` is the
    cleaner's checkpoint at that moment; `storage` is where segments were copied to, None if that is not configured.
    """

    image: MetadataImage
    partitions: Sequence[TopicPartition]
    directories: Mapping[TopicPartition, Path]
    cleaned: Mapping[TopicPartition, int]
    storage: OwnStorage | None

    def state(self, topic_partition: TopicPartition) -> LogState:
        return self.image.partition(topic_partition.topic, topic_partition.partition).state


@contextlib.contextmanager
def pinned_logs(root: FileRoot, topics: Collection[str] | None = None) -> Iterator[PinnedLogs]:
    """Pin the logs of `topics` (None: all) as of the newest commit, for the block.

    Raises UnknownTopicError, and LogDirError when a log is missing or its segments are being swapped.
    """
    pin = root.path / f"{METADATA_DIR}.{uuid.uuid4().hex}{_PIN_SUFFIX}"
    with contextlib.ExitStack() as held:
        with root_lock(root.path, fs=root.fs):
            _remove_abandoned(root)
            root.fs.mkdir(pin)
            held.callback(shutil.rmtree, pin, ignore_errors=True)
            held.enter_context(partition_lock(pin, fs=root.fs))
            root.refresh()
            image = root.store.image
            flush_earlier(root.path, root.fs)
            partitions = root.partitions(topics)
            directories = {}
            for topic_partition in partitions:
                if image.partition(topic_partition.topic, topic_partition.partition).state.log_end_offset:
                    directories[topic_partition] = partition_path(pin, topic_partition)
                    _pin(root, image, topic_partition, directories[topic_partition])
            cleaned = read_offset_checkpoint(root.path / CLEANER_OFFSET_CHECKPOINT)
            storage = root.remote_storage
        yield PinnedLogs(image, partitions, directories, cleaned, storage)


def _remove_abandoned(root: FileRoot) -> None:
    """Remove what killed exports left. The caller holds the root's lock, under which exports lock their own pins."""
    for directory in root.path.glob(f"{METADATA_DIR}.*{_PIN_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError), partition_lock(directory, fs=root.fs) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(directory, ignore_errors=True)


def _pin(root: FileRoot, image: MetadataImage, topic_partition: TopicPartition, pin: Path) -> None:
    source = partition_path(root.path, topic_partition)
    refuse_lost(source)
    _finish_killed_swaps(root, topic_partition, source)
    root.fs.mkdir(pin)
    for name in _names(source, image.partition(topic_partition.topic, topic_partition.partition).state):
        _pin_file(source / name, pin / name, root.fs)


def refuse_lost(directory: Path) -> None:
    """Raise LogDirError unless the directory, which has committed records, is there."""
    refuse_link(directory)
    if not directory.is_dir():
        raise LogDirError(f"{directory} is missing, which holds committed records: restore it from a backup")


def _finish_killed_swaps(root: FileRoot, topic_partition: TopicPartition, source: Path) -> None:
    """Finish swaps of killed runs. Raises LogDirError when maintenance is running.

    A swap holds the root's lock throughout, so one found incomplete under that lock belongs to a killed run.
    """
    if not PartitionListing.read(source).log_swaps:
        return
    with partition_lock(source, fs=root.fs) as is_free:
        if not is_free:
            raise LogDirError(f"maintenance is running on {source}: wait for it to end, and run this again")
        target = SwapTarget.of(root, topic_partition, root.clock())
        finish_swaps(source, target.config, now_ms=target.now_ms, fs=root.fs)


def _names(directory: Path, state: LogState) -> list[str]:
    """The files of the log as of `state`; the copy cuts off what they contain beyond its end.

    Segments entirely below the local log start offset are omitted: retention has yet to remove them.
    """
    listing = PartitionListing.read(directory)
    first = max((base for base in listing.base_offsets if base <= state.local_log_start_offset), default=0)
    names = [LEADER_EPOCH_CHECKPOINT] if LEADER_EPOCH_CHECKPOINT in listing.others else []
    for suffix, offsets in listing.files.items():
        last = state.log_end_offset if suffix == PRODUCER_SNAPSHOT_SUFFIX else state.active_base_offset
        names += [offset_file_name(offset, suffix) for offset in offsets if first <= offset <= last]
    return sorted(names)


def _pin_file(source: Path, pin: Path, fs: FileSystem) -> None:
    if not stat.S_ISREG(source.lstat().st_mode):
        raise LogDirError(f"{source} is not a regular file, as a file of a log has to be")
    fs.link(source, pin)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(Source):
    """The Source of pinned logs. `contents` is the image of the copy: partitions without a state in it have no log.

    `with_broker_metadata`: of an adopted directory also the broker's own metadata log.
    """

    root: FileRoot
    logs: PinnedLogs
    contents: MetadataImage
    link: bool
    tiered: bool
    with_broker_metadata: bool

    @staticmethod
    def of(
        root: FileRoot,
        logs: PinnedLogs,
        contents: MetadataImage,
        *,
        link: bool = True,
        tiered: bool = False,
        with_broker_metadata: bool = False,
    ) -> FileSource:
        """The logs pinned from `root`; unless `tiered`, `contents` has no segments in remote storage any more."""
        return FileSource(
            fs=root.fs,
            clock=root.clock,
            properties=read_meta_properties(root.path / META_PROPERTIES),
            cleaned=logs.cleaned,
            root=root,
            logs=logs,
            contents=contents if tiered else without_remote_part(contents),
            link=link,
            tiered=tiered,
            with_broker_metadata=with_broker_metadata,
        )

    def copy(self, target: Path) -> list[CopiedLog]:
        """See Source."""
        copied = []
        for topic_partition in self.logs.partitions:
            topic = self.contents.topics.get(topic_partition.topic)
            if topic is None:
                continue
            directory = make_partition(target, topic_partition, topic.topic_id, self.fs)
            if topic.partitions[topic_partition.partition].state.log_end_offset:
                copied.append(self.copy_log(topic_partition, directory))
            else:
                copied.append(CopiedLog(exported_partition(topic_partition, LogState()), LogState()))
        kept = self.root.path / KEPT_METADATA_DIR
        if self.with_broker_metadata:
            refuse_link(kept)
            if kept.is_dir():
                _copy_files(kept, target / KEPT_METADATA_DIR, self.fs)
        return copied

    def copy_log(self, topic_partition: TopicPartition, directory: Path) -> CopiedLog:
        """Copy one log into `directory`, which exists and contains no log. It is on disk when this returns."""
        state, fs = self.logs.state(topic_partition), self.fs
        linked_bytes = copied_bytes = 0
        source = self.logs.directories.get(topic_partition)
        if source is not None:
            for name in sorted(each.name for each in scan(source)):
                is_closed = is_log(name, below=state.active_base_offset)
                most = state.active_size_bytes if is_log(name) and not is_closed else None
                linked, copied = place_file(
                    source / name, directory / name, fs, link=self.link and is_closed, most=most
                )
                linked_bytes, copied_bytes = linked_bytes + linked, copied_bytes + copied
            if state.has_remote_start and not self.tiered:
                copied_bytes += _copy_back(self.logs, topic_partition, directory, fs)
                state = replace(state, local_log_start_offset=state.log_start_offset)
            logs = PartitionLogs.at(directory.parent, self.logs.image, clock=self.clock, fs=fs)
            with logs.resume(topic_partition, state) as log:
                log.close()
        fs.fsync_dir(directory)
        return CopiedLog(exported_partition(topic_partition, state, linked_bytes, copied_bytes), state)

    def image(self, copied: Sequence[CopiedLog]) -> MetadataImage:
        return self.contents

    def remote_segments(self) -> Mapping[TopicIdPartition, Sequence[RemoteSegment]]:
        return tiered_segments(self.contents)


@contextlib.contextmanager
def file_source(options: CopyOptions, root: FileRoot) -> Iterator[Source]:
    """The logs of `root` for the block, after a check that each can be copied and closed.

    With `tiered`, a copy that is a root names the same segments in remote storage, and can only take the place of
    `root`. Raises the errors of `pinned_logs` and `check_pinned`.
    """
    if options.is_for_broker:
        drop_outdated_offsets(root, options.topics)
    with pinned_logs(root, options.topics) as logs:
        check_pinned(logs, logs.partitions, is_for_broker=options.is_for_broker)
        contents, is_whole = logs.image, options.topics is None and not options.is_for_broker
        if not is_whole:
            contents = chosen_topics(contents, logs.partitions, is_for_broker=options.is_for_broker)
        yield FileSource.of(
            root, logs, contents, link=options.link, tiered=options.tiered, with_broker_metadata=is_whole
        )


def check_pinned(logs: PinnedLogs, partitions: Iterable[TopicPartition], *, is_for_broker: bool = False) -> None:
    """Check, before anything is written, that each log can be copied and closed. Raises as `check_log`."""
    for topic_partition in partitions:
        directory = logs.directories.get(topic_partition)
        if directory is not None:
            check_log(directory, topic_partition, logs.state(topic_partition), is_for_broker=is_for_broker)


def check_log(directory: Path, topic_partition: TopicPartition, state: LogState, *, is_for_broker: bool) -> None:
    """Check that the log can be exported: its epochs, the sizes of its files, and that its end is there.

    `is_for_broker`: also that its transaction indexes have all abort markers, as a broker believes them after a clean
    shutdown. Raises DiskFormatError.
    """
    LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT)
    for entry in scan(directory):
        if parse_segment_file(entry.name) is not None:
            _check_size(directory / entry.name, entry.stat(follow_symlinks=False).st_size)
    extents = LocalExtents(directory)
    if state.log_end_offset > max(state.local_log_start_offset, state.active_base_offset):
        LogReader(extents, topic_partition).check_end(state.log_end_offset)
    if not is_for_broker:
        return
    for each in extents.current():
        is_active = each.base_offset == state.active_base_offset or each.end_offset is None
        end_offset = state.log_end_offset if is_active or each.end_offset is None else each.end_offset
        if each.base_offset <= state.active_base_offset and state.log_start_offset < end_offset:
            extents.check_transaction_index(each.base_offset, end_offset)


def _copy_back(logs: PinnedLogs, topic_partition: TopicPartition, directory: Path, fs: FileSystem) -> int:
    """Copy the segments that exist only in remote storage into `directory`; returns the bytes."""
    if logs.storage is None:
        raise LogDirError(f"{topic_partition} begins in remote storage, and {LOCATION_CONFIG} is not set")
    topic = logs.image.topic(topic_partition.topic)
    of = TopicIdPartition(topic.name, topic.topic_id, topic_partition.partition)
    segments = topic.partitions[topic_partition.partition].segments
    return _copy_remote_part(logs.storage, of, segments, directory, first_base(directory), fs)


def _check_size(path: Path, size_bytes: int) -> None:
    """Refuse a file that is larger than Kafka can make one: a sparse file costs nothing, and its copy fills a disk."""
    if size_bytes > INT32_MAX:
        raise (CorruptRecordError if is_log(path.name) else CorruptIndexError)(
            file=str(path), position=0, expected=f"at most {INT32_MAX} bytes", found=f"{size_bytes} bytes"
        )


def is_log(name: str, *, below: int | None = None) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed[1] == LOG_SUFFIX and (below is None or parsed[0] < below)


def place_file(source: Path, target: Path, fs: FileSystem, *, link: bool, most: int | None = None) -> tuple[int, int]:
    """Make `target` a hard link if `link` is true and the file system supports it, else a copy, of `most` bytes.

    Returns the bytes linked and the bytes copied.
    """
    if link:
        try:
            _pin_file(source, target, fs)
            return target.stat().st_size, 0
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
    return 0, _copy_file(source, target, fs, most)


def _copy_file(source: Path, target: Path, fs: FileSystem, most: int | None = None) -> int:
    """Copy the file, or its first `most` bytes, to disk durably. Returns the bytes copied."""
    source_fd = fs.open(source, os.O_RDONLY)
    try:
        status = os.fstat(source_fd)
        size_bytes = status.st_size if most is None else min(most, status.st_size)
        _check_size(source, size_bytes)
        fd = fs.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            fs.copy_range(source_fd, 0, fd, 0, size_bytes)
            os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
            fs.fsync(fd)
        finally:
            fs.close(fd)
    finally:
        fs.close(source_fd)
    return size_bytes


def _copy_files(source: Path, target: Path, fs: FileSystem) -> None:
    fs.mkdir(target)
    for name in sorted(each.name for each in scan(source)):
        _copy_file(source / name, target / name, fs)
    fs.fsync_dir(target)


def _copy_remote_part(
    storage: OwnStorage,
    of: TopicIdPartition,
    segments: Sequence[SegmentObject],
    directory: Path,
    local_start: int,
    fs: FileSystem,
) -> int:
    """Copy the segments that begin below `local_start`, where the local ones in `directory` begin; returns the bytes.

    They are then on disk. Raises LogDirError for objects that were deleted, ObjectStoreError, and CorruptRecordError
    for objects of other sizes than the commit said or segments that do not end where the local ones begin,
    CorruptIndexError for a transaction index that lacks an abort marker.
    """
    remote = [each for each in segments if each.base_offset < local_start]
    if not remote or remote[-1].end_offset != local_start:
        raise CorruptRecordError(
            file=str(directory),
            position=0,
            expected=f"remote segments that end at offset {local_start}, where the local ones begin",
            found=f"the end {remote[-1].end_offset}" if remote else "none",
        )
    pool = Workers(_SEGMENTS_AT_ONCE, thread_name_prefix="kafkalog-export")
    try:
        copied_bytes = sum(pool.map(lambda each: _copy_segment(storage.extent(of, each), directory, fs), remote))
    except FileNotFoundError as error:
        raise LogDirError(
            f"records of {of.topic_partition} were deleted before they were copied ({error}): run the export again, or "
            "without this topic"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
    for each in remote:
        LocalExtents(directory).check_transaction_index(each.base_offset, each.end_offset)
    return copied_bytes


def _copy_segment(extent: RemoteExtent[SegmentObject], directory: Path, fs: FileSystem) -> int:
    segment = extent.segment
    copied_bytes = fetch_log(extent, segment_file(directory, segment.base_offset, LOG_SUFFIX), fs)
    for kind, suffix in _SUFFIXES.items():
        data = extent.index_bytes(kind)
        if data or kind is not IndexKind.TRANSACTION:
            fs.write_file_atomic(segment_file(directory, segment.base_offset, suffix), data)
            copied_bytes += len(data)
    snapshot = segment_file(directory, segment.end_offset, PRODUCER_SNAPSHOT_SUFFIX)
    if not snapshot.exists():
        data = extent.index_bytes(IndexKind.PRODUCER_SNAPSHOT)
        fs.write_file_atomic(snapshot, data)
        copied_bytes += len(data)
    return copied_bytes


def without_remote_part(image: MetadataImage) -> MetadataImage:
    """The image of a copy whose logs are whole: nothing of it is in remote storage.

    It names no remote storage either. The topics and ids are those of the original, and two log directories that copy
    to one place would delete each other's segments.
    """
    topics = {
        name: replace(
            topic,
            partitions=tuple(
                replace(each, segments=(), state=replace(each.state, local_log_start_offset=-1))
                for each in topic.partitions
            ),
        )
        for name, topic in image.topics.items()
    }
    settings = {
        name: value
        for name, value in image.broker_configs.get(ALL_BROKERS, {}).items()
        if name not in (LOCATION_CONFIG, LAYOUT_CONFIG)
    }
    return replace(image, topics=topics, dropped=(), broker_configs={**image.broker_configs, ALL_BROKERS: settings})
