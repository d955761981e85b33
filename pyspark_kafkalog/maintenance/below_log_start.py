"""After a log start has moved up: what lies below it wholly is put aside, and Kafka's files about it follow.

    <partition>/<base>.log|.index|.timeindex|.txnindex|.snapshot  ->  …  .deleted, the oldest first
    <partition>/leader-epoch-checkpoint                           begins at the log start
    <root>/log-start-offset-checkpoint                            a line where it lies above the first segment's base

All of it follows from the image, so it can be done at any time after the commit, and again: a crash at any step is made
good by the next run, and so are leader epochs that a full disk had no room for. Names are changed under the root's
lock, a bounded number at a time, and only while the topic is still the one that was looked at: under the same path
another of its name might lie.
"""

from __future__ import annotations

import bisect
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pyspark_kafkalog.maintenance.deleted_files import mark_deleted
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.own_root import OwnRoot
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.storage.filesystem import is_out_of_space
from pyspark_kafkalog.storage.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.listing import list_base_offsets
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from pyspark_kafkalog.storage.offset_checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.staging_cleanup import remove_committed_names

_LOG: Final = logging.getLogger(__name__)

#: How many names are changed while a writer may be waiting: some milliseconds' worth.
_NAMES_A_LOCK: Final = 512
#: A `.log` goes before its indexes: a load sweeps up indexes that have none.
_ORDER: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX)


def put_aside_below_log_start(
    root: OwnRoot, topic_partition: TopicPartition, topic_id: str, *, now_ms: int
) -> int | None:
    """Do what is described above for one partition; returns the base offset of the first segment that stays.

    0 when that is an empty one whose files are still to be created; None when there is none, or the topic is another
    one by now. The caller keeps other maintenance off the partition.
    """
    directory = root.path / str(topic_partition)
    names: list[str] | None = None
    first_base: int | None = None
    while names is None or names:
        with root_lock(root.path, fs=root.fs):
            state = _state_of(root, topic_partition, topic_id)
            if state is None or not directory.is_dir():
                return None
            if names is None:
                first_base = _first_kept_base(directory, state)
                names = [] if first_base is None else _names_below(directory, first_base)
                try:
                    _cut_epochs(directory, state, root)
                except OSError as error:
                    if not is_out_of_space(error):
                        raise
                    _LOG.warning("%s: the leader epochs stay as they are until the next run: %s", directory, error)
                remove_committed_names(directory, state.active_base_offset, root.fs)
            mark_deleted(directory, names[:_NAMES_A_LOCK], now_ms=now_ms, fs=root.fs)
        names = names[_NAMES_A_LOCK:]
    if first_base is not None and not segment_file(directory, first_base, LOG_SUFFIX).exists():
        return 0
    return first_base


def cut_epochs(root: OwnRoot, topic_partition: TopicPartition, topic_id: str) -> int | None:
    """Let the leader epochs begin at the log start; returns the base offset of the first segment.

    None when there is none, or the topic is another one by now.
    """
    directory = root.path / str(topic_partition)
    with root_lock(root.path, fs=root.fs):
        state = _state_of(root, topic_partition, topic_id)
        if state is None or not directory.is_dir():
            return None
        _cut_epochs(directory, state, root)
        return _first_base(directory, state)


def note_log_starts(root: OwnRoot, first_bases: Mapping[TopicPartition, int]) -> None:
    """Bring the lines of these partitions in log-start-offset-checkpoint up to date; deleted topics' lines go.

    `first_bases` are the base offsets of their first segments. Kafka takes the log start from there unless it is told.
    """
    path = root.path / LOG_START_OFFSET_CHECKPOINT
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        before = read_offset_checkpoint(path)
        offsets: dict[TopicPartition, int] = {}
        for where in (*before, *first_bases):
            log_start_offset = _log_start_in(image, where)
            if log_start_offset > first_bases.get(where, 0):
                offsets[where] = log_start_offset
        if offsets != before:
            write_offset_checkpoint(path, offsets, fs=root.fs)


def _log_start_in(image: MetadataImage, where: TopicPartition) -> int:
    """The partition's log start, 0 when there is no such partition."""
    topic = image.topics.get(where.topic)
    if topic is None or not 0 <= where.partition < len(topic.partitions):
        return 0
    return topic.partitions[where.partition].state.log_start_offset


def _state_of(root: OwnRoot, topic_partition: TopicPartition, topic_id: str) -> LogState | None:
    topic = root.store.refresh().topics.get(topic_partition.topic)
    if topic is None or topic.topic_id != topic_id:
        return None
    return topic.partitions[topic_partition.partition].state


def _first_base(directory: Path, state: LogState) -> int | None:
    return min((base for base in list_base_offsets(directory) if base <= state.active_base_offset), default=None)


def _first_kept_base(directory: Path, state: LogState) -> int | None:
    """The segment that holds the log start; at most the active one, as what lies above that is not committed."""
    if state.log_start_offset == state.active_base_offset:
        return state.active_base_offset  # also while its files do not exist: of a new log, or after a full disk
    bases = list_base_offsets(directory)
    bases = bases[: bisect.bisect_right(bases, state.active_base_offset)]
    if not bases:
        return None
    return bases[max(bisect.bisect_right(bases, state.log_start_offset) - 1, 0)]


def _names_below(directory: Path, first_base: int) -> list[str]:
    """Names of all files of segments below `first_base`, the oldest segment first."""
    found = []
    for name in _file_names(directory):
        parsed = parse_segment_file(name)
        if parsed is not None and parsed[0] < first_base:
            found.append((parsed[0], _ORDER.index(parsed[1]), name))
    return [name for _, _, name in sorted(found)]


def _file_names(directory: Path) -> Iterable[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _cut_epochs(directory: Path, state: LogState, root: OwnRoot) -> None:
    epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT, fs=root.fs)
    epochs.truncate_from_start(state.log_start_offset)
