"""Deletes records below an offset, as Kafka's DeleteRecords request does, by increasing the log start offset.

The offset may be inside a segment, and inside a batch: readers begin at it. Whole segments below it are removed by the
next retention run, whatever the cleanup policy. The offsets of any number of partitions change in one commit. Source of
the rules: deleteRecordsOnLeader of kafka.cluster.Partition and deleteRecordsOnLocalLog of kafka.server.ReplicaManager.

After the commit the files below the local log start offset, which is the log start offset unless the log begins in
remote storage, are marked for deletion, and Kafka's own files follow:

    <partition>/<base>.log|.index|.timeindex|.txnindex|.snapshot  ->  …  .deleted, the oldest first
    <partition>/leader-epoch-checkpoint                           begins at the log start offset
    <root>/log-start-offset-checkpoint                            a line if it is above the base of the first segment,
                                                                  or if remote storage has segments

All of this follows from the image, so it can be done at any time after the commit, and repeated: the next run repairs a
crash at any step, and leader epochs for which a full disk had no room. Files are renamed under the root's lock, a
bounded number at a time, and only while the topic id is unchanged: the directory might belong to a re-created topic.

In an object store, and in remote storage, there are no such files: the commit drops whole segments and runs, and the
clean-up deletes them.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import InvalidTopicError, KafkalogError, OffsetOutOfRangeError, PolicyViolationError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.swap import mark_deleted
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.commit.log_starts import LogStartMove, MovedLogStart, move_log_starts, preview_log_starts
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    LeaderEpochCheckpoint,
    offsets_by_partition,
    read_epochs,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.filesystem import is_out_of_space
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    INTERNAL_TOPICS,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SEGMENT_SUFFIXES,
    TopicPartition,
    offset_file_name,
    partition_path,
    segment_file,
)
from pyspark_kafkalog.storage.staged_file import remove_committed_names

_LOG: Final = logging.getLogger(__name__)

#: Files renamed under one lock, while writers may wait: this takes some milliseconds.
_NAMES_A_LOCK: Final = 512

#: A `.log` is renamed before its indexes: loading a log removes indexes without a `.log`.
_ORDER: Final = (*SEGMENT_SUFFIXES, PRODUCER_SNAPSHOT_SUFFIX)


def mark_deleted_below_log_start(
    root: FileRoot, topic_partition: TopicPartition, topic_id: str, *, now_ms: int
) -> int | None:
    """Mark the files of one partition below its local log start offset; return the base offset of the first remaining
    segment.

    0 if that is an empty segment whose files do not exist yet. None if there is no segment or the topic was deleted or
    re-created. The caller holds the partition's maintenance lock.
    """
    directory = partition_path(root.path, topic_partition)
    names: list[str] | None = None
    first_base: int | None = None
    while names is None or names:
        with root_lock(root.path, fs=root.fs):
            state = root.store.refresh().state_of(topic_partition, topic_id)
            if state is None or not directory.is_dir():
                return None
            if names is None:
                listing = PartitionListing.read(directory)
                first_base = _first_kept_base(listing.base_offsets, state)
                names = _names_below(listing, first_base, state)
                try:
                    _cut_epochs(directory, state, root)
                except OSError as error:
                    if not is_out_of_space(error):
                        raise
                    _LOG.warning("%s: the leader epochs are unchanged until the next run: %s", directory, error)
                remove_committed_names(directory, state.active_base_offset, root.fs)
            mark_deleted(directory, names[:_NAMES_A_LOCK], now_ms=now_ms, fs=root.fs)
        names = names[_NAMES_A_LOCK:]
    if first_base is not None and not segment_file(directory, first_base, LOG_SUFFIX).exists():
        return 0
    return first_base


def first_base_if_done(directory: Path, listing: PartitionListing, state: LogState) -> int | None:
    """What `mark_deleted_below_log_start` would return for the partition, if that has nothing to do; else None.

    It has nothing to do in most runs, and needs neither the root's lock nor another listing to find that out.
    """
    first_base = _first_kept_base(listing.base_offsets, state)
    if first_base is None or not listing.is_tidy or _names_below(listing, first_base, state):
        return None
    if state.log_start_offset:
        try:
            epochs = read_epochs(directory / LEADER_EPOCH_CHECKPOINT)
        except (KafkalogError, OSError):
            return None
        if epochs and epochs[0].start_offset < state.log_start_offset:
            return None
    return first_base if first_base in listing.files[LOG_SUFFIX] else 0


def cut_epochs(root: FileRoot, topic_partition: TopicPartition, topic_id: str) -> int | None:
    """Make the leader epochs begin at the log start offset; return the base offset of the first segment.

    None if there is no segment or the topic was deleted or re-created.
    """
    directory = partition_path(root.path, topic_partition)
    with root_lock(root.path, fs=root.fs):
        state = root.store.refresh().state_of(topic_partition, topic_id)
        if state is None or not directory.is_dir():
            return None
        _cut_epochs(directory, state, root)
        return _first_base(directory, state)


def write_log_start_checkpoint(root: FileRoot, first_bases: Mapping[TopicPartition, int]) -> None:
    """Update the lines of these partitions in log-start-offset-checkpoint, and remove those of deleted topics.

    `first_bases` are the base offsets of their first segments: without a line, Kafka takes the log start offset from
    there. A partition with remote segments always has a line, as a broker's has.
    """
    path = root.path / LOG_START_OFFSET_CHECKPOINT
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        before = offsets_by_partition(path)
        changed: dict[TopicPartition, int | None] = {}
        for topic_partition, first_base in first_bases.items():
            partition = image.find(topic_partition.topic, topic_partition.partition)
            line = None
            if partition is not None and (partition.segments or partition.state.log_start_offset > first_base):
                line = partition.state.log_start_offset
            if line != before.get(topic_partition):
                changed[topic_partition] = line
        gone = {each.topic for each in before} - image.topics.keys()
        if changed or gone:
            offsets = {
                each: at for each, at in {**before, **changed}.items() if at is not None and each.topic not in gone
            }
            write_offset_checkpoint(path, offsets, fs=root.fs)


def first_base_offsets(root: Path, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The base offset of the first segment of each of these partitions that has one."""
    found = {}
    for each in partitions:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            bases = list_base_offsets(partition_path(root, each))
            if bases:
                found[each] = bases[0]
    return found


def _first_base(directory: Path, state: LogState) -> int | None:
    return min((base for base in list_base_offsets(directory) if base <= state.active_base_offset), default=None)


def _first_kept_base(bases: Sequence[int], state: LogState) -> int | None:
    """The base of the segment with the local log start offset; at most the active one: nothing above is committed."""
    if state.local_log_start_offset == state.active_base_offset:
        return state.active_base_offset  # even if its files do not exist: in a new log, or after a full disk
    bases = bases[: bisect.bisect_right(bases, state.active_base_offset)]
    if not bases:
        return None
    return bases[max(bisect.bisect_right(bases, state.local_log_start_offset) - 1, 0)]


def _names_below(listing: PartitionListing, first_base: int | None, state: LogState) -> list[str]:
    """Names of all files of segments below `first_base`, oldest segment first; none in most logs."""
    if not first_base or not state.local_log_start_offset:
        return []
    files = listing.files
    found = [(base, at) for at, suffix in enumerate(_ORDER) for base in files[suffix] if base < first_base]
    return [offset_file_name(base, _ORDER[at]) for base, at in sorted(found)]


def _cut_epochs(directory: Path, state: LogState, root: FileRoot) -> None:
    if not state.log_start_offset:
        return  # the first epoch begins there at the earliest
    epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT, fs=root.fs)
    epochs.truncate_from_start(state.log_start_offset)


ACTION: Final = "delete-records"

#: Stands for the high watermark.
HIGH_WATERMARK: Final = -1


def delete_records(
    root: Root, offsets: Mapping[TopicPartition, int], *, dry_run: bool = False
) -> list[PartitionReport]:
    """Increase the log start offset of each partition to the given offset, -1 for the high watermark, in one commit.

    Returns one report for each partition, with the resulting log start offset; one that is already above the given
    offset is unchanged. As in a broker's response, each partition has its own error, and the others continue: an offset
    below -1 or above the high watermark, an internal topic, a topic whose cleanup.policy does not include delete, an
    unknown topic. With `dry_run` nothing changes. Raises ReadOnlyLogDirError for a broker's directory and for a
    root that follows a leader, and the errors of the commit.
    """
    began = time.perf_counter()
    results = move_to(root.native(), offsets, dry_run=dry_run)
    seconds = time.perf_counter() - began
    return [_report(results[topic_partition], seconds) for topic_partition in sorted(offsets)]


def move_to(
    native: NativeRoot, offsets: Mapping[TopicPartition, int], *, dry_run: bool = False
) -> dict[TopicPartition, MovedLogStart]:
    """As `delete_records`; returns each partition's state afterwards, or the error that prevented it."""
    native.refresh()
    native.check_writable()
    files: FileRoot | None = for_kind(native, lambda root: root, lambda _: None)
    results: dict[TopicPartition, MovedLogStart] = {}
    moves = []
    for topic_partition, offset in sorted(offsets.items()):
        try:
            move = _move(native, topic_partition, offset)
            if files is not None:  # before the commit: the epochs are cut after it
                read_epochs(partition_path(files.path, topic_partition) / LEADER_EPOCH_CHECKPOINT)
            moves.append(move)
        except (KafkalogError, OSError) as error:
            results[topic_partition] = MovedLogStart(topic_partition=topic_partition, error=error)
    moved = preview_log_starts(native, moves) if dry_run else move_log_starts(native, moves, operation="delete records")
    results |= {each.topic_partition: each for each in moved}
    if not dry_run and files is not None:
        _update_kafka_files(files, moved)
    return results


def _move(root: NativeRoot, topic_partition: TopicPartition, offset: int) -> LogStartMove:
    if topic_partition.topic in INTERNAL_TOPICS:
        raise InvalidTopicError(f"cannot delete records of internal topic {topic_partition.topic}")
    if not root.log_config(topic_partition.topic).delete:
        raise PolicyViolationError(
            f"records of {topic_partition} cannot be deleted: the topic's cleanup.policy does not have delete"
        )
    if offset < HIGH_WATERMARK:
        raise OffsetOutOfRangeError(f"offset {offset} of {topic_partition} is not valid: expected 0 or more, or -1")
    return LogStartMove(
        topic_partition=topic_partition, log_start_offset=offset, to_high_watermark=offset == HIGH_WATERMARK
    )


def _update_kafka_files(root: FileRoot, moved: Iterable[MovedLogStart]) -> None:
    """Update Kafka's own files; the next retention run repairs what fails here."""
    first_bases = {}
    try:
        for each in moved:
            if each.error is None:
                first_base = cut_epochs(root, each.topic_partition, each.topic_id)
                if first_base is not None:
                    first_bases[each.topic_partition] = first_base
        write_log_start_checkpoint(root, first_bases)
    except (KafkalogError, OSError) as error:
        _LOG.warning("records are deleted, but the files for Kafka are left to the next retention run: %s", error)


def _report(each: MovedLogStart, seconds: float) -> PartitionReport:
    return replace(
        empty_report(each.topic_partition, ACTION),
        log_start_offset=None if each.after is None else each.after.log_start_offset,
        seconds=seconds,
        error=None if each.error is None else str(each.error),
    )
