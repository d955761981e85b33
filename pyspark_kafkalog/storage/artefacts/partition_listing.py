"""The files of a partition directory by kind, and the partition directories of a root.

    <20 digit offset>.log .index .timeindex .txnindex     a segment, named by its base offset
    <20 digit offset>.snapshot                            producer state below that offset
    <any of these>.cleaned .swap                          a segment that is to replace others; see `decided_swaps`
    <any of these>.deleted                                a file pending deletion
    <write id>-….staged                                   records of a write that may not be committed yet
    <name>.tmp                                            a small file that was being written
    leader-epoch-checkpoint, partition.metadata, …        everything else

A directory is listed once, and its names are classified without further I/O. While a broker or a job changes files, a
listing may contain names of before and after the change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from pyspark_kafkalog.errors import DiskFormatError, LogDirError
from pyspark_kafkalog.storage.below_root import list_names, scan
from pyspark_kafkalog.storage.filesystem import TEMPORARY_SUFFIX
from pyspark_kafkalog.storage.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT_SUFFIX,
    SEGMENT_SUFFIXES,
    STAGED_SUFFIX,
    SWAP_SUFFIX,
    TopicPartition,
    offset_file_name,
    parse_partition_dir,
    parse_segment_file,
    partition_path,
    segment_file,
)
from pyspark_kafkalog.values import dataclass

_BESIDE_LOG: Final = (*SEGMENT_SUFFIXES[1:], PRODUCER_SNAPSHOT_SUFFIX)
_SWAP_RETRIES: Final = 20
_SWAP_PAUSE_SECONDS: Final = 0.01


class MarkedFile(NamedTuple):
    """A segment's file or a snapshot with an additional suffix: its whole name, its offset, its suffix without that."""

    name: str
    offset: int
    suffix: str


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """The names in a partition directory. Names with equal inodes belong to the same file.

    `files` has, for each suffix of a segment and for `.snapshot`, the inodes by offset. `staged` has the inodes of
    staged files by name. The other fields are in no particular order. `count` is that of all names.
    """

    files: Mapping[str, Mapping[int, int]]
    cleaned: tuple[MarkedFile, ...]
    swaps: tuple[MarkedFile, ...]
    deleted: tuple[MarkedFile, ...]
    staged: Mapping[str, int]
    temporary: tuple[str, ...]
    others: tuple[str, ...]
    count: int = 0

    @classmethod
    def read(cls, directory: Path, *, only_logs_below: int = 0) -> PartitionListing:
        """List `directory`. Raises OSError if that is not possible.

        Of the segments below the base offset `only_logs_below` it has the `.log` files alone, and no snapshots. These
        are most names of a long log, and a commit does not need them.
        """
        names = list_names(directory)
        count = len(names)
        if only_logs_below:
            first_name = offset_file_name(only_logs_below, "")
            names = [each for each in names if not (each[0] < first_name and each[0].endswith(_BESIDE_LOG))]
        return replace(classify(names), count=count)

    @property
    def is_tidy(self) -> bool:
        """Whether no swap has to be finished, and no file is staged or pending deletion."""
        return not (self.cleaned or self.swaps or self.deleted or self.staged)

    @property
    def base_offsets(self) -> list[int]:
        """Base offsets of the `.log` files, in increasing order."""
        return sorted(self.files[LOG_SUFFIX])

    @property
    def snapshot_offsets(self) -> list[int]:
        """Offsets of the producer snapshots, in increasing order."""
        return sorted(self.files[PRODUCER_SNAPSHOT_SUFFIX])

    @property
    def log_swaps(self) -> set[int]:
        """Base offsets of the `.log.swap` files."""
        return {each.offset for each in self.swaps if each.suffix == LOG_SUFFIX}

    @property
    def decided_swaps(self) -> list[MarkedFile]:
        """The swap files of replacements that have to be completed, by name.

        A replacement is decided once all of its `.cleaned` files have been renamed to `.swap`. Several of one partition
        are decided in the order of their offsets, so those at or above a `.cleaned` file are not.
        """
        first_cleaned = min((each.offset for each in self.cleaned), default=None)
        return sorted(each for each in self.swaps if first_cleaned is None or each.offset < first_cleaned)

    @property
    def undecided_swaps(self) -> list[MarkedFile]:
        """The other swap files, by name; they are removed, as are the `.cleaned` files."""
        return sorted(set(self.swaps).difference(self.decided_swaps))


def classify(names: Iterable[tuple[str, int]]) -> PartitionListing:
    """The listing of a directory that holds `names`, each with its inode."""
    files: dict[str, dict[int, int]] = {suffix: {} for suffix in (*SEGMENT_SUFFIXES, PRODUCER_SNAPSHOT_SUFFIX)}
    marked: dict[str, list[MarkedFile]] = {CLEANED_SUFFIX: [], SWAP_SUFFIX: [], DELETED_SUFFIX: []}
    staged: dict[str, int] = {}
    temporary: list[str] = []
    others: list[str] = []
    for name, inode in names:
        parsed = parse_segment_file(name)
        if parsed is not None:
            files[parsed[1]][parsed[0]] = inode
            continue
        stem, dot, mark = name.rpartition(".")
        mark = dot + mark
        if mark == STAGED_SUFFIX:
            staged[name] = inode
        elif mark == TEMPORARY_SUFFIX:
            temporary.append(name)
        elif mark in marked and (parsed := parse_segment_file(stem)) is not None:
            marked[mark].append(MarkedFile(name, *parsed))
        else:
            others.append(name)
    return PartitionListing(
        files=files,
        cleaned=tuple(marked[CLEANED_SUFFIX]),
        swaps=tuple(marked[SWAP_SUFFIX]),
        deleted=tuple(marked[DELETED_SUFFIX]),
        staged=staged,
        temporary=tuple(temporary),
        others=tuple(others),
    )


def list_base_offsets(directory: Path) -> list[int]:
    """Base offsets of the `.log` files in `directory`, in increasing order. Raises as `list_whole`."""
    return list_whole(directory).base_offsets


def list_whole(directory: Path) -> PartitionListing:
    """A listing of `directory` whose `.log` files hold all records. Raises OSError if it cannot be listed.

    A broker that swaps in a cleaned segment removes the old ones first: for a moment, or permanently if it is killed at
    that time, only a `.swap` file holds the records. Raises DiskFormatError if that state persists.
    """
    for _ in range(_SWAP_RETRIES):
        listing = PartitionListing.read(directory)
        lacking = listing.log_swaps.difference(listing.files[LOG_SUFFIX])
        if not lacking:
            return listing
        time.sleep(_SWAP_PAUSE_SECONDS)
    raise DiskFormatError(
        file=str(segment_file(directory, min(lacking), LOG_SUFFIX + SWAP_SUFFIX)),
        position=0,
        expected=f"a {LOG_SUFFIX} file beside it",
        found=f"the records in the {SWAP_SUFFIX} file alone, as a broker leaves them that is killed while it cleans",
        advice="start the broker, or adopt the log directory: both finish the swap",
    )


def has_log(directory: Path) -> bool:
    """Whether there is a `.log` file in `directory`; False also if it does not exist."""
    try:
        parsed = (parse_segment_file(entry.name) for entry in scan(directory))
        return any(each is not None and each[1] == LOG_SUFFIX for each in parsed)
    except (FileNotFoundError, NotADirectoryError):
        return False


def list_partitions(root: Path) -> list[TopicPartition]:
    """Partitions that have a directory in `root`, in order, without deleted and stray ones.

    Raises LogDirError if `root` is not a directory that can be listed.
    """
    partitions = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                topic_partition = parse_partition_dir(entry.name)
                if topic_partition is not None and entry.is_dir():
                    partitions.append(topic_partition)
    except OSError as error:
        raise LogDirError(error.errno, f"cannot open the log directory: {error.strerror}", str(root)) from error
    partitions.sort()
    return partitions


def check_log_directory(root: Path, partitions: Iterable[TopicPartition]) -> None:
    """Raise LogDirError unless `root` has a meta.properties, or one of its `partitions` a file of Kafka's.

    Other directories have folders with names like those of partitions, too: /etc has dbus-1.
    """
    if not (root / META_PROPERTIES).exists() and not any(
        _is_partition(partition_path(root, each)) for each in partitions
    ):
        raise LogDirError(
            f"{root} is not a log directory: expected {META_PROPERTIES}, or a folder <topic>-<partition> with "
            "segments, as in each directory of a broker's log.dirs; found neither"
        )


def _is_partition(directory: Path) -> bool:
    try:
        return (directory / PARTITION_METADATA).exists() or has_log(directory)
    except PermissionError:
        return True  # it exists; the error of reading it says more
