"""Segments of an object log: built on disk of its batches, fetched, and committed in the place of extents.

    fetch_log          the `.log` of a segment object as a file
    append_run         batches of a log in a store, appended to a log on disk with their offsets and leader epochs
    replace_extents    the last step of a merge, a cleaning or a reindexing

The commit names the extents to replace, and leaves a partition out if one of them is gone: another job has replaced
it, or retention has dropped it. Then the new objects are deleted at once, since no commit will ever name them. A kill
before the commit leaves them to the clean-up (clean_up.py); after it the old objects are dropped, and deleted after a
delay.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.metadata.extent_changes import with_segments
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.store import ObjectStore, ObjectStoreError
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.reader import BatchRun
from pyspark_kafkalog.tiered.objects import WINDOW_BYTES
from pyspark_kafkalog.tiered.own_segments import segment_keys
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition

_LOG: Final = logging.getLogger(__name__)


def append_run(log: UnifiedLog, run: BatchRun) -> int:
    """Append the batches as they are; returns their bytes. Segments that this closes are put on disk and closed.

    Raises CorruptRecordError for offsets below the end of `log`.
    """
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


def fetch_log(extent: RemoteExtent[SegmentObject], path: Path, fs: FileSystem) -> int:
    """Write the segment's `.log` to the new file `path`, which is then on disk; returns its bytes."""
    size_bytes = extent.known_size_bytes
    window = memoryview(bytearray(min(WINDOW_BYTES, size_bytes)))
    with contextlib.closing(extent.open()) as source:
        fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for start in range(0, size_bytes, WINDOW_BYTES):
                count = source.read_into(start, window[: size_bytes - start])
                fs.pwrite_all(fd, window[:count], start)
            fs.fsync(fd)
        finally:
            fs.close(fd)
    return size_bytes


def replace_extents(
    metadata: MetadataStore,
    objects: ObjectStore,
    records: Sequence[tuple[TopicIdPartition, SegmentObjectsRecord]],
    *,
    operation: str,
) -> set[TopicPartition]:
    """Commit the records of those partitions whose extents are still there, and return these partitions.

    The segments of all records have been put. Raises the errors of a commit, also for a record that was planned below
    the staging horizon, and ObjectStoreError.
    """
    made: set[TopicPartition] = set()

    def build(newest: MetadataImage) -> list[MetadataRecord]:
        there = [(of, record) for of, record in records if extents_are_there(newest, of, record)]
        made.clear()
        made.update(of.topic_partition for of, _ in there)
        return [record for _, record in there]

    if records:
        metadata.commit(build, operation=operation)
    lost = [
        key
        for of, record in records
        if of.topic_partition not in made
        for each in record.segments
        for key in segment_keys(of, each.base_offset, each.segment_id)
    ]
    _take_back(objects, lost)
    return made


def _take_back(objects: ObjectStore, keys: Sequence[str]) -> None:
    """Delete what was put for nothing. A failure is left to the clean-up: the commit of the others is made."""
    try:
        if keys:
            objects.delete(keys)
    except ObjectStoreError as error:
        _LOG.warning("objects that no commit names are left to the clean-up: %s", error)


def segments_record(
    of: TopicIdPartition,
    planned_at: int,
    replaced: Sequence[SegmentObject],
    segments: Sequence[SegmentObject],
    *,
    replaced_runs: int = 0,
) -> SegmentObjectsRecord:
    """The record with which `segments` take the place of `replaced` and of the runs after them."""
    return SegmentObjectsRecord(
        topic_id=of.topic_id,
        partition=of.partition,
        planned_at=planned_at,
        replaced_runs=replaced_runs,
        replaced_segments=tuple(each.segment_id for each in replaced),
        segments=tuple(segments),
    )


def extents_are_there(image: MetadataImage, of: TopicIdPartition, record: SegmentObjectsRecord) -> bool:
    """Whether the extents that `record` replaces are in `image`, as they were."""
    partition = image.find(of.topic, of.partition)
    if partition is None or image.topics[of.topic].topic_id != of.topic_id:
        return False
    try:
        with_segments(str(of.topic_partition), partition, record)
    except InvalidRecordError:
        return False
    return True
