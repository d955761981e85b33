"""Verifies a directory apart from its partitions: meta.properties, checkpoints, directories of no partition.

The commit log is authoritative, and the checkpoint files are kept for a Kafka broker that may mount the directory: with
a wrong entry the broker would serve deleted records, or clean from a wrong offset.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, LogDirError
from pyspark_kafkalog.maintenance.retention.delete_records import first_base_offsets
from pyspark_kafkalog.maintenance.verify.findings import NEXT_WRITER, REPAIR, Finding, FindingSink, Severity, confirmed
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR, WORK_DIR
from pyspark_kafkalog.root.brokers.metadata.image import read_broker_metadata
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CHECKPOINTS,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties, read_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions
from pyspark_kafkalog.storage.filesystem import TEMPORARY_SUFFIX
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    parse_partition_dir,
    partition_path,
)

_LEFTOVER_DIR = re.compile(r".+(-delete|-stray|-future)")


def check_native_root(root: FileRoot) -> list[Finding]:
    """The findings on a native log directory, without its commit log and partitions, that a second check confirms."""

    def check() -> list[Finding]:
        root.refresh()
        sink = FindingSink(None)
        image = root.store.image
        _check_meta_properties(root.path, sink, image)
        for name in CHECKPOINTS:
            _check_own_checkpoint(root.path, name, image, sink)
        _check_entries(root.path, sink, image)
        return sink.result()

    return confirmed(check)


def check_broker_root(root: Path) -> list[Finding]:
    """The findings on a broker's directory, without its partitions, that a second check confirms."""

    def check() -> list[Finding]:
        sink = FindingSink(None)
        _check_meta_properties(root, sink, None)
        offsets = {name: _read(root / name, sink, advice=None) for name in CHECKPOINTS}
        _check_named_directories(root, offsets, sink)
        _check_topic_ids(root, sink)
        _check_broker_metadata(root, sink)
        _check_entries(root, sink, None)
        return sink.result()

    return confirmed(check)


def _check_named_directories(
    root: Path, offsets: Mapping[str, Mapping[TopicPartition, int]], sink: FindingSink
) -> None:
    """Check that each partition of a broker's checkpoints, which it writes for all its logs, has its directory."""
    names = set(os.listdir(root))
    pending = {name.rpartition(".")[0] for name in names if _LEFTOVER_DIR.fullmatch(name)}
    named = {**offsets[RECOVERY_POINT_CHECKPOINT], **offsets[REPLICATION_OFFSET_CHECKPOINT]}
    for topic_partition, offset in named.items():
        if partition_path(root, topic_partition).is_dir():
            continue
        is_deleted = str(topic_partition) in pending
        sink.add(
            Severity.WARNING if is_deleted or not offset else Severity.ERROR,
            "directory-missing",
            f"{root}/{topic_partition}",
            offset=offset,
            expected=f"the directory of a partition that the broker's checkpoints have up to offset {offset}",
            found="one that is pending deletion" if is_deleted else "none",
            advice="restore it from a copy, unless its topic was deleted: committed records are missing",
        )


def _check_broker_metadata(root: Path, sink: FindingSink) -> None:
    """Check that all records of a broker's metadata log can be read, and that no adoption has stopped half-way."""
    directory = root / METADATA_DIR
    damage = read_broker_metadata(directory).damage if directory.is_dir() else None
    if damage is not None:
        sink.add(
            Severity.ERROR,
            "metadata-log",
            directory,
            expected="records that can all be read",
            found=damage,
            advice="restore the log from another node of the cluster, or upgrade pyspark_kafkalog: until then, "
            "configurations, topics or entries may be missing",
        )
    for name in (WORK_DIR, KEPT_METADATA_DIR):
        if (root / name).is_dir():
            sink.add(
                Severity.ERROR,
                "unfinished-adoption",
                root / name,
                expected="a broker's directory, or an adopted one",
                found="a directory of an adoption that has not ended",
                advice="run kafkalog adopt again, which completes it; or remove what it left and start the broker: "
                f"rename {KEPT_METADATA_DIR} back to {METADATA_DIR}, and delete {WORK_DIR}",
            )


def _check_topic_ids(root: Path, sink: FindingSink) -> None:
    """Check that no two topics of a broker's directory have the same id, as a copied folder leaves it."""
    topics: dict[str, str] = {}
    for topic_partition in list_partitions(root):
        path = partition_path(root, topic_partition) / PARTITION_METADATA
        try:
            topic_id = read_topic_id(path)
        except (OSError, DiskFormatError):
            continue  # reported with the partition
        topic = topics.setdefault(topic_id, topic_partition.topic)
        if topic != topic_partition.topic:
            sink.add(
                Severity.ERROR,
                "topic-id-twice",
                path,
                position=0,
                expected=f"an id of topic {topic_partition.topic} alone",
                found=f"{topic_id}, which is also that of topic {topic}",
                advice="remove the folder that is a copy, or its partition.metadata: a broker does not start with both",
            )


def _check_meta_properties(root: Path, sink: FindingSink, image: MetadataImage | None) -> None:
    path = root / META_PROPERTIES
    try:
        properties = read_meta_properties(path)
    except FileNotFoundError:
        if image is not None:
            _properties(path, sink, "the root's ids", "no file")
        return
    except DiskFormatError as error:
        sink.add_damage(Severity.ERROR, "meta-properties", error)
        return
    if image is None:
        if properties.node_id is None and properties.cluster_id is None:
            _properties(path, sink, "the ids of the cluster and the broker", "neither")
        return
    if properties.node_id not in image.brokers:
        _properties(path, sink, f"node.id {image.node.broker_id}", str(properties.node_id))
    log_dirs = image.node.log_dirs
    if properties.directory_id is not None and log_dirs and properties.directory_id not in log_dirs:
        _properties(path, sink, f"directory.id {' or '.join(log_dirs)}", properties.directory_id)


def _properties(path: Path, sink: FindingSink, expected: str, found: str) -> None:
    sink.add(
        Severity.ERROR,
        "meta-properties",
        path,
        position=0,
        expected=expected,
        found=found,
        advice="restore the file from a copy: a Kafka broker needs it to mount the root",
    )


def _read(path: Path, sink: FindingSink, *, advice: str | None = REPAIR) -> Mapping[TopicPartition, int]:
    try:
        return read_offset_checkpoint(path)
    except CorruptIndexError as error:
        sink.add_damage(Severity.ERROR, "checkpoint", error, advice=advice)
        return {}


def _check_own_checkpoint(root: Path, name: str, image: MetadataImage, sink: FindingSink) -> None:
    path = root / name
    offsets = _read(path, sink)
    for topic_partition, offset in offsets.items():
        partition = image.find(topic_partition.topic, topic_partition.partition)
        if partition is None:
            _checkpoint(path, sink, topic_partition, "a partition of the root", "none of that name", Severity.INFO)
            continue
        state = partition.state
        if name == LOG_START_OFFSET_CHECKPOINT:
            if offset != state.log_start_offset:
                _checkpoint(path, sink, topic_partition, f"the log start {state.log_start_offset}", str(offset))
        elif not 0 <= offset <= state.log_end_offset:
            _checkpoint(path, sink, topic_partition, f"an offset up to the log end {state.log_end_offset}", str(offset))
    if name == LOG_START_OFFSET_CHECKPOINT:
        for topic_partition, state in _starts_inside(root, image):
            if topic_partition not in offsets:
                _checkpoint(path, sink, topic_partition, f"a line with the log start {state.log_start_offset}", "none")


def _starts_inside(root: Path, image: MetadataImage) -> list[tuple[TopicPartition, LogState]]:
    """Partitions whose log start offset is above the base of their first segment."""
    states = {
        TopicPartition(topic.name, each.partition): each.state
        for topic in image.topics.values()
        for each in topic.partitions
        if each.state.log_start_offset
    }
    first_bases = first_base_offsets(root, states)
    return [(each, states[each]) for each, base in first_bases.items() if states[each].log_start_offset > base]


def _checkpoint(
    path: Path,
    sink: FindingSink,
    topic_partition: TopicPartition,
    expected: str,
    found: str,
    severity: Severity = Severity.WARNING,
) -> None:
    sink.add(
        severity,
        "checkpoint-entry",
        path,
        position=0,
        expected=f"{expected}, for {topic_partition}",
        found=found,
        advice=REPAIR,
    )


def _check_entries(root: Path, sink: FindingSink, image: MetadataImage | None) -> None:
    """Directories and files that belong to no partition."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError as error:
        raise LogDirError(error.errno, f"cannot open the log directory: {error.strerror}", str(root)) from error
    for entry in entries:
        topic_partition = parse_partition_dir(entry.name)
        if _LEFTOVER_DIR.fullmatch(entry.name) and entry.is_dir():
            sink.add(
                Severity.INFO,
                "leftover-directory",
                entry.path,
                expected="no leftover",
                found="a directory pending deletion, or a stray one",
                advice="a deleted topic's is removed after file.delete.delay.ms; inspect a stray one yourself",
            )
        elif entry.name.endswith(TEMPORARY_SUFFIX):
            sink.add(
                Severity.INFO,
                "temporary-file",
                entry.path,
                expected="no leftover",
                found="a small file being written, or left by a crash",
                advice=NEXT_WRITER,
            )
        elif image is not None and entry.is_dir() and _is_stray(topic_partition, entry.name, image):
            sink.add(
                Severity.WARNING,
                "stray-directory",
                entry.path,
                expected="a partition of the root",
                found="none of that name",
                advice="check whether it is needed; no reader sees it",
            )


def _is_stray(topic_partition: TopicPartition | None, name: str, image: MetadataImage) -> bool:
    if topic_partition is None or name == METADATA_DIR:
        return False
    return image.find(topic_partition.topic, topic_partition.partition) is None
