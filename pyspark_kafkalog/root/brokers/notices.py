"""The state of a broker's process, and notices about what a reader of its directory does not get.

A broker holds a POSIX record lock on `.lock` while it runs, and writes `.kafka_cleanshutdown` when it stops. The kernel
releases the lock however the process ends. The lock of a broker on another host is visible only if the file system
shares locks between hosts; otherwise its directory is taken for that of a killed broker.

A reader does not get offsets above the high watermark, in whole batches that the broker's checkpoint does not cover
yet, nor offsets in remote storage, below the first local segment of a tiered topic. Of several directories it reads one
replica of each partition, and reports where another has other records.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final

from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.marker_files import was_clean_shutdown
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.units import plural

_LOCK_FILE: Final = ".lock"

#: struct flock: type, whence, start, length, process id.
_FLOCK: Final = struct.Struct("hhqqi4x")


class BrokerProcess(Enum):
    """The state of the broker that wrote a log directory. A copy of a running broker's directory is KILLED, too."""

    RUNNING = auto()
    STOPPED = auto()
    KILLED = auto()


def broker_process(root: Path) -> BrokerProcess:
    """The state of the broker on `root`. Takes no lock and writes nothing."""
    if was_clean_shutdown(root):
        return BrokerProcess.STOPPED
    return BrokerProcess.RUNNING if _is_locked(root / _LOCK_FILE) else BrokerProcess.KILLED


def _is_locked(path: Path) -> bool:
    """Whether a process holds a record lock on the file; False if locks cannot be queried."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        fd = open_file(path)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


_OPTION: Final = "the option readToLogEnd (--read-to-log-end)"
_LISTED_MAX: Final = 5


def reading_notices(partitions: Iterable[PartitionSnapshot]) -> list[str]:
    """What a reader of the partitions should know, for each directory that it reads, then for replicas that differ."""
    found = tuple(partitions)
    above: dict[Path, list[PartitionSnapshot]] = {}
    disks: dict[str, set[Path]] = {}
    for each in found:
        if each.offsets_above_high_watermark:
            above.setdefault(each.directory.parent, []).append(each)
        for replica in each.replicas:
            if replica.directory_id is not None:
                disks.setdefault(replica.directory_id, set()).add(replica.directory.parent)
    notices = [_above_high_watermark(root, unread) for root, unread in above.items()]
    differing = differing_replicas(found)
    if differing is not None:
        notices.append(differing)
    return notices + [_copies(directory_id, paths) for directory_id, paths in disks.items() if len(paths) > 1]


def differing_replicas(partitions: Iterable[PartitionSnapshot]) -> str | None:
    """Where replicas have other records than those that are read; None if nowhere."""
    found = [each for each in partitions if any(replica.difference for replica in each.replicas)]
    if not found:
        return None
    listed = _listed(found, lambda each: "; ".join(describe_differences(each)))
    return (
        f"replicas of {plural(len(found), 'partition')} differ below their high watermarks ({listed}). The replica of "
        "the latest leader epoch is read, as its cluster does; kafkalog verify compares all of them"
    )


def describe_differences(found: PartitionSnapshot) -> list[str]:
    """Where each replica that differs from the one that is read does so."""
    return [
        f"offsets {each.difference.offset} to {each.difference.end_offset - 1} are of leader epoch "
        f"{each.difference.epoch} in {found.directory.parent} and of {each.difference.other_epoch} in "
        f"{each.directory.parent}"
        for each in found.replicas
        if each.difference is not None
    ]


def _copies(directory_id: str, found: Iterable[Path]) -> str:
    return (
        f"{' and '.join(sorted(map(str, found)))} have the same directory.id, {directory_id}: they are copies of one "
        "disk, and of each partition the better copy is read"
    )


def _above_high_watermark(root: Path, found: Sequence[PartitionSnapshot]) -> str:
    """The number of offsets above the high watermarks, with the reason and advice."""
    total = sum(each.offsets_above_high_watermark for each in found)
    listed = _listed(found, lambda each: f"{each.offsets_above_high_watermark:,}")
    return (
        f"{plural(total, 'offset')} in {plural(len(found), 'partition')} of {root} ({listed}) "
        f"are above the high watermark of its checkpoint and are not read: {reason_and_advice(broker_process(root))}"
    )


def reason_and_advice(process: BrokerProcess) -> str:
    """Why there are whole batches above the checkpointed high watermark, and how to read them."""
    if process is BrokerProcess.RUNNING:
        return (
            "a broker is running there, which writes its checkpoint every 5 seconds. They are read after its next "
            f"checkpoint, or now with {_OPTION}, whether all in-sync replicas have them or not"
        )
    if process is BrokerProcess.STOPPED:
        return (
            "the broker was stopped cleanly before all in-sync replicas had them. Take them from the partition's "
            f"leader, or read them with {_OPTION}"
        )
    return (
        "the broker was not stopped cleanly, so its checkpoint is older than its logs. Read them with "
        f"{_OPTION}, start the broker and stop it cleanly, or adopt the directory (kafkalog adopt)"
    )


def in_remote_storage(partitions: Iterable[PartitionSnapshot]) -> str | None:
    """The offsets in remote storage; None if there are no such offsets."""
    found = [each for each in partitions if each.remote_offsets_count]
    if not found:
        return None
    listed = _listed(found, lambda each: f"{each.log_start_offset} to {each.local_log_start_offset - 1}")
    return (
        f"earlier offsets of {plural(len(found), 'partition')} are in remote storage, not in this directory ({listed})"
    )


def remote_offsets(found: PartitionSnapshot) -> str:
    """The partition's log start offset and its local log start offset."""
    return (
        f"offsets {found.log_start_offset} to {found.local_log_start_offset - 1} of {found.topic}-{found.partition} "
        f"are in remote storage (tiered storage), the first one in this directory is {found.local_log_start_offset}"
    )


def _listed(partitions: Sequence[PartitionSnapshot], what: Callable[[PartitionSnapshot], str]) -> str:
    listed = ", ".join(f"{each.topic}-{each.partition}: {what(each)}" for each in partitions[:_LISTED_MAX])
    more = len(partitions) - _LISTED_MAX
    return f"{listed} and {more:,} more" if more > 0 else listed
