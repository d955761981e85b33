"""Files pending deletion: renamed to `<name>.deleted`, and removed by a later run once file.delete.delay.ms is over.

No process waits for the delay. The time of the renaming is stored as the file's modification time. After a crash before
that is set, the file may be removed early, which is harmless: a reader that has it open continues, and no name refers
to it. A starting Kafka broker removes such files at once. If a full disk has no room for the longer name, the file is
removed at once, too. Source of the rules: LocalLog.deleteSegmentFiles in org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import FileSystem, is_out_of_space
from pyspark_kafkalog.storage.names import DELETED_SUFFIX, parse_segment_file
from pyspark_kafkalog.units import NS_PER_MS


def mark_deleted(directory: Path, names: Iterable[str], *, now_ms: int, fs: FileSystem) -> None:
    """Rename the named files, if they exist, in the given order; the delay begins at `now_ms`."""
    for name in names:
        target = directory / (name + DELETED_SUFFIX)
        with contextlib.suppress(FileNotFoundError):
            try:
                fs.rename(directory / name, target)
            except OSError as error:
                if not is_out_of_space(error):
                    raise
                fs.unlink(directory / name)
                continue
            os.utime(target, ns=(now_ms * NS_PER_MS, now_ms * NS_PER_MS))


def remove_deleted_files(directory: Path, *, now_ms: int, delay_ms: int, fs: FileSystem) -> int:
    """Remove the segment files that were renamed at least `delay_ms` ago; return the bytes removed."""
    removed_bytes = 0
    for deleted in PartitionListing.read(directory).deleted:
        path = directory / deleted.name
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_mtime_ns // NS_PER_MS + delay_ms <= now_ms:
                fs.unlink_if_there(path)
                removed_bytes += status.st_size
    return removed_bytes


def is_deleted_file(name: str) -> bool:
    """Whether the name is that of a segment file or producer snapshot pending deletion."""
    return name.endswith(DELETED_SUFFIX) and parse_segment_file(name.removesuffix(DELETED_SUFFIX)) is not None
