"""Copies the logs of a log directory in an object store, as of one commit, to directories on a file system.

A partition's batches, of its segment objects and then of its runs, are appended to a log with their offsets and leader
epochs. The engine of file roots so makes segments by the topic's configuration, indexes, producer snapshots and the
leader epoch checkpoint. The log is closed as a broker closes it. For a new broker, segment objects can stay where they
are, as its tiered segments: then the log in the directory begins where they end.

Nothing is pinned. Objects do not change, and what a merge has replaced remains for file.delete.delay.ms; after that the
same offsets are read from its segments. Records that retention, delete-records or the deletion of a topic has taken
away meanwhile end the export with an error.

Memory: `_PARTITIONS_AT_ONCE` partitions, each with the pieces of objects that its reader holds (storage/objects).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.maintenance.export.broker_directory import has_remote_storage
from pyspark_kafkalog.maintenance.export.copy import (
    CopiedLog,
    CopyOptions,
    Source,
    chosen_topics,
    drop_outdated_offsets,
    exported_partition,
    make_partition,
    only_topics,
    tiered_segments,
)
from pyspark_kafkalog.maintenance.objects.segments import append_run
from pyspark_kafkalog.metadata.extents import NO_OBJECTS, NO_PRODUCER_BATCHES, NO_RUNS
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, StagingHorizon, TopicImage
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION, RootFormat
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_producers import producers_below
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.reads import leader_epochs
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint, read_epochs
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties
from pyspark_kafkalog.storage.artefacts.producer_snapshot import write_snapshot
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.follower import delete_records
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import (
    INTERNAL_TOPICS,
    LEADER_EPOCH_CHECKPOINT,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import BatchRun
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

_PARTITIONS_AT_ONCE: Final = 4


@contextlib.contextmanager
def object_source(options: CopyOptions, root: ObjectRoot) -> Iterator[Source]:
    """The logs of `root`; for a broker that is `tiered`, segment objects stay if the topic's cleanup.policy is delete.

    Raises UnknownTopicError.
    """
    if options.is_for_broker:
        drop_outdated_offsets(root, options.topics)
    root.refresh()
    partitions, image = root.partitions(options.topics), root.store.image
    tiered: frozenset[str] = frozenset()
    if options.is_for_broker:
        image = chosen_topics(image, partitions, is_for_broker=True)
        partitions = [each for each in partitions if each.topic in image.topics]
        if options.tiered:
            image = _with_remote_storage(image)
            tiered = frozenset(name for name, each in image.topics.items() if has_remote_storage(image, each))
    yield ObjectSource(
        fs=options.fs,
        clock=root.clock,
        properties=_properties(root, image),
        root=root,
        contents=image,
        partitions=partitions,
        tiered=tiered,
        is_for_broker=options.is_for_broker,
    )


def _properties(root: ObjectRoot, image: MetadataImage) -> MetaProperties:
    identity = root.identity
    assert identity is not None  # a root on an object store cannot be opened without it
    return MetaProperties(
        cluster_id=identity.cluster_id, node_id=image.node.broker_id, directory_id=identity.directory_id
    )


def _with_remote_storage(image: MetadataImage) -> MetadataImage:
    """The image with remote.storage.enable for all topics whose segments a broker can have in remote storage."""
    config = broker_config(image)
    topics = [
        replace(each, configs={**each.configs, "remote.storage.enable": "true"})
        if each.name not in INTERNAL_TOPICS and not config.log_config(each.configs).compact
        else each
        for each in image.topics.values()
    ]
    return only_topics(image, topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSource(Source):
    """The Source of `root` as of the image `contents`. `stop` is set when a partition could not be copied.

    The segment objects of the topics in `tiered` stay where they are.
    """

    root: ObjectRoot
    contents: MetadataImage
    partitions: Sequence[TopicPartition]
    tiered: frozenset[str]
    is_for_broker: bool
    stop: threading.Event = field(default_factory=threading.Event)

    def copy(self, target: Path) -> list[CopiedLog]:
        """See Source."""
        with Workers(_PARTITIONS_AT_ONCE, thread_name_prefix="kafkalog-export") as pool:
            futures = [pool.submit(_copy_partition, self, each, target) for each in self.partitions]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                self.stop.set()
                for future in futures:
                    future.cancel()
                raise
            return [future.result() for future in futures]

    def image(self, copied: Sequence[CopiedLog]) -> MetadataImage:
        if self.is_for_broker:
            return self.contents
        return _as_file_root(self.contents, {each.exported.topic_partition: each.state for each in copied})

    def remote_segments(self) -> Mapping[TopicIdPartition, Sequence[RemoteSegment]]:
        return {of: each for of, each in tiered_segments(self.contents).items() if of.topic in self.tiered}

    def runs(self, topic_partition: TopicPartition, start_offset: int, end_offset: int) -> Iterable[BatchRun]:
        """The batches of a partition that overlap the offsets; none once `stop` is set. Raises as `LogReader.runs`."""
        log = ObjectLog.of(self.contents, topic_partition)

        def refreshed() -> ObjectLog:
            newest = self.root.store.refresh()
            if newest.state_of(topic_partition, log.topic_id) is None:
                raise UnknownTopicError(f"topic {topic_partition.topic!r} was deleted")
            return ObjectLog.of(newest, topic_partition)

        extents = log.extents(self.root.objects, refreshed)
        for run in LogReader(extents, topic_partition).runs(start_offset, end_offset):
            if self.stop.is_set():
                return
            yield run


def _copy_partition(source: ObjectSource, topic_partition: TopicPartition, target: Path) -> CopiedLog:
    """Create the partition's directory in `target` and copy its log into it, which is then on disk."""
    topic = source.contents.topic(topic_partition.topic)
    partition = topic.partitions[topic_partition.partition]
    directory = make_partition(target, topic_partition, topic.topic_id, source.fs)
    state, copied_bytes = partition.state, 0
    if state.log_end_offset:
        try:
            state, copied_bytes = _copy_log(source, topic, partition, directory)
        except (OffsetOutOfRangeError, UnknownTopicError) as error:
            raise LogDirError(
                f"records of {topic_partition} were deleted before they were copied ({error}): run the export again, "
                "or without this topic"
            ) from error
    source.fs.fsync_dir(directory)
    return CopiedLog(exported_partition(topic_partition, state, copied_bytes=copied_bytes), state)


def _copy_log(
    source: ObjectSource, topic: TopicImage, partition: PartitionImage, directory: Path
) -> tuple[LogState, int]:
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
    config = broker_config(source.contents)
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
        _take_producers(source, topic_partition, base_offset, log)
        copied_bytes = 0 if first is None else append_run(log, first)
        for run in runs:
            copied_bytes += append_run(log, run)
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


def _take_producers(source: ObjectSource, partition: TopicPartition, base_offset: int, log: UnifiedLog) -> None:
    """Let `log`, which begins at `base_offset`, continue with the producers there."""
    try:
        known = producers_below(source.contents, source.root.objects, partition, base_offset)
    except FileNotFoundError:
        return  # retention has taken the segment before it away, and with it what these producers have written
    if not known.producers:
        return
    entries = [each.entry() for each in known.producers.values()]
    write_snapshot(segment_file(log.directory, base_offset, PRODUCER_SNAPSHOT_SUFFIX), entries, fs=source.fs)
    log.producers.begin_at(base_offset, entries, source.clock())


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
        format=RootFormat(FORMAT_VERSION),
        topics=topics,
        topic_names={topic.topic_id: name for name, topic in topics.items()},
        objects=NO_OBJECTS,
        dropped=(),
        staging_horizon=StagingHorizon(),
    )
