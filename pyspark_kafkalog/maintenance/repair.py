"""Repairs a native log directory after a verification, without changing a committed record.

A step is about one partition, or about the root. Everything that steps write can be derived: indexes and snapshots from
the `.log` files, checkpoints from the image and the batches, hints from the files that exist. Damaged records cannot;
they have to be restored from a copy. A kill leaves some steps done and others not; each file is whole.

Files that other processes also use are changed under the root's lock, closed segments under the partition's maintenance
lock. All steps start from the current image, and can be repeated. If the image cannot be loaded from the commit log,
the root is beyond repair.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError, KafkalogError, LogDirError
from pyspark_kafkalog.maintenance.jobs.partition import partition_lock
from pyspark_kafkalog.maintenance.reindex import reindex_partition
from pyspark_kafkalog.maintenance.retention.delete_records import first_base_offsets, write_log_start_checkpoint
from pyspark_kafkalog.maintenance.swap import SwapTarget, remove_deleted_files
from pyspark_kafkalog.maintenance.verify.findings import Finding
from pyspark_kafkalog.maintenance.verify.root import SNAPSHOT_WITHOUT_ENDS, is_image_of
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH
from pyspark_kafkalog.metadata.delta import apply
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage
from pyspark_kafkalog.metadata.local.backend import (
    START_FILE,
    LocalSnapshots,
    list_snapshots,
    read_snapshot,
    write_pointer,
)
from pyspark_kafkalog.metadata.root_format import HEAD_FILE, OffsetHint, metadata_dir
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns, root_lock
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE, SnapshotId, image_of
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID
from pyspark_kafkalog.root.directories import ensure_partition_directory
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    EpochEntry,
    LeaderEpochCheckpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import write_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import UNFLUSHED_MARKER
from pyspark_kafkalog.storage.log.producer_replay import stored_batches
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    partition_path,
    segment_file,
)
from pyspark_kafkalog.storage.staged_file import remove_abandoned

_IN_USE: Final = "another run works on the partition: repair it when that run has ended"


_LOG_END_CHECKPOINTS: Final = (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT)


def make_directory(root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> None:
    """Create the directory of a partition that was never written to; that of one with records cannot be created."""
    with root_lock(root.path, fs=root.fs):
        topic = root.store.refresh().topic(topic_partition.topic)
        if topic.partitions[topic_partition.partition].state.log_end_offset:
            raise LogDirError(
                f"the directory of {topic_partition} is missing with all its records: restore it from a copy"
            )
        ensure_partition_directory(root.path, topic_partition, topic.topic_id, root.fs)()


def write_partition_topic_id(root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> None:
    """Rewrite partition.metadata, which cannot be read."""
    with root_lock(root.path, fs=root.fs):
        topic_id = root.store.refresh().topic(topic_partition.topic).topic_id
        write_topic_id(partition_path(root.path, topic_partition) / PARTITION_METADATA, topic_id, fs=root.fs)


def finish_swap(root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> None:
    """Finish or undo what a killed run left."""
    with _maintenance_lock(root, topic_partition):
        SwapTarget.of(root, topic_partition, now_ms).finish()


def make_indexes(root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> None:
    """Reindex the partition. Raises LogDirError when another run works on it, or for damaged records."""
    report = reindex_partition(root, topic_partition, now_ms=now_ms)
    if report.skipped is not None:
        raise LogDirError(_IN_USE)
    if report.error is not None:
        raise LogDirError(report.error)


def drop_wrong_snapshots(root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> None:
    """Remove the producer snapshots that contradict the log, according to a verification of the partition."""
    opened = open_root(root.path)
    with _maintenance_lock(root, topic_partition):
        findings = verify(opened, partitions=[topic_partition]).findings
        wrong = {finding.file for finding in findings if finding.what == "producer-snapshot-differs"}
        with root_lock(root.path, fs=root.fs):
            directory = partition_path(root.path, topic_partition)
            for offset in PartitionListing.read(directory).snapshot_offsets:
                path = segment_file(directory, offset, PRODUCER_SNAPSHOT_SUFFIX)
                if str(path) in wrong:
                    root.fs.unlink_if_there(path)


def rewrite_epochs(root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> None:
    """Rewrite leader-epoch-checkpoint from the batches' epochs and the image's. Raises DiskFormatError for damage.

    The epochs of what is in remote storage only are those that the image has for its segments.
    """
    directory = partition_path(root.path, topic_partition)
    partition = root.store.image.partition(topic_partition.topic, topic_partition.partition)
    state = partition.state
    entries = _epochs_of(root, topic_partition, partition)
    with root_lock(root.path, fs=root.fs):
        topic = root.store.refresh().topic(topic_partition.topic)
        if topic.partitions[topic_partition.partition].state != state:
            raise LogDirError(f"{topic_partition} was written to meanwhile: repair it again")
        LeaderEpochCheckpoint(directory / LEADER_EPOCH_CHECKPOINT, fs=root.fs).assign_many(entries)


def _epochs_of(root: FileRoot, topic_partition: TopicPartition, partition: PartitionImage) -> list[EpochEntry]:
    state, local_start = partition.state, partition.state.local_log_start_offset
    entries = _remote_epochs(partition)
    for chunk, file in stored_batches(partition_path(root.path, topic_partition), local_start, state.log_end_offset):
        batches = chunk.batches[chunk.batches["last_offset"] >= local_start]
        batches = batches[batches["base_offset"] < state.log_end_offset]
        epochs = batches["leader_epoch"]
        latest = entries[-1].epoch if entries else -1
        before = np.concatenate([[latest], epochs[:-1]])
        for row in np.flatnonzero(epochs != before).tolist():
            if epochs[row] < before[row]:
                raise CorruptRecordError(
                    file=file,
                    position=int(batches["position"][row]),
                    expected=f"a leader epoch of {int(before[row])} or above",
                    found=str(int(epochs[row])),
                    advice="restore the file from a copy",
                )
            start_offset = max(int(batches["base_offset"][row]), local_start)
            entries.append(EpochEntry(int(epochs[row]), start_offset))
    if entries:
        # Records that the cleaner removed before the first batch had no later epoch.
        entries[0] = EpochEntry(entries[0].epoch, state.log_start_offset)
    if not entries or entries[-1].epoch < state.leader_epoch:
        entries.append(EpochEntry(state.leader_epoch, state.log_end_offset))
    return entries


def _remote_epochs(partition: PartitionImage) -> list[EpochEntry]:
    """The epochs of the log below the local log start, from its segments in remote storage."""
    state, entries = partition.state, list[EpochEntry]()
    for each in (epoch for segment in partition.segments for epoch in segment.leader_epochs):
        start_offset = max(each.start_offset, state.log_start_offset)
        if start_offset < state.local_log_start_offset and (not entries or each.leader_epoch > entries[-1].epoch):
            if entries and entries[-1].start_offset == start_offset:  # that one ends at or below the log start
                entries.pop()
            entries.append(EpochEntry(each.leader_epoch, start_offset))
    return entries


def remove_leftovers(root: FileRoot, topic_partition: TopicPartition, now_ms: int) -> None:
    """Remove what writers and maintenance would remove on their next run: abandoned staged files, `.deleted` files."""
    directory = partition_path(root.path, topic_partition)
    config = root.log_config(topic_partition.topic)
    with root_lock(root.path, fs=root.fs):
        staged = [directory / name for name in PartitionListing.read(directory).staged]
        retention_ms = root.broker_config().staging_retention_ms
        now_ns = file_system_time_ns(root.path, root.fs)
        remove_abandoned(root.path, staged, now_ns=now_ns, retention_ms=retention_ms, fs=root.fs)
        remove_deleted_files(directory, now_ms=now_ms, delay_ms=config.file_delete_delay_ms, fs=root.fs)


@contextlib.contextmanager
def _maintenance_lock(root: FileRoot, topic_partition: TopicPartition) -> Iterator[None]:
    with partition_lock(partition_path(root.path, topic_partition), fs=root.fs) as is_mine:
        if not is_mine:
            raise LogDirError(_IN_USE)
        yield


def replace_snapshots(root: FileRoot, now_ms: int) -> None:
    """Write a snapshot of the newest image durably, then remove the damaged ones."""
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        directory = metadata_dir(root.path)
        LocalSnapshots(directory, root.fs).write(image)
        for snapshot in list_snapshots(directory):
            if not _is_whole(root, snapshot) and snapshot.end_offset != image.next_offset:
                root.fs.unlink_if_there(directory / snapshot.file_name)


def restore_offsets_ends(root: FileRoot, now_ms: int) -> None:
    """Replace snapshots of earlier versions by one that has what the kept commits tell of topics' `offsets_ends`.

    Processes that have the root open keep the image of the old snapshot until they open it again.
    """
    with root_lock(root.path, fs=root.fs):
        current = root.store.refresh()
        directory = metadata_dir(root.path)
        snapshots = {each.end_offset: each for each in list_snapshots(directory)}
        first = min(root.store.log.listed_offsets(), default=current.next_offset)
        start = 0 if first == 0 else min((each for each in snapshots if each >= first), default=current.next_offset)
        image = MetadataImage()
        if start:
            path = directory / SnapshotId(start, LEADER_EPOCH).file_name
            image = image_of(read_snapshot(path), start, str(path))
        for commit in root.store.log.read_from(image.next_offset, many=True):
            image = apply(image, commit)
        if not is_image_of(current, image):
            raise LogDirError(f"{directory}: the commits do not add up to the newest snapshot: verify again")
        LocalSnapshots(directory, root.fs).write(image)
        for end_offset, snapshot in snapshots.items():
            if end_offset not in (start, image.next_offset):
                root.fs.unlink_if_there(directory / snapshot.file_name)
        write_pointer(directory, SnapshotId(image.next_offset, LEADER_EPOCH), root.fs)


def _is_whole(root: FileRoot, snapshot: SnapshotId) -> bool:
    try:
        for _ in read_snapshot(metadata_dir(root.path) / snapshot.file_name).records:
            pass
    except (CorruptRecordError, FileNotFoundError):
        return False
    return True


def rewrite_hints(root: FileRoot, now_ms: int) -> None:
    """Rewrite the pointer, the head and the start from the files that exist."""
    directory = metadata_dir(root.path)
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        whole = [snapshot for snapshot in list_snapshots(directory) if _is_whole(root, snapshot)]
        if whole:
            write_pointer(directory, whole[-1], root.fs)
        else:
            root.fs.unlink_if_there(directory / POINTER_FILE)
        if not (root.path / UNFLUSHED_MARKER).exists():  # with the marker the log may be shorter after a power failure
            OffsetHint(directory / HEAD_FILE, root.fs).write(image.next_offset)
        oldest = min(root.store.log.listed_offsets(), default=None)
        if oldest is not None and (directory / START_FILE).exists():
            OffsetHint(directory / START_FILE, root.fs).write(oldest)


def write_metadata_topic_id(root: FileRoot, now_ms: int) -> None:
    """Write partition.metadata of the commit log."""
    with root_lock(root.path, fs=root.fs):
        write_topic_id(metadata_dir(root.path) / PARTITION_METADATA, METADATA_TOPIC_ID, fs=root.fs)


def rewrite_checkpoints(root: FileRoot, now_ms: int) -> None:
    """Rewrite the offset checkpoints that cannot be read, and remove invalid lines from the others."""
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        for name in (*_LOG_END_CHECKPOINTS, CLEANER_OFFSET_CHECKPOINT):
            _rewrite(root, name, image)
        log_starts = _read(root, LOG_START_OFFSET_CHECKPOINT)
        if log_starts is None:
            root.fs.unlink_if_there(root.path / LOG_START_OFFSET_CHECKPOINT)
    first_bases = dict.fromkeys(log_starts or {}, 0) | first_base_offsets(root.path, _log_ends(image))
    write_log_start_checkpoint(root, first_bases)


def _rewrite(root: FileRoot, name: str, image: MetadataImage) -> None:
    path = root.path / name
    before = _read(root, name)
    if before is not None:
        kept = {
            topic_partition: offset
            for topic_partition, offset in before.items()
            if 0 <= offset <= _log_end(image, topic_partition)
        }
        if kept != before:
            write_offset_checkpoint(path, kept, fs=root.fs)
        return
    if name == CLEANER_OFFSET_CHECKPOINT or (root.path / UNFLUSHED_MARKER).exists():
        root.fs.unlink_if_there(path)  # cleaning, or recovery, then begins at the log start offset
        return
    write_offset_checkpoint(path, _log_ends(image), fs=root.fs)


def _log_ends(image: MetadataImage) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, each.partition): each.state.log_end_offset
        for topic in image.topics.values()
        for each in topic.partitions
    }


def _read(root: FileRoot, name: str) -> Mapping[TopicPartition, int] | None:
    try:
        return read_offset_checkpoint(root.path / name)
    except CorruptIndexError:
        return None


def _log_end(image: MetadataImage, topic_partition: TopicPartition) -> int:
    """The partition's log end offset, -1 for an unknown partition."""
    partition = image.find(topic_partition.topic, topic_partition.partition)
    return -1 if partition is None else partition.state.log_end_offset


def remove_deleted_topics(root: FileRoot, now_ms: int) -> None:
    """Remove the directories of deleted topics whose delay is over."""
    root.remove_deleted_topics(now_ms)


ACTION: Final = "repair"

_REINDEX: Final = (
    "index-missing",
    "index-length",
    "index-order",
    "index-zeros",
    "offset-index-entry",
    "offset-index-end",
    "time-index-entry",
    "time-index-end",
    "txn-index-entry",
    "txn-index-missing",
    "producer-snapshot",
    "producer-snapshot-missing",
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of step: the findings that it repairs, its description and its function."""

    name: str
    whats: tuple[str, ...]
    does: str
    of_partition: Callable[[FileRoot, TopicPartition, int], None] | None = None
    of_root: Callable[[FileRoot, int], None] | None = None


#: In the order of execution.
_KINDS: Final = (
    _Kind(
        "metadata-snapshot",
        ("metadata-snapshot",),
        "write a snapshot of the current metadata, and remove damaged snapshots",
        of_root=replace_snapshots,
    ),
    _Kind(
        "offsets-ends",
        (SNAPSHOT_WITHOUT_ENDS,),
        "write a snapshot that says where offsets ended when topics were created, and remove those that do not",
        of_root=restore_offsets_ends,
    ),
    _Kind(
        "metadata-hints",
        ("metadata-hint",),
        "rewrite kafkalog-newest-snapshot, kafkalog-head and kafkalog-start from the existing files",
        of_root=rewrite_hints,
    ),
    _Kind(
        "metadata-topic-id",
        ("topic-id",),
        "rewrite the metadata log's partition.metadata",
        of_root=write_metadata_topic_id,
    ),
    _Kind(
        "make-directory",
        ("directory-missing",),
        "create the directory of the empty partition",
        of_partition=make_directory,
    ),
    _Kind(
        "topic-id",
        ("topic-id",),
        "rewrite partition.metadata with the topic's id",
        of_partition=write_partition_topic_id,
    ),
    _Kind(
        "finish-swap",
        ("unfinished-swap", "cleaned-file"),
        "finish or undo an interrupted swap of segments, unless another run works on it",
        of_partition=finish_swap,
    ),
    _Kind(
        "drop-snapshots",
        ("producer-snapshot-differs",),
        "remove the producer snapshots that contradict the log",
        of_partition=drop_wrong_snapshots,
    ),
    _Kind(
        "reindex",
        (*_REINDEX, "producer-snapshot-differs"),
        "rebuild missing or wrong indexes and producer snapshots from undamaged .log files",
        of_partition=make_indexes,
    ),
    _Kind(
        "leader-epochs",
        ("leader-epochs", "leader-epoch"),
        "rewrite leader-epoch-checkpoint from the batches",
        of_partition=rewrite_epochs,
    ),
    _Kind(
        "remove-abandoned",
        ("staged-file", "deleted-files"),
        "remove staged files older than staging.retention.ms and .deleted files older than file.delete.delay.ms",
        of_partition=remove_leftovers,
    ),
    _Kind(
        "checkpoints",
        ("checkpoint", "checkpoint-entry"),
        "rewrite wrong offset checkpoint files from the metadata",
        of_root=rewrite_checkpoints,
    ),
    _Kind(
        "remove-deleted-topics",
        ("leftover-directory",),
        "remove the directories of deleted topics older than file.delete.delay.ms",
        of_root=remove_deleted_topics,
    ),
)
_BY_NAME: Final = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One step, for one partition or (None) the root; `because` are the kinds of findings that it repairs."""

    name: str
    partition: TopicPartition | None
    because: tuple[str, ...]

    def tree(self, *, error: str | None = None, is_done: bool = False) -> dict[str, Any]:
        """The step as JSON-compatible values."""
        tree: dict[str, Any] = {
            "action": ACTION,
            "topic": None if self.partition is None else self.partition.topic,
            "partition": None if self.partition is None else self.partition.partition,
            "step": self.name,
            "does": _BY_NAME[self.name].does,
            "because": list(self.because),
            "state": "done" if is_done else "failed" if error else "planned",
        }
        return tree if error is None else {**tree, "error": error}


def plan_steps(findings: Iterable[Finding]) -> list[RepairStep]:
    """The steps that repair the findings, in the order of execution."""
    whats: dict[TopicPartition | None, set[str]] = {}
    for finding in findings:
        whats.setdefault(finding.partition, set()).add(finding.what)
    return [
        RepairStep(kind.name, partition, tuple(sorted(found.intersection(kind.whats))))
        for partition, found in whats.items()
        for kind in _KINDS
        if found.intersection(kind.whats) and (kind.of_root is None) == (partition is not None)
    ]


def take_steps(
    path: Path | str, steps: Sequence[RepairStep], *, now_ms: int | None
) -> list[tuple[RepairStep, str | None]]:
    """Execute the steps in the native log directory at `path`; return each with None, or with the reason it failed."""
    if not steps:
        return []
    root = on_file_system(open_root(path))
    now_ms = root.clock() if now_ms is None else now_ms
    outcomes: list[tuple[RepairStep, str | None]] = []
    for step in steps:
        kind = _BY_NAME[step.name]
        try:
            root.refresh()
            if kind.of_partition is not None and step.partition is not None:
                kind.of_partition(root, step.partition, now_ms)
            elif kind.of_root is not None:
                kind.of_root(root, now_ms)
        except (KafkalogError, OSError, ValueError) as error:
            outcomes.append((step, " ".join(str(error).split())))
        else:
            outcomes.append((step, None))
    return outcomes
