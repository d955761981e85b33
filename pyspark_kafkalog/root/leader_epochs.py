"""The leader epochs of a partition, and where each of them ends.

They come from the `leader-epoch-checkpoint` of the partition's directory; of a partition in an object store from its
extents; of remote storage without a directory from its segments. The present leader epoch begins at the end of the log
if no record was written in it. A crashed writer may have left epochs behind the committed end: these are left out.

Source of the rules: LeaderEpochFileCache.endOffsetFor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry, LeaderEpochCheckpoint
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1
UNDEFINED: Final = EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


def end_of_epoch(epochs: Sequence[EpochEntry], requested: int, log_end_offset: int) -> EpochEntry:
    """The largest epoch of `epochs` (increasing) that is not above `requested`, and the offset where it ends.

    (-1, -1) if that cannot be known: without epochs, and for one above all of them.
    """
    if not epochs or requested < 0:
        return UNDEFINED
    if requested == epochs[-1].epoch:
        return EpochEntry(requested, log_end_offset)
    higher = bisect_right(epochs, requested, key=itemgetter(0))
    if higher == len(epochs):
        return UNDEFINED
    if not higher:
        return EpochEntry(requested, epochs[0].start_offset)
    return EpochEntry(epochs[higher - 1].epoch, epochs[higher].start_offset)


def epochs_of(root: Root, of: PartitionSnapshot) -> list[EpochEntry]:
    """The epochs of the partition as of the snapshot, increasing. Reads files. Raises OSError, CorruptIndexError."""
    if of.local_directory is not None:
        stored: Iterable[EpochEntry] = LeaderEpochCheckpoint.open(of.local_directory / LEADER_EPOCH_CHECKPOINT).entries
    elif isinstance(root, NativeRoot):
        partition = root.store.image.find(of.topic, of.partition)
        stored = () if partition is None else leader_epochs(partition)
    elif of.remote is not None:
        stored = [each for segment in of.remote.log.copies for each in segment.leader_epochs]
    else:
        stored = ()
    merged = LeaderEpochCheckpoint(Path("epochs"), stored).entries  # only in memory: without those that contradict
    found = [each for each in merged if each.epoch <= of.leader_epoch and each.start_offset <= of.log_end_offset]
    if of.leader_epoch >= 0 and (not found or found[-1].epoch < of.leader_epoch):
        found.append(EpochEntry(of.leader_epoch, of.log_end_offset))
    return found


def epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int:
    """The epoch in which `offset` was, or will be, written; -1 below the first one."""
    at = bisect_right(epochs, offset, key=itemgetter(1))
    return epochs[at - 1].epoch if at else UNDEFINED_EPOCH


def leader_epochs(partition: PartitionImage) -> Iterator[EpochEntry]:
    """The leader epochs of a partition in an object store, each with the first offset that its extents have of it."""
    last = -1
    for segment in partition.segments:
        for each in segment.leader_epochs:
            if each.leader_epoch > last:
                yield EpochEntry(each.leader_epoch, each.start_offset)
                last = each.leader_epoch
    epochs, firsts = np.unique(partition.runs.table["leader_epoch"], return_index=True)
    for epoch, first in zip(epochs.tolist(), firsts.tolist(), strict=True):
        if epoch > last:
            yield EpochEntry(epoch, int(partition.runs.table["base_offset"][first]))
            last = epoch
