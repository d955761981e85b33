"""Verifies the root apart from its partitions: meta.properties, the offset checkpoints, directories of no partition.

In a native log directory the commit log is authoritative, and the checkpoint files are kept for a Kafka broker that may
mount it: with a wrong entry the broker would serve deleted records, or clean from a wrong offset.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify.findings import NEXT_WRITER, REPAIR, Finding, FindingSink, Severity
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CHECKPOINTS,
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.filesystem import TEMPORARY_SUFFIX
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import META_PROPERTIES, TopicPartition, parse_partition_dir

_BETWEEN_LOOKS_S: Final = 0.3
_LEFTOVER_DIR = re.compile(r".+(-delete|-stray|-future)")


def check_own_root(log_dir: LogDir) -> list[Finding]:
    """The findings on a native log directory, without its commit log and partitions, that a second check confirms."""

    def look() -> list[Finding]:
        log_dir.refresh()
        sink = FindingSink(None)
        image = log_dir.own_root().store.image
        _check_meta_properties(log_dir.path, sink, image)
        for name in CHECKPOINTS:
            _check_own_checkpoint(log_dir.path, name, image, sink)
        _check_entries(log_dir.path, sink, image)
        return sink.result()

    return _found_twice(look)


def check_foreign_root(root: Path) -> list[Finding]:
    """The findings on a broker's directory, without its partitions, that a second check confirms."""

    def look() -> list[Finding]:
        sink = FindingSink(None)
        _check_meta_properties(root, sink, None)
        for name in CHECKPOINTS:
            _read(root / name, sink)
        _check_entries(root, sink, None)
        return sink.result()

    return _found_twice(look)


def _found_twice(look: Callable[[], list[Finding]]) -> list[Finding]:
    findings = look()
    if all(finding.severity is Severity.INFO for finding in findings):
        return findings
    time.sleep(_BETWEEN_LOOKS_S)
    return [finding for finding in look() if finding in findings]


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


def _read(path: Path, sink: FindingSink) -> Mapping[TopicPartition, int]:
    try:
        return read_offset_checkpoint(path)
    except CorruptIndexError as error:
        sink.add_damage(Severity.ERROR, "checkpoint", error, advice=REPAIR)
        return {}


def _check_own_checkpoint(root: Path, name: str, image: MetadataImage, sink: FindingSink) -> None:
    path = root / name
    offsets = _read(path, sink)
    for where, offset in offsets.items():
        topic = image.topics.get(where.topic)
        if topic is None or not 0 <= where.partition < len(topic.partitions):
            _checkpoint(path, sink, where, "a partition of the root", "none of that name", Severity.INFO)
            continue
        state = topic.partitions[where.partition].state
        if name == LOG_START_OFFSET_CHECKPOINT:
            if offset != state.log_start_offset:
                _checkpoint(path, sink, where, f"the log start {state.log_start_offset}", str(offset))
        elif not 0 <= offset <= state.log_end_offset:
            _checkpoint(path, sink, where, f"an offset up to the log end {state.log_end_offset}", str(offset))
    if name == LOG_START_OFFSET_CHECKPOINT:
        for where, state in _starts_inside(root, image):
            if where not in offsets:
                _checkpoint(path, sink, where, f"a line with the log start {state.log_start_offset}", "none")


def _starts_inside(root: Path, image: MetadataImage) -> list[tuple[TopicPartition, LogState]]:
    """Partitions whose log start offset is above the base of their first segment."""
    found = []
    for topic in image.topics.values():
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition)
            if each.state.log_start_offset and (root / str(where)).is_dir():
                first = min(list_base_offsets(root / str(where)), default=each.state.log_start_offset)
                if each.state.log_start_offset > first:
                    found.append((where, each.state))
    return found


def _checkpoint(
    path: Path,
    sink: FindingSink,
    where: TopicPartition,
    expected: str,
    found: str,
    severity: Severity = Severity.WARNING,
) -> None:
    sink.add(
        severity,
        "checkpoint-entry",
        path,
        position=0,
        expected=f"{expected}, for {where}",
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
        where = parse_partition_dir(entry.name)
        if _LEFTOVER_DIR.fullmatch(entry.name) and entry.is_dir():
            sink.add(
                Severity.INFO,
                "leftover-directory",
                entry.path,
                expected="nothing left over",
                found="a directory that was put aside",
                advice="a deleted topic's goes after file.delete.delay.ms; look at a stray one yourself",
            )
        elif entry.name.endswith(TEMPORARY_SUFFIX):
            sink.add(
                Severity.INFO,
                "temporary-file",
                entry.path,
                expected="nothing left over",
                found="a small file being written, or left by a crash",
                advice=NEXT_WRITER,
            )
        elif where is not None and image is not None and entry.name != METADATA_DIR and entry.is_dir():
            topic = image.topics.get(where.topic)
            if topic is None or where.partition >= len(topic.partitions):
                sink.add(
                    Severity.WARNING,
                    "stray-directory",
                    entry.path,
                    expected="a partition of the root",
                    found="none of that name",
                    advice="look whether it is wanted; no reader sees it",
                )
