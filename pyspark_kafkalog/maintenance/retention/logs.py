"""The logs that retention works on: segments of a file root with their remote copies, and logs in an object store.

*On a file system*

plan      under the partition's maintenance lock, from the image, the directory and the time indexes
remove    rename the files below the local log start to `.deleted` (delete_records.py); remove files renamed at least
          file.delete.delay.ms ago, and the directories of deleted topics
finish    remove staged files of writes that were abandoned for staging.retention.ms; delete from remote storage what
          commits have dropped, and what killed copies have left (objects/clean_up.py)

*In an object store* whole segment objects and runs are deleted, by the rules for segments. The commit that raises log
starts drops the extents below from the image (metadata/extent_changes.trimmed), which lists their objects as dropped.
No lock is held: log starts only rise, so that the plans of two runs agree. The end of the run cleans up the root
(objects/clean_up.py), which deletes objects that any commit has dropped, and those of abandoned writes. The remote
segments of a file root are dropped and deleted in the same way.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition_lock import partition_lock
from pyspark_kafkalog.maintenance.objects.jobs import clean_up_root
from pyspark_kafkalog.maintenance.objects.stored import stored_extents
from pyspark_kafkalog.maintenance.retention.delete_records import (
    first_base_if_done,
    mark_deleted_below_log_start,
    write_log_start_checkpoint,
)
from pyspark_kafkalog.maintenance.retention.plan import PlannedRetention, StoredPart, plan_retention, segment_parts
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory, remove_deleted_files
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.leader_epochs import read_epochs
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, TopicPartition, partition_path
from pyspark_kafkalog.storage.segment.stored import StoredSegment, stored_segments
from pyspark_kafkalog.storage.staging.staged_file import remove_abandoned, staged_files
from pyspark_kafkalog.tiered.segments import TopicIdPartition

_LOG: Final = logging.getLogger(__name__)


class RetainedFiles:
    """The logs of a root on a file system, for one run."""

    def __init__(self, root: FileRoot, now_ms: int | None, *, dry_run: bool) -> None:
        self._root = root
        self._asked_ms = now_ms
        self._now_ms = root.clock() if now_ms is None else now_ms
        self._dry_run = dry_run
        #: The base offsets of the first segments of the partitions of the present task.
        self._first_bases: dict[TopicPartition, int] = {}
        #: Those of partitions in which nothing is to be removed.
        self._done: dict[TopicPartition, int] = {}

    def take(self, topic_partition: TopicPartition, locks: ExitStack) -> bool:
        """Take the partition's maintenance lock; False when another run holds it."""
        directory = partition_path(self._root.path, topic_partition)
        return not directory.is_dir() or locks.enter_context(partition_lock(directory, fs=self._root.fs))

    def plan(self, topic_partition: TopicPartition) -> PlannedRetention:
        topic = self._root.store.image.topic(topic_partition.topic)
        partition = self._root.store.image.partition(topic_partition.topic, topic_partition.partition)
        state = partition.state
        directory = partition_path(self._root.path, topic_partition)
        config = self._root.log_config(topic_partition.topic)
        listing: PartitionListing | None = None
        try:
            listing = PartitionListing.read(directory)
        except FileNotFoundError:
            has_directory(self._root, topic_partition)  # raises if there should be one
        if listing is not None and (listing.cleaned or listing.swaps) and not self._dry_run:
            SwapTarget.of(self._root, topic_partition, self._now_ms).finish()
            listing = PartitionListing.read(directory)
        segments = stored_segments(directory, state, listing=listing)
        of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
        remote = self._remote(of, partition)

        def largest_timestamp_ms(part: StoredSegment | StoredPart) -> int:
            if isinstance(part, StoredPart):
                return part.max_timestamp_ms
            if part.base_offset == state.active_base_offset:
                return state.active_max_timestamp_ms
            return part.largest_timestamp_ms(directory)

        plan = plan_retention(segments, remote, largest_timestamp_ms, config, state, now_ms=self._now_ms)
        planned = PlannedRetention(
            topic_partition, topic.topic_id, state, config, plan, has_remote_segments=bool(partition.segments)
        )
        if planned.move is not None:
            read_epochs(directory / LEADER_EPOCH_CHECKPOINT)  # before the commit: the epochs are cut after it
        elif listing is not None and not self._dry_run:
            first_base = first_base_if_done(directory, listing, state)
            if first_base is not None:
                self._done[topic_partition] = first_base
        return planned

    def _remote(self, of: TopicIdPartition, partition: PartitionImage) -> list[StoredPart]:
        def put_ms(segment: SegmentObject) -> int:
            storage = self._root.remote_storage
            assert storage is not None  # it stays as long as there are segments (root/admin.py)
            return storage.store().head(storage.keys(of, segment)[0]).last_modified_ms

        return segment_parts(partition, put_ms)

    def remove_dropped(self, planned: PlannedRetention) -> None:
        topic_partition = planned.topic_partition
        if topic_partition in self._done:
            self._first_bases[topic_partition] = self._done.pop(topic_partition)
            return
        first_base = mark_deleted_below_log_start(self._root, topic_partition, planned.topic_id, now_ms=self._now_ms)
        if first_base is not None:
            self._first_bases[topic_partition] = first_base
            remove_deleted_files(
                partition_path(self._root.path, topic_partition),
                now_ms=self._now_ms,
                delay_ms=planned.config.file_delete_delay_ms,
                fs=self._root.fs,
            )

    def end_task(self) -> None:
        first_bases, self._first_bases = self._first_bases, {}
        try:
            write_log_start_checkpoint(self._root, first_bases)
        except (KafkalogError, OSError) as error:
            _LOG.warning("log-start-offset-checkpoint is not updated: %s", error)

    def finish(self) -> None:
        self._remove_abandoned()  # first: on a full disk this makes room for what follows
        self._root.remove_deleted_topics(self._asked_ms)
        clean_up_root(self._root, now_ms=self._asked_ms)

    def _remove_abandoned(self) -> None:
        """Remove the staged files of writes that were abandoned for staging.retention.ms."""
        root = self._root
        staged = list(staged_files(root.path))
        if staged:
            retention_ms = root.broker_config().staging_retention_ms
            now_ns = file_system_time_ns(root.path, root.fs)
            remove_abandoned(root.path, staged, now_ns=now_ns, retention_ms=retention_ms, fs=root.fs)


class RetainedObjects:
    """The logs of a root in an object store, for one run."""

    def __init__(self, root: ObjectRoot, now_ms: int | None) -> None:
        self._root = root
        self._asked_ms = now_ms
        self._now_ms = root.clock() if now_ms is None else now_ms

    def take(self, topic_partition: TopicPartition, locks: ExitStack) -> bool:
        return True

    def plan(self, topic_partition: TopicPartition) -> PlannedRetention:
        image = self._root.store.image
        topic = image.topic(topic_partition.topic)
        state = image.partition(topic_partition.topic, topic_partition.partition).state
        config = self._root.log_config(topic_partition.topic)
        extents = stored_extents(self._root, topic_partition, self._now_ms)
        plan = plan_retention((), extents, lambda extent: extent.max_timestamp_ms, config, state, now_ms=self._now_ms)
        return PlannedRetention(topic_partition, topic.topic_id, state, config, plan)

    def remove_dropped(self, planned: PlannedRetention) -> None:
        """Does nothing: the clean-up of the whole root does it, after the delay."""

    def end_task(self) -> None:
        pass

    def finish(self) -> None:
        clean_up_root(self._root, now_ms=self._asked_ms)
