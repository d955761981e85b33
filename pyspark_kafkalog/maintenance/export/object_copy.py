"""Copies a log directory on an object store, as of one commit, to a new one on a file system.

The result is that of file_copy.py: a whole native root with the same ids, which cannot be opened before it is finished. A
partition's batches, of its segment objects and then of its runs, are appended to a log with their offsets and leader
epochs. The engine of file roots so makes segments by the topic's configuration, indexes, producer snapshots and the
leader epoch checkpoint. The log is closed as a broker closes it. For a new broker (new_broker.py), segment objects can
stay where they are, as its tiered segments: then the log in the directory begins where they end.

Nothing is pinned. Objects do not change, and what a merge has replaced remains for file.delete.delay.ms; after that the
same offsets are read from its segments. Records that retention, delete-records or the deletion of a topic has taken
away meanwhile end the export with an error. A crash or an error leaves an unfinished copy: the next export into it
removes its contents and starts over.

Memory: `_PARTITIONS_AT_ONCE` partitions, each with the pieces of objects that its reader holds (storage/objects).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.errors import CorruptRecordError, LogDirError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.maintenance.export.file_copy import (
    ExportedPartition,
    exported_partition,
    finish_copy,
    unfinished_copy,
)
from pyspark_kafkalog.maintenance.objects.merge_plan import leader_epochs
from pyspark_kafkalog.metadata.extents import NO_OBJECTS, NO_PRODUCER_BATCHES, NO_RUNS
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, StagingHorizon, TopicImage
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.objects.extents import ObjectExtents, ObjectLog
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.objects.producers import PartitionProducers, producer_snapshot
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint, read_epochs
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties, write_topic_id
from pyspark_kafkalog.storage.artefacts.producer_snapshot import write_snapshot
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log.follower import delete_records
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    partition_path,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import BatchRun
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.tiered.segments import TopicIdPartition

_PARTITIONS_AT_ONCE: Final = 4


def copy_object_root(
    root: ObjectRoot,
    target: Path,
    topics: Collection[str] | None = None,
    *,
    clock: Callable[[], int],
    fs: FileSystem = LOCAL,
) -> list[ExportedPartition]:
    """Make `target` a copy of `root` with `topics` (None: all). `target` is absent, empty or an unfinished copy.

    Raises LogDirError for any other `target`, and for records that were deleted while they were still to be copied;
    UnknownTopicError, ObjectStoreError, DiskFormatError for damage in an object.
    """
    root.refresh()
    image = root.store.image
    partitions = root.partitions(topics)
    with unfinished_copy(target, fs):
        copied = copy_object_logs(root, image, partitions, target, clock=clock, fs=fs)
        exported = [each.exported for each in copied]
        states = {each.exported.topic_partition: each.state for each in copied}
        finish_copy(target, _as_file_root(image, states), exported, _properties(root, image), cleaned={}, fs=fs)
    return exported


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """A partition that was copied, and the state of its log in the copy."""

    exported: ExportedPartition
    state: LogState


def copy_object_logs(
    root: ObjectRoot,
    image: MetadataImage,
    partitions: Sequence[TopicPartition],
    target: Path,
    *,
    clock: Callable[[], int],
    fs: FileSystem,
    tiered: Collection[str] = (),
) -> list[CopiedLog]:
    """Copy the logs of `partitions` as of `image` into directories of `target`; they are then on disk.

    Of the topics in `tiered`, only what follows the segment objects is copied. Raises as `copy_object_root`.
    """
    source = _Source(root, image, clock, fs, threading.Event(), frozenset(tiered))
    copied = _copy_logs(source, partitions, target)
    return [
        CopiedLog(exported_partition(each, state, copied_bytes=copied_bytes), state)
        for each, (state, copied_bytes) in zip(partitions, copied, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Source:
    """What is copied: `root` as of `image`. `stop` is set when another partition could not be copied.

    The segment objects of the topics in `tiered` stay where they are.
    """

    root: ObjectRoot
    image: MetadataImage
    clock: Callable[[], int]
    fs: FileSystem
    stop: threading.Event
    tiered: frozenset[str]

    def runs(self, topic_partition: TopicPartition, start_offset: int, end_offset: int) -> Iterable[BatchRun]:
        """The batches of a partition that overlap the offsets; none once `stop` is set. Raises as `LogReader.runs`."""
        log = ObjectLog.of(self.image, topic_partition)

        def refreshed() -> ObjectLog:
            newest = self.root.store.refresh()
            if newest.state_of(topic_partition, log.topic_id) is None:
                raise UnknownTopicError(f"topic {topic_partition.topic!r} was deleted")
            return ObjectLog.of(newest, topic_partition)

        extents = ObjectExtents(lambda: log, refreshed, self.root.objects)
        for run in LogReader(extents, topic_partition).runs(start_offset, end_offset):
            if self.stop.is_set():
                return
            yield run


def _copy_logs(source: _Source, partitions: Collection[TopicPartition], target: Path) -> list[tuple[LogState, int]]:
    """Copy the logs of `partitions`; their states in the copy, and the bytes of their batches."""
    with Workers(_PARTITIONS_AT_ONCE, thread_name_prefix="kafkalog-export") as pool:
        futures = [pool.submit(_copy_partition, source, each, target) for each in partitions]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            source.stop.set()
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]


def _copy_partition(source: _Source, topic_partition: TopicPartition, target: Path) -> tuple[LogState, int]:
    """Create the partition's directory in `target` and copy its log into it, which is then on disk."""
    topic = source.image.topic(topic_partition.topic)
    partition = topic.partitions[topic_partition.partition]
    directory = partition_path(target, topic_partition)
    source.fs.mkdir(directory)
    write_topic_id(directory / PARTITION_METADATA, topic.topic_id, fs=source.fs, durable=False)
    if not partition.state.log_end_offset:
        source.fs.fsync_dir(directory)
        return partition.state, 0
    try:
        copied = _copy_log(source, topic, partition, directory)
    except (OffsetOutOfRangeError, UnknownTopicError) as error:
        raise LogDirError(
            f"records of {topic_partition} were deleted before they were copied ({error}): run the export again, or "
            "without this topic"
        ) from error
    source.fs.fsync_dir(directory)
    return copied


def _copy_log(source: _Source, topic: TopicImage, partition: PartitionImage, directory: Path) -> tuple[LogState, int]:
    topic_partition = TopicPartition(topic.name, partition.partition)
    start_offset, end_offset = partition.state.log_start_offset, partition.state.log_end_offset
    is_tiered = topic.name in source.tiered and len(partition.segments) > 0
    first_offset = partition.segments[-1].end_offset if is_tiered else _first_offset(partition)
    runs = iter(source.runs(topic_partition, first_offset, end_offset))
    first = next(runs, None)
    # The log begins with its first batch, or without one, empty, at its end.
    base_offset = end_offset if first is None else min(int(first.batches["base_offset"][0]), end_offset)
    if is_tiered:
        base_offset = first_offset  # where the remote segments end
    config = broker_config(source.image)
    log = UnifiedLog.open(
        directory,
        config.log_config(topic.configs),
        log_start_offset=base_offset,
        clean_shutdown=True,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        clock=source.clock,
        fs=source.fs,
    )
    with log:
        _take_producers(source, topic, partition, base_offset, log)
        copied_bytes = 0 if first is None else _append(log, first)
        for run in runs:
            copied_bytes += _append(log, run)
        _end_at(log, end_offset, leader_epoch=partition.state.leader_epoch)
        if not is_tiered:
            delete_records(log, start_offset)
        state = replace(log.state(), leader_epoch=partition.state.leader_epoch)
        log.close()
    if is_tiered:
        state = replace(state, log_start_offset=start_offset, local_log_start_offset=base_offset)
        _put_earlier_epochs(directory / LEADER_EPOCH_CHECKPOINT, partition, base_offset, source.fs)
    return state, copied_bytes


def _put_earlier_epochs(path: Path, partition: PartitionImage, base_offset: int, fs: FileSystem) -> None:
    """Add the leader epochs of the remote segments, which end at `base_offset`, to those of the local log."""
    earlier = [each for each in leader_epochs(partition) if each.start_offset < base_offset]
    own = read_epochs(path)
    fs.unlink_if_there(path)
    LeaderEpochCheckpoint.open(path, fs=fs).assign_many([*earlier, *own])


def _first_offset(partition: PartitionImage) -> int:
    """Where to begin: a segment that contains the log start offset is copied whole, as on a file system."""
    start_offset = partition.state.log_start_offset
    containing = (each.base_offset for each in partition.segments if each.end_offset > start_offset)
    return min(start_offset, next(containing, start_offset))


def _take_producers(
    source: _Source, topic: TopicImage, partition: PartitionImage, base_offset: int, log: UnifiedLog
) -> None:
    """Let `log`, which begins at `base_offset`, go on with the producers there: those of the segment object that ends
    there, or of runs before it that were deleted."""
    before = next((each for each in partition.segments if each.end_offset == base_offset), None)
    known = PartitionProducers()
    if before is not None:
        of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
        # FileNotFoundError: retention has taken it away, and with it what these producers have written.
        with contextlib.suppress(FileNotFoundError):
            known.begin_with(producer_snapshot(source.root.objects, of, before))
    batches = partition.producer_batches.table
    known.apply(batches[batches["last_offset"] < base_offset])
    if not known.producers:
        return
    entries = [each.entry() for each in known.producers.values()]
    write_snapshot(segment_file(log.directory, base_offset, PRODUCER_SNAPSHOT_SUFFIX), entries, fs=source.fs)
    log.producers.begin_at(base_offset, entries, source.clock())


def _append(log: UnifiedLog, run: BatchRun) -> int:
    """Append the batches as they are; returns their bytes. Segments that this closes are put on disk and closed."""
    batches = run.batches.copy()
    if int(batches["base_offset"][0]) < log.log_end_offset:
        raise CorruptRecordError(
            file=run.file,
            position=int(batches["position"][0]),
            expected=f"a batch from offset {log.log_end_offset} on",
            found=f"offset {int(batches['base_offset'][0])}",
        )
    batches["position"] -= run.position
    epochs, firsts = np.unique(batches["leader_epoch"], return_index=True)
    for epoch, first in zip(epochs.tolist(), firsts.tolist(), strict=True):
        log.assign_epoch(epoch, int(batches["base_offset"][first]))
    active = log.active_segment
    log.append(run.data, batches)
    if log.active_segment is not active:
        closed = [each for each in log.segments.from_offset(active.base_offset) if each is not log.active_segment]
        log.flush()
        for segment in closed:
            segment.close_files()  # a long log has more segments than a process may open files
    return int(batches["size_bytes"].sum())


def _end_at(log: UnifiedLog, end_offset: int, *, leader_epoch: int) -> None:
    """Let the log end at `end_offset`, also if its last records no longer exist; it is then in an empty segment."""
    if log.log_end_offset < end_offset:
        log.roll(end_offset)
        log.log_end_offset = end_offset
        log.high_watermark_moved()
    if log.epochs.latest is None:
        log.assign_epoch(leader_epoch, end_offset)


def _as_file_root(image: MetadataImage, states: dict[TopicPartition, LogState]) -> MetadataImage:
    """The image of a root on a file system, with the topics of the partitions in `states`."""
    names = {each.topic for each in states}
    topics = {
        name: replace(
            topic,
            partitions=tuple(
                replace(
                    each,
                    state=states[TopicPartition(name, each.partition)],
                    segments=(),
                    runs=NO_RUNS,
                    producer_batches=NO_PRODUCER_BATCHES,
                )
                for each in topic.partitions
            ),
        )
        for name, topic in image.topics.items()
        if name in names
    }
    return replace(
        image,
        format_version=FORMAT_VERSION,
        is_object_root=False,
        topics=topics,
        topic_names={topic.topic_id: name for name, topic in topics.items()},
        objects=NO_OBJECTS,
        dropped=(),
        staging_horizon=StagingHorizon(),
    )


def _properties(root: ObjectRoot, image: MetadataImage) -> MetaProperties:
    identity = root.identity
    assert identity is not None  # a root on an object store cannot be opened without it
    return MetaProperties(
        cluster_id=identity.cluster_id, node_id=image.node.broker_id, directory_id=identity.directory_id
    )
