"""The files of a log directory with their sizes, by kind. Reads names and sizes only: no file is opened.

log         .log                                        records
index       .index, .timeindex, .txnindex               can be rebuilt from the log
snapshot    .snapshot                                   producer state
staged      .staged                                     writes that are not committed
deleted     .deleted, .cleaned, .swap, *-delete/        pending deletion, or not yet swapped in
other       everything else: checkpoints, partition.metadata, ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.storage.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    STAGED_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_partition_dir,
    parse_segment_file,
)

#: The unit of st_blocks, whatever the block size of the file system.
_STAT_BLOCK_BYTES: Final = 512
_KIND_BY_SUFFIX: Final = {
    LOG_SUFFIX: "log",
    INDEX_SUFFIX: "index",
    TIME_INDEX_SUFFIX: "index",
    TXN_INDEX_SUFFIX: "index",
    PRODUCER_SNAPSHOT_SUFFIX: "snapshot",
    STAGED_SUFFIX: "staged",
    DELETED_SUFFIX: "deleted",
    CLEANED_SUFFIX: "deleted",
    SWAP_SUFFIX: "deleted",
}
KINDS: Final = ("log", "index", "snapshot", "staged", "deleted", "other")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file: its length, and its bytes on disk, which are fewer if it has holes (preallocated indexes).

    `topic_partition` is None outside of a partition's directory; `base_offset` is None unless it is part of a segment.
    """

    topic_partition: TopicPartition | None
    name: str
    kind: str
    base_offset: int | None
    size_bytes: int
    disk_bytes: int


def list_root(root: Path) -> Iterator[StoredFile]:
    """All files below `root`, by directory, except those deleted meanwhile. Raises LogDirError, OSError."""
    try:
        with os.scandir(root) as entries:
            top = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise LogDirError(error.errno, f"cannot open the log directory: {error.strerror}", str(root)) from error
    for entry in top:
        if not entry.is_dir(follow_symlinks=False):
            yield from _stored(entry, None, "other")
        else:
            topic_partition = parse_partition_dir(entry.name)
            yield from _list_directory(Path(entry.path), topic_partition, is_gone=entry.name.endswith("-delete"))


def list_partition(directory: Path, topic_partition: TopicPartition) -> Iterator[StoredFile]:
    """The files of one partition. Raises OSError if its directory cannot be listed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield from _stored(entry, topic_partition, _kind(entry.name))


def _list_directory(directory: Path, topic_partition: TopicPartition | None, *, is_gone: bool) -> Iterator[StoredFile]:
    if topic_partition is not None:
        try:
            yield from list_partition(directory, topic_partition)
        except FileNotFoundError:
            return
        return
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                found = os.stat(os.path.join(path, name), follow_symlinks=False)
            except FileNotFoundError:
                continue
            kind = "deleted" if is_gone else "other"
            yield StoredFile(None, name, kind, None, found.st_size, found.st_blocks * _STAT_BLOCK_BYTES)


def _stored(entry: os.DirEntry[str], topic_partition: TopicPartition | None, kind: str) -> Iterator[StoredFile]:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    parsed = parse_segment_file(entry.name)
    base_offset = None if parsed is None or topic_partition is None else parsed[0]
    disk_bytes = found.st_blocks * _STAT_BLOCK_BYTES
    yield StoredFile(topic_partition, entry.name, kind, base_offset, found.st_size, disk_bytes)


def _kind(name: str) -> str:
    return _KIND_BY_SUFFIX.get(name[name.rfind(".") :], "other") if "." in name else "other"
