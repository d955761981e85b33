"""The logs of a root as of one commit, pinned for as long as they are copied.

    <root>/__cluster_metadata-0.<32 hex>-exporting-stray/
      .maintenance-lock        held by the process that pinned them
      orders-0/                hard links to the files of the log as of the commit

The links are created under the root's lock. Commits, swaps of cleaned or merged segments, the removal of old segments
and the deletion of topics all take that lock, so all links are as of the same moment. Afterwards writers and
maintenance continue: they replace and remove names, and only append bytes beyond the ends that the commit has.

The links are removed at the end. After a crash they stay until the next export of the root, which removes every such
directory that is not locked. To Kafka the directory is a stray partition of the metadata topic, which it ignores.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.jobs.partition_lock import partition_lock
from pyspark_kafkalog.maintenance.segments.swap import SwapTarget, finish_swaps, has_unfinished
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.partition_listing import bases_and_swaps, refuse_link
from pyspark_kafkalog.storage.filesystem import FileSystem, flush_earlier
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    parse_segment_file,
)

_PIN_SUFFIX: Final = "-exporting-stray"


@dataclass(frozen=True, slots=True)
class PinnedLogs:
    """`image` is that of the commit. `directories` has the links of each partition with records; `cleaned` is the
    cleaner's checkpoint at that moment.
    """

    image: MetadataImage
    partitions: Sequence[TopicPartition]
    directories: Mapping[TopicPartition, Path]
    cleaned: Mapping[TopicPartition, int]

    def state(self, where: TopicPartition) -> LogState:
        return self.image.partition(where.topic, where.partition).state


@contextlib.contextmanager
def pinned_logs(root: OwnRoot, topics: Collection[str] | None = None) -> Iterator[PinnedLogs]:
    """Pin the logs of `topics` (None: all) as of the newest commit, for the block.

    Raises UnknownTopicError, and LogDirError when a log is missing or its segments are being swapped.
    """
    pin = root.path / f"{METADATA_DIR}.{uuid.uuid4().hex}{_PIN_SUFFIX}"
    with contextlib.ExitStack() as held:
        with root_lock(root.path, fs=root.fs):
            _remove_abandoned(root)
            root.fs.mkdir(pin)
            held.callback(shutil.rmtree, pin, ignore_errors=True)
            held.enter_context(partition_lock(pin, fs=root.fs))
            root.refresh()
            image = root.store.image
            flush_earlier(root.path, root.fs)
            partitions = root.partitions(topics)
            directories = {}
            for where in partitions:
                if image.partition(where.topic, where.partition).state.log_end_offset:
                    directories[where] = pin / str(where)
                    _pin(root, image, where, directories[where])
            cleaned = read_offset_checkpoint(root.path / CLEANER_OFFSET_CHECKPOINT)
        yield PinnedLogs(image, partitions, directories, cleaned)


def _remove_abandoned(root: OwnRoot) -> None:
    """Remove what killed exports left. The caller holds the root's lock, under which exports lock their own pins."""
    for directory in root.path.glob(f"{METADATA_DIR}.*{_PIN_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError), partition_lock(directory, fs=root.fs) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(directory, ignore_errors=True)


def _pin(root: OwnRoot, image: MetadataImage, where: TopicPartition, pin: Path) -> None:
    source = root.path / str(where)
    refuse_link(source)
    if not source.is_dir():
        raise LogDirError(f"{source} is missing, which holds committed records: restore it from a backup")
    _finish_killed_swaps(root, where, source)
    root.fs.mkdir(pin)
    for name in _names(source, image.partition(where.topic, where.partition).state):
        _link(source / name, pin / name, root.fs)


def _finish_killed_swaps(root: OwnRoot, where: TopicPartition, source: Path) -> None:
    """Finish swaps of killed runs. Raises LogDirError when maintenance is running.

    A swap holds the root's lock throughout, so one found incomplete under that lock belongs to a killed run.
    """
    if not bases_and_swaps(source)[1] or not has_unfinished(source):
        return
    with partition_lock(source, fs=root.fs) as is_free:
        if not is_free:
            raise LogDirError(f"maintenance is at work on {source}: wait for it to end, and run this again")
        target = SwapTarget.look(root, where, root.clock())
        finish_swaps(source, target.config, now_ms=target.now_ms, fs=root.fs)


def _names(directory: Path, state: LogState) -> list[str]:
    """The files of the log as of `state`; the copy cuts off what they contain beyond its end.

    Segments entirely below the log start offset are omitted: retention has yet to remove them.
    """
    bases = bases_and_swaps(directory)[0]
    first = max((base for base in bases if base <= state.log_start_offset), default=0)
    names = []
    for entry in os.scandir(directory):
        parsed = parse_segment_file(entry.name)
        if entry.name == LEADER_EPOCH_CHECKPOINT:
            names.append(entry.name)
        elif parsed is not None:
            last = state.log_end_offset if parsed[1] == PRODUCER_SNAPSHOT_SUFFIX else state.active_base_offset
            if first <= parsed[0] <= last:
                names.append(entry.name)
    return sorted(names)


def _link(source: Path, pin: Path, fs: FileSystem) -> None:
    if not stat.S_ISREG(source.lstat().st_mode):
        raise LogDirError(f"{source} is not a regular file, as a file of a log has to be")
    fs.link(source, pin)
