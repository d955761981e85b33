"""What lies in a directory, by names alone: the partitions of a root, the segments of a partition."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, parse_partition_dir, parse_segment_file


def list_base_offsets(directory: Path) -> list[int]:
    """Base offsets of the `.log` files in `directory`, rising. Raises OSError when it cannot be listed."""
    offsets = []
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file(entry.name)
            if parsed is not None and parsed[1] == LOG_SUFFIX:
                offsets.append(parsed[0])
    offsets.sort()
    return offsets


def refuse_link(directory: Path) -> None:
    """Raises LogDirError for a partition directory that is a symbolic link: no path leads out of a log directory."""
    if directory.is_symlink():
        raise LogDirError(
            f"{directory} is a symbolic link, which is not followed: put the partition's directory in its place, or "
            "mount it there (mount --bind)"
        )


def list_partitions(root: Path) -> list[TopicPartition]:
    """Partitions that have a directory in `root`, in order; deleted and stray ones are none.

    Raises LogDirError when `root` is not a directory that can be listed.
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
