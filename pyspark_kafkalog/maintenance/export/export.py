"""Export: a log directory's partitions as a cleanly stopped broker leaves them, for a Kafka broker to mount.

    checkpoints in place    recovery-point-, replication- and log-start-offset-checkpoint as of the newest commit
    a copy elsewhere        a native log directory, whole (copy.py), of one on a file system or an object store
    into a broker's         partition directories (segments, indexes, producer snapshots, leader epochs) into those of a
                            stopped broker's topics; partition.metadata stays the broker's, as it contains the topic ids
                            that its controller knows; the checkpoints are merged
    a new broker's          a directory that a new broker starts on, of any root and of a stopped broker's directory

A copied log is closed as a broker closes it. All logs are as of one commit, whatever writers, retention and the cleaner
do meanwhile (file_copy.py). A crash leaves some of a broker's partitions, without checkpoints: run the export again,
with `overwrite`.

`return_to_broker` prepares an adopted directory for its broker, and sets aside the topics and partitions that the
broker does not know:

    <aside>/        a native log directory with the topics that have stranded partitions; in it, partitions that the
                    broker knows are empty, as they go back in place
    <root>/         checkpoints as of the same commit; nothing is moved or removed

The broker renames the directories of stranded partitions to `…-stray` when it starts. By then their records are in
`aside`, with closed segments as hard links, which take no room. Once the topics exist on the broker, `export_to` mounts
them from there. A crash leaves the root as it was, and an unfinished copy in `aside`: run the export again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.export.broker_copy import broker_source
from pyspark_kafkalog.maintenance.export.broker_differences import BrokerDifferences, TopicDifference, find_differences
from pyspark_kafkalog.maintenance.export.broker_directory import ExportedBroker, make_new_broker
from pyspark_kafkalog.maintenance.export.copy import (
    CopyOptions,
    ExportedPartition,
    Source,
    copy_root,
    drop_outdated_offsets,
    exported_partition,
    only_topics,
    write_checkpoints,
)
from pyspark_kafkalog.maintenance.export.file_copy import (
    FileSource,
    PinnedLogs,
    check_log,
    check_pinned,
    file_source,
    pinned_logs,
    refuse_lost,
)
from pyspark_kafkalog.maintenance.export.object_copy import object_source
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.metadata.root_format import is_native_root, is_unfinished_copy
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.commit.open_logs import PartitionLogs
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CHECKPOINTS, read_offset_checkpoint
from pyspark_kafkalog.storage.below_root import follow_root, refuse_link, scan
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    partition_path,
)

__all__ = ["ExportedPartition", "export_in_place", "export_new_broker", "export_to", "refuse_target"]


_LISTED_MAX = 20


def export_in_place(
    root: FileRoot, image: MetadataImage | None = None, set_aside: Collection[TopicPartition] = ()
) -> list[ExportedPartition]:
    """Write the checkpoints of all partitions into the root; cut off what a killed writer left in their logs.

    They are as of the newest commit: after a further write, run it again. Raises DiskFormatError, before anything is
    written, for a log that a broker would not read as this package does, the errors of resuming a log, and
    LogDirError when the newest commit is not that of `image`, or a log that is not `set_aside` begins in remote
    storage.
    """
    with root_lock(root.path, fs=root.fs):
        root.refresh()
        newest = root.store.image
        if image is not None and newest.next_offset != image.next_offset:
            raise LogDirError(f"{root.path} was written to meanwhile: stop all writers and jobs, and run this again")
        _refuse_remote(root.path, newest, set_aside)
        for topic_partition in root.partitions():
            state = newest.partition(topic_partition.topic, topic_partition.partition).state
            directory = partition_path(root.path, topic_partition)
            if state.log_end_offset:
                refuse_lost(directory)
                check_log(directory, topic_partition, state, is_for_broker=True)
        logs = PartitionLogs.at(root.path, newest, clock=root.clock, fs=root.fs)
        exported = []
        for topic_partition in root.partitions():
            state = newest.partition(topic_partition.topic, topic_partition.partition).state
            directory = partition_path(root.path, topic_partition)
            if directory.is_dir() and state.log_end_offset:
                logs.resume(topic_partition, state).suspend()
            exported.append(exported_partition(topic_partition, state))
        write_checkpoints(root.path, exported, cleaned=None, keep={}, fs=root.fs)
    return exported


def _refuse_remote(path: Path, image: MetadataImage, set_aside: Collection[TopicPartition]) -> None:
    """Raise LogDirError if a log that is not `set_aside` begins in remote storage, which its broker does not know."""
    for topic in image.topics.values():
        for each in topic.partitions:
            if each.state.has_remote_start and TopicPartition(topic.name, each.partition) not in set_aside:
                raise LogDirError(
                    f"offsets {each.state.log_start_offset} to {each.state.local_log_start_offset - 1} of {topic.name}-"
                    f"{each.partition} in {path} are in remote storage, which the directory's broker does not know: "
                    "export to another directory with --to, with --new-broker and --tiered to leave them there"
                )


def export_to(
    root: Root,
    target: Path,
    topics: Collection[str] | None = None,
    *,
    link: bool = True,
    overwrite: bool = False,
    tiered: bool = False,
) -> list[ExportedPartition]:
    """Copy the partitions of `topics` (None: all) to `target`, as described above, as of one commit.

    `link` creates hard links of closed segments if the file system supports them. A `target` with a meta.properties is
    a stopped broker's directory. It must contain the partitions' directories, without records in those that are to get
    some, unless `overwrite`. A root on an object store is only copied to a new root; none of the options has a meaning
    then. With `tiered`, segments in remote storage stay there only, which a broker's directory cannot have: its topics
    have ids of their own.
    Raises LogDirError for any other `target` that is not empty, ReadOnlyLogDirError for a broker's directory `root`.
    """
    refuse_target(root, target)
    if is_native_root(target) or not (target / META_PROPERTIES).exists():
        with _source_of(root, CopyOptions(topics=topics, link=link, tiered=tiered)) as source:
            return copy_root(source, target)

    def mount(files: FileRoot) -> list[ExportedPartition]:
        if tiered:
            raise LogDirError(
                f"{target} is a broker's log directory, whose topics have other ids than those that the objects in "
                "remote storage are named by: export without --tiered, or to a new directory with --new-broker"
            )
        return _mount_all(files, target, topics, link=link, overwrite=overwrite)

    def refuse(_: ObjectRoot) -> list[ExportedPartition]:
        raise LogDirError(
            f"{target} is a broker's log directory: export {root.path} to a new directory first, and that one to the "
            "broker's"
        )

    return for_kind(root, mount, refuse)


def export_new_broker(
    root: Root,
    target: Path,
    topics: Collection[str] | None = None,
    *,
    metadata_partitions: int,
    link: bool = True,
    tiered: bool = False,
    fs: FileSystem = LOCAL,
) -> ExportedBroker:
    """Make `target` a new broker's directory with `topics` (None: all) of any root, or of a stopped broker's directory.

    `target` is absent, empty or an unfinished copy. `metadata_partitions` is what the broker's configuration
    rlmm.config.remote.log.metadata.topic.num.partitions says. With `tiered`, segments in remote storage stay there as
    the broker's. So do segment objects of a root on an object store if the topic's cleanup.policy is delete. `fs` is
    used for a `root` that has none. Raises LogDirError for any other `target`, and the errors of `file_source`,
    `object_source` or `broker_source`.
    """
    refuse_target(root, target)
    options = CopyOptions(topics=topics, link=link, tiered=tiered, is_for_broker=True, fs=fs)
    with _source_of(root, options) as source:
        return make_new_broker(source, target, metadata_partitions)


def _source_of(root: Root, options: CopyOptions) -> AbstractContextManager[Source]:
    """The logs to copy, for a block."""
    files, objects = partial(file_source, options), partial(object_source, options)
    return for_kind(root, files, objects, partial(broker_source, options))


def refuse_target(root: Root, target: Path) -> None:
    """Raise LogDirError when `target` is a native log directory or inside of `root`."""
    follow_root(target)
    is_root = is_native_root(target) and not is_unfinished_copy(target)
    real_target = Path(os.path.realpath(target))
    is_inside = any(real_target.is_relative_to(os.path.realpath(directory)) for directory in root.directories)
    if is_root or is_inside:
        raise LogDirError(f"{target} is a log directory of this package, or inside of {root.path}: name another")


def _mount_all(
    root: FileRoot, target: Path, topics: Collection[str] | None, *, link: bool, overwrite: bool
) -> list[ExportedPartition]:
    drop_outdated_offsets(root, topics)
    with pinned_logs(root, topics) as logs, root_lock(target, fs=root.fs):
        mountable = [
            topic_partition
            for topic_partition in logs.partitions
            if _is_mountable(logs, target, topic_partition, overwrite=overwrite)
        ]
        keep = {name: read_offset_checkpoint(target / name) for name in CHECKPOINTS}
        check_pinned(logs, mountable, is_for_broker=True)
        source = FileSource.of(root, logs, logs.image, link=link)
        exported = [_mount(source, target, topic_partition) for topic_partition in mountable]
        write_checkpoints(target, exported, cleaned=logs.cleaned, keep=keep, fs=root.fs)
        root.fs.fsync_dir(target)
        return exported


def _is_mountable(logs: PinnedLogs, target: Path, topic_partition: TopicPartition, *, overwrite: bool) -> bool:
    """Whether to mount the partition: not if it is empty and the broker's has records.

    Raises LogDirError when the broker's directory is missing, or has records that would be replaced.
    """
    directory = partition_path(target, topic_partition)
    refuse_link(directory)
    if not (directory / PARTITION_METADATA).exists():
        raise LogDirError(
            f"the broker's {directory} is missing: create topic {topic_partition.topic} on the broker, with as many "
            "partitions, and stop the broker"
        )
    if overwrite or not any(path.stat().st_size for path in directory.glob("*" + LOG_SUFFIX)):
        return True
    if logs.state(topic_partition).log_end_offset == 0:
        return False
    raise LogDirError(
        f"{directory} has records: pass --overwrite to replace them (also after an export that was interrupted)"
    )


def _mount(source: FileSource, target: Path, topic_partition: TopicPartition) -> ExportedPartition:
    directory = partition_path(target, topic_partition)
    for name in [each.name for each in scan(directory) if not each.is_dir(follow_symlinks=False)]:
        if name != PARTITION_METADATA:
            source.fs.unlink(directory / name)
    return source.copy_log(topic_partition, directory).exported


@dataclass(frozen=True, slots=True)
class ReturnToBroker:
    """The outcome. `differences` is None if no metadata log of a broker is kept; `aside` if nothing was set aside."""

    exported: Sequence[ExportedPartition]
    differences: BrokerDifferences | None
    aside: Path | None = None


def return_to_broker(
    root: FileRoot, *, set_aside: Path | None = None, server_properties: Path | None = None
) -> ReturnToBroker:
    """Export `root` in place. Topics that the broker does not know are copied to `set_aside`, which is new or empty.

    Raises LogDirError with the differences if there are some and `set_aside` is None, if `set_aside` or
    `server_properties` is given but no metadata log of a broker is kept, and if `root` was written to meanwhile.
    """
    drop_outdated_offsets(root, None)
    root.refresh()
    image = root.store.image
    differences = find_differences(root.path, image, server_properties=server_properties)
    if differences is None and (set_aside is not None or server_properties is not None):
        raise LogDirError(f"{root.path / KEPT_METADATA_DIR} is missing: there is no metadata log to compare with")
    if not differences:
        return ReturnToBroker(export_in_place(root, image), differences)
    if set_aside is None:
        raise _refused(root.path, differences)
    if not differences.topics:
        return ReturnToBroker(export_in_place(root, image), differences)
    refuse_target(root, set_aside)
    stranded = {TopicPartition(each.topic.name, number) for each in differences.topics for number in each.stranded}
    _refuse_remote(root.path, image, stranded)
    topics = [_stranded_topic(change) for change in differences.topics]
    with pinned_logs(root, [topic.name for topic in topics]) as logs:
        if logs.image.next_offset != image.next_offset:
            raise LogDirError(f"{root.path} was written to meanwhile: stop all writers and jobs, and run this again")
        copy_root(FileSource.of(root, logs, only_topics(image, topics)), set_aside)
    return ReturnToBroker(export_in_place(root, image, stranded), differences, set_aside)


def _stranded_topic(change: TopicDifference) -> TopicImage:
    stranded = set(change.stranded)
    return replace(
        change.topic,
        partitions=tuple(
            each if each.partition in stranded else PartitionImage(each.partition, LogState())
            for each in change.topic.partitions
        ),
    )


def _refused(root: Path, differences: BrokerDifferences) -> LogDirError:
    listed = list(differences.descriptions())
    more = f"; and {len(listed) - _LISTED_MAX} more" if len(listed) > _LISTED_MAX else ""
    return LogDirError(
        f"the broker does not know what was changed in {root} since it was adopted: "
        f"{'; '.join(listed[:_LISTED_MAX])}{more}. With --set-aside DIR the records that it would not find are copied "
        "to DIR, and the commands to run on the broker are printed"
    )
