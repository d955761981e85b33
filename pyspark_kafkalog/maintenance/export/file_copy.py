"""Copies a whole log directory as of one commit (a backup), while writers and maintenance continue.

    <target>/
      __cluster_metadata-0/kafkalog-format     "unfinished copy" until all the rest is on disk: then "version=1"
      orders-0/ …                              the partitions
      *-offset-checkpoint                      all four, the cleaner's as of the commit
      __cluster_metadata-0.kafka-stray/        of an adopted directory: the broker's own metadata log
      meta.properties                          the same cluster id, node id and directory id
      __cluster_metadata-0/<offset>.checkpoint the metadata image as of the commit: topics with ids and configurations,
                                               broker-level settings, access control entries, transactional ids, the
                                               state of every partition

A backup is restored by opening it. Commits continue at the offset at which the copy was made. Earlier commits (the
history), staged files and the directories of deleted topics are not copied. A copy of selected topics contains those
topics and everything else of the root. What of a log is in remote storage only is copied back to local segments
(remote_part.py), unless the copy is to name the same segments there. A crash leaves a directory whose marker says that
it is unfinished. It cannot be opened; the next export into it removes its contents and starts over.

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
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError, LogDirError
from pyspark_kafkalog.maintenance.export.remote_part import copy_remote_part, without_remote_part
from pyspark_kafkalog.maintenance.jobs.partition_lock import partition_lock
from pyspark_kafkalog.maintenance.swap import SwapTarget, finish_swaps
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.metadata.local.housekeeping import is_leftover
from pyspark_kafkalog.metadata.local.log import HEAD_FILE
from pyspark_kafkalog.metadata.local.offset_hint import OffsetHint
from pyspark_kafkalog.metadata.local.snapshots import LocalSnapshots
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    FORMAT_VERSION,
    METADATA_DIR,
    is_unfinished_copy,
    metadata_dir,
    write_marker,
)
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, root_lock
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.bootstrap import begin_copy, is_vacant, make_dir
from pyspark_kafkalog.root.commit.open_logs import PartitionLogs
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.marker_files import (
    CLEAN_SHUTDOWN_FILE,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
    write_topic_id,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.below_root import follow_root, refuse_link, scan
from pyspark_kafkalog.storage.filesystem import TEMPORARY, FileSystem, flush_earlier
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    offset_file_name,
    parse_metadata_snapshot,
    parse_partition_dir,
    parse_segment_file,
    partition_path,
)
from pyspark_kafkalog.tiered.own_storage import LOCATION_CONFIG, OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT32_MAX

_PIN_SUFFIX: Final = "-exporting-stray"
#: The files of a copy beside its partitions, and the names of those in its metadata folder that have no offset.
_COPIED_FILES: Final = frozenset(
    {
        META_PROPERTIES,
        LOCK_FILE,
        CLEAN_SHUTDOWN_FILE,
        CLEANER_OFFSET_CHECKPOINT,
        LOG_START_OFFSET_CHECKPOINT,
        RECOVERY_POINT_CHECKPOINT,
        REPLICATION_OFFSET_CHECKPOINT,
    }
)
_OWN_PREFIX: Final = "kafkalog-"
_QUORUM_STATE: Final = "quorum-state"
_METADATA_FOLDERS: Final = (METADATA_DIR, KEPT_METADATA_DIR)


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
class ExportedPartition:
    """One partition with its offsets in the checkpoints, and the bytes linked and copied.

    `is_tiered`: its log begins in remote storage.
    """

    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    linked_bytes: int = 0
    copied_bytes: int = 0
    is_tiered: bool = False


def copy_log(
    logs: PinnedLogs,
    topic_partition: TopicPartition,
    directory: Path,
    *,
    link: bool,
    tiered: bool,
    clock: Callable[[], int],
    fs: FileSystem,
) -> ExportedPartition:
    """Copy the log into `directory`, which exists and contains no log. It is on disk when this returns.

    With `tiered`, what of it is in remote storage only stays there.
    """
    state = logs.state(topic_partition)
    linked_bytes = copied_bytes = 0
    source = logs.directories.get(topic_partition)
    if source is not None:
        for name in sorted(each.name for each in scan(source)):
            if is_log(name, below=state.active_base_offset):
                size = link_file(source / name, directory / name, fs) if link else None
                linked_bytes += size or 0
                copied_bytes += copy_file(source / name, directory / name, fs) if size is None else 0
            else:
                most = state.active_size_bytes if is_log(name) else None
                copied_bytes += copy_file(source / name, directory / name, fs, most)
        if state.has_remote_start and not tiered:
            copied_bytes += _copy_back(logs, topic_partition, directory, fs)
            state = replace(state, local_log_start_offset=state.log_start_offset)
        copied = PartitionLogs.at(directory.parent, logs.image, clock=clock, fs=fs)
        with copied.resume(topic_partition, state) as log:
            log.close()
    fs.fsync_dir(directory)
    return exported_partition(topic_partition, state, linked_bytes, copied_bytes)


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
    """Copy what of the log is in remote storage only into `directory`; returns the bytes."""
    if logs.storage is None:
        raise LogDirError(f"{topic_partition} begins in remote storage, and {LOCATION_CONFIG} is not set")
    topic = logs.image.topic(topic_partition.topic)
    of = TopicIdPartition(topic.name, topic.topic_id, topic_partition.partition)
    segments = topic.partitions[topic_partition.partition].segments
    return copy_remote_part(logs.storage, of, segments, directory, _first_base(directory), fs)


def exported_partition(
    topic_partition: TopicPartition, state: LogState, linked_bytes: int = 0, copied_bytes: int = 0
) -> ExportedPartition:
    return ExportedPartition(
        topic_partition=topic_partition,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        linked_bytes=linked_bytes,
        copied_bytes=copied_bytes,
    )


def write_checkpoints(
    target: Path,
    exported: Collection[ExportedPartition],
    *,
    cleaned: Mapping[TopicPartition, int] | None,
    keep: Mapping[str, Mapping[TopicPartition, int]],
    fs: FileSystem,
) -> None:
    """Write the checkpoint files with the partitions' offsets, and those of other partitions in `keep`.

    With `cleaned` None the cleaner's checkpoint is unchanged. Recovery points and high watermarks are the log end
    offsets. A log start offset is written if it is above the base of the first segment, and for a tiered partition,
    whose log start a broker learns nowhere else.
    """
    ends = {each.topic_partition: each.high_watermark for each in exported}
    starts = {
        each.topic_partition: each.log_start_offset
        for each in exported
        if each.is_tiered or each.log_start_offset > _first_base(partition_path(target, each.topic_partition))
    }
    offsets: dict[str, Mapping[TopicPartition, int]] = {
        RECOVERY_POINT_CHECKPOINT: ends,
        REPLICATION_OFFSET_CHECKPOINT: ends,
        LOG_START_OFFSET_CHECKPOINT: starts,
    }
    if cleaned is not None:
        offsets[CLEANER_OFFSET_CHECKPOINT] = {
            topic_partition: min(at, ends[topic_partition])
            for topic_partition, at in cleaned.items()
            if topic_partition in ends
        }
    for name, own in offsets.items():
        others = {
            topic_partition: offset
            for topic_partition, offset in keep.get(name, {}).items()
            if topic_partition not in ends
        }
        write_offset_checkpoint(target / name, {**others, **own}, fs=fs)


def _first_base(directory: Path) -> int:
    try:
        return next(iter(list_base_offsets(directory)), 0)
    except FileNotFoundError:
        return 0


def _check_size(path: Path, size_bytes: int) -> None:
    """Refuse a file that is larger than Kafka can make one: a sparse file costs nothing, and its copy fills a disk."""
    if size_bytes > INT32_MAX:
        raise (CorruptRecordError if is_log(path.name) else CorruptIndexError)(
            file=str(path), position=0, expected=f"at most {INT32_MAX} bytes", found=f"{size_bytes} bytes"
        )


def is_log(name: str, *, below: int | None = None) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed[1] == LOG_SUFFIX and (below is None or parsed[0] < below)


def link_file(source: Path, target: Path, fs: FileSystem) -> int | None:
    """Create `target` as a hard link, and return the file's size; None if the file system does not support it."""
    try:
        _pin_file(source, target, fs)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            return None
        raise
    return target.stat().st_size


def copy_file(source: Path, target: Path, fs: FileSystem, most: int | None = None) -> int:
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


def back_up(
    root: FileRoot, target: Path, topics: Collection[str] | None = None, *, link: bool = True, tiered: bool = False
) -> list[ExportedPartition]:
    """Make `target` a copy of `root` with `topics` (None: all). `target` is absent, empty or an unfinished copy.

    With `tiered` it names the same segments in remote storage, and can only take the place of `root`. Raises
    LogDirError for any other `target`, and the errors of `pinned_logs` and `copy_remote_part`.
    """
    with pinned_logs(root, topics) as logs:
        check_pinned(logs, logs.partitions)
        image = logs.image
        if topics is not None:
            image = only_topics(image, [image.topics[name] for name in sorted(set(topics))])
        return copy_root(root, logs, target, image, link=link, tiered=tiered, keep_broker_metadata=topics is None)


def copy_root(
    root: FileRoot,
    logs: PinnedLogs,
    target: Path,
    image: MetadataImage,
    *,
    link: bool,
    tiered: bool,
    keep_broker_metadata: bool,
) -> list[ExportedPartition]:
    """As `back_up`, from pinned logs. `image` is what the copy contains; partitions without a state have no log."""
    fs = root.fs
    image = image if tiered else without_remote_part(image)
    with unfinished_copy(target, fs):
        exported = copy_logs(root, logs, target, image, link=link, tiered=tiered)
        refuse_link(root.path / KEPT_METADATA_DIR)
        if keep_broker_metadata and (root.path / KEPT_METADATA_DIR).is_dir():
            _copy_files(root.path / KEPT_METADATA_DIR, target / KEPT_METADATA_DIR, fs)
        properties = read_meta_properties(root.path / META_PROPERTIES)
        finish_copy(target, image, exported, properties, cleaned=logs.cleaned, fs=fs)
    return exported


def copy_logs(
    root: FileRoot, logs: PinnedLogs, target: Path, image: MetadataImage, *, link: bool, tiered: bool
) -> list[ExportedPartition]:
    """Make the directories of the pinned partitions that are in `image`, with their logs."""
    fs = root.fs
    exported = []
    for topic, topic_partition in _partitions(logs, image):
        directory = partition_path(target, topic_partition)
        fs.mkdir(directory)
        write_topic_id(directory / PARTITION_METADATA, topic.topic_id, fs=fs, durable=False)
        if topic.partitions[topic_partition.partition].state.log_end_offset:
            exported.append(
                copy_log(logs, topic_partition, directory, link=link, tiered=tiered, clock=root.clock, fs=fs)
            )
        else:
            exported.append(ExportedPartition(topic_partition=topic_partition, log_start_offset=0, high_watermark=0))
    return exported


@contextlib.contextmanager
def unfinished_copy(target: Path, fs: FileSystem) -> Iterator[None]:
    """Make `target`, which is absent, empty or an unfinished copy, an empty unfinished copy, locked for the block.

    Raises LogDirError for any other `target`.
    """
    follow_root(target)
    make_dir(target, fs)
    with root_lock(target, is_new=True, fs=fs):
        _make_empty(target, fs)
        begin_copy(target, fs=fs)
        yield


def finish_copy(
    target: Path,
    image: MetadataImage,
    exported: Collection[ExportedPartition],
    properties: MetaProperties,
    *,
    cleaned: Mapping[TopicPartition, int],
    fs: FileSystem,
) -> None:
    """Make the unfinished copy, whose logs are on disk, a root with `image`. `cleaned` is the cleaner's checkpoint."""
    write_checkpoints(target, exported, cleaned=cleaned, keep={}, fs=fs)
    write_meta_properties(target / META_PROPERTIES, properties, fs=fs)
    _write_image(target, image, fs)
    fs.fsync_dir(target)
    write_marker(metadata_dir(target), fs, image.format_version or FORMAT_VERSION)  # now it is whole


def only_topics(image: MetadataImage, topics: Collection[TopicImage]) -> MetadataImage:
    """The image with `topics` instead of its own."""
    return replace(
        image,
        topics={topic.name: topic for topic in topics},
        topic_names={topic.topic_id: topic.name for topic in topics},
    )


def _make_empty(target: Path, fs: FileSystem) -> None:
    """Remove the contents of an unfinished copy. Raises LogDirError for a directory that contains anything else."""
    if not is_unfinished_copy(target) and not is_vacant(target):
        raise LogDirError(
            f"{target} is neither empty nor a broker's log directory (it has no {META_PROPERTIES}): name another"
        )
    metadata = metadata_dir(target)
    foreign = next(_foreign_entries(target), None)
    if foreign is not None:
        raise LogDirError(
            f"{foreign} is not of an unfinished copy, although {metadata / FORMAT_MARKER} says that {target} is one: "
            f"name another directory, or remove {foreign} if it is not needed"
        )
    for directory in (target, metadata) if metadata.is_dir() else (target,):
        for name, is_dir in [(each.name, each.is_dir(follow_symlinks=False)) for each in scan(directory)]:
            # The marker stays: after a crash, partitions without it would look like a broker's directory.
            if name in (LOCK_FILE, FORMAT_MARKER) or directory / name == metadata:
                continue
            if is_dir:
                shutil.rmtree(directory / name)
            else:
                fs.unlink(directory / name)


def _foreign_entries(target: Path) -> Iterator[Path]:
    """What no export has written into `target`. Its marker is no proof: any process that may write there could make it.

    So the marker has to be of the user who exports, and all else has to have the names of a copy's files.
    """
    marker = metadata_dir(target) / FORMAT_MARKER
    with contextlib.suppress(FileNotFoundError):
        if marker.lstat().st_uid != os.geteuid():
            yield marker
    for entry in scan(target):
        path = target / entry.name
        if not entry.is_dir(follow_symlinks=False):
            if not entry.is_file(follow_symlinks=False) or TEMPORARY.sub("", entry.name) not in _COPIED_FILES:
                yield path
        elif entry.name not in _METADATA_FOLDERS and parse_partition_dir(entry.name) is None:
            yield path
        else:
            is_known = _is_metadata_file if entry.name in _METADATA_FOLDERS else _is_log_file
            for each in scan(path):
                if not (each.is_file(follow_symlinks=False) and is_known(TEMPORARY.sub("", each.name))):
                    yield path / each.name


def _is_log_file(name: str) -> bool:
    return name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA) or parse_segment_file(name) is not None


def _is_metadata_file(name: str) -> bool:
    known = name.startswith(_OWN_PREFIX) or name == _QUORUM_STATE or is_leftover(name)
    return known or _is_log_file(name) or parse_metadata_snapshot(name) is not None


def _partitions(logs: PinnedLogs, image: MetadataImage) -> Iterator[tuple[TopicImage, TopicPartition]]:
    for topic_partition in logs.partitions:
        if topic_partition.topic in image.topics:
            yield image.topics[topic_partition.topic], topic_partition


def _copy_files(source: Path, target: Path, fs: FileSystem) -> None:
    fs.mkdir(target)
    for name in sorted(each.name for each in scan(source)):
        copy_file(source / name, target / name, fs)
    fs.fsync_dir(target)


def _write_image(target: Path, image: MetadataImage, fs: FileSystem) -> None:
    directory = metadata_dir(target)
    LocalSnapshots(directory, fs).write(image)
    OffsetHint(directory / HEAD_FILE, fs).write(image.next_offset)
