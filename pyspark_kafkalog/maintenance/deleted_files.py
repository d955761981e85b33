"""Files on their way out: renamed to `<name>.deleted`, removed after file.delete.delay.ms by whoever comes by.

No process waits for the delay. The time of the renaming is kept as the file's modification time; a crash before that is
set lets the file go early, which nobody misses: a reader that has it open goes on with it, and no name leads to it. A
starting Kafka broker removes such files at once. A full disk may have no room for the longer name: then the file goes
at once, too. Source of the rules: LocalLog.deleteSegmentFiles in
org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from pyspark_kafkalog.storage.filesystem import FileSystem, is_out_of_space
from pyspark_kafkalog.storage.names import DELETED_SUFFIX, parse_segment_file

_NS_A_MS = 1_000_000


def mark_deleted(directory: Path, names: Iterable[str], *, now_ms: int, fs: FileSystem) -> None:
    """Rename the files of these names, those that are there, in the order given; `now_ms` is when the delay begins."""
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
            os.utime(target, ns=(now_ms * _NS_A_MS, now_ms * _NS_A_MS))


def remove_deleted_files(directory: Path, *, now_ms: int, delay_ms: int, fs: FileSystem) -> int:
    """Remove the segment files that were renamed `delay_ms` ago or earlier; returns how many bytes they had."""
    removed_bytes = 0
    with os.scandir(directory) as entries:
        found = [entry for entry in entries if is_deleted_file(entry.name)]
    for entry in found:
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if status.st_mtime_ns // _NS_A_MS + delay_ms <= now_ms:
                fs.unlink_if_there(directory / entry.name)
                removed_bytes += status.st_size
    return removed_bytes


def is_deleted_file(name: str) -> bool:
    """Whether a file of a segment, or a producer snapshot, is called so after its deletion."""
    return name.endswith(DELETED_SUFFIX) and parse_segment_file(name.removesuffix(DELETED_SUFFIX)) is not None
