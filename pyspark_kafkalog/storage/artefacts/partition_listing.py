"""Lists directories by file names alone: the partitions of a root, the segments of a partition."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, LogDirError
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TopicPartition,
    parse_partition_dir,
    parse_segment_file,
    segment_file,
)

_SWAP_LOOKS: Final = 20
_SWAP_PAUSE_SECONDS: Final = 0.01


def list_base_offsets(directory: Path) -> list[int]:
    """Base offsets of the `.log` files in `directory`, in increasing order. Raises OSError if it cannot be listed.

    A broker that swaps in a cleaned segment removes the old ones first: for a moment, or permanently if it is killed at
    that time, only a `.swap` file holds the records. Raises DiskFormatError if that state persists.
    """
    for _ in range(_SWAP_LOOKS):
        offsets, swapped = bases_and_swaps(directory)
        lacking = swapped.difference(offsets)
        if not lacking:
            return offsets
        time.sleep(_SWAP_PAUSE_SECONDS)
    raise DiskFormatError(
        file=str(segment_file(directory, min(lacking), LOG_SUFFIX + SWAP_SUFFIX)),
        position=0,
        expected=f"a {LOG_SUFFIX} file beside it",
        found=f"the records in the {SWAP_SUFFIX} file alone, as a broker leaves them that is killed while it cleans",
        advice="start the broker, or adopt the log directory: both finish the swap",
    )


def bases_and_swaps(directory: Path) -> tuple[list[int], set[int]]:
    """Base offsets of the `.log` files, in increasing order, and of the `.log.swap` files. Raises OSError."""
    offsets, swapped = [], set()
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file(entry.name.removesuffix(SWAP_SUFFIX))
            if parsed is None or parsed[1] != LOG_SUFFIX:
                continue
            if entry.name.endswith(SWAP_SUFFIX):
                swapped.add(parsed[0])
            else:
                offsets.append(parsed[0])
    offsets.sort()
    return offsets, swapped


def refuse_link(directory: Path) -> None:
    """Raise LogDirError for a partition directory that is a symbolic link: no path may lead out of a log directory."""
    if directory.is_symlink():
        raise LogDirError(link_message(directory))


def link_message(directory: Path) -> str:
    """The reason why a symbolic link is not read as a partition's directory, and advice."""
    return (
        f"{directory} is a symbolic link, which is not followed: put the partition's directory in its place, or "
        "mount it there (mount --bind)"
    )


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
