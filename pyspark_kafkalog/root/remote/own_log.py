"""The remote part of a native root's partition: the segments that the root itself has copied to remote storage.

The image names them (metadata/image.PartitionImage), so that nothing is listed, and a plan carries what its tasks read.
Local retention moves the local log start by a commit and removes files after it: a task that finds no file reads the
newest image and goes on in the segments that this names. Total retention drops segments by a commit and deletes their
objects later: a task that finds no object looks in the newest image, too. A segment that is named there and has lost
an object is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.image import PartitionImage, TopicImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.snapshot import RemotePart
from pyspark_kafkalog.tiered.own_segments import SegmentObjectExtent
from pyspark_kafkalog.tiered.own_storage import OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition

#: Segments with transaction indexes behind a task's range that travel with its plan.
_LATER_SEGMENTS_MAX: Final = 64
_NEVER_COPIED: Final = -1


@dataclass(frozen=True, slots=True)
class OwnRemoteLog:
    """A RemoteLog of segments that the root has copied, as of one image."""

    storage: OwnStorage
    partition: TopicIdPartition
    segments: tuple[SegmentObject, ...]
    highest_offset: int
    known_end_offset: int
    is_whole: bool = True

    @staticmethod
    def of(storage: OwnStorage, topic: TopicImage, partition: PartitionImage) -> OwnRemoteLog:
        """The remote part of a partition; what begins at the local log start is local."""
        segments = partition.segments
        end_offset = segments[-1].end_offset if segments else 0
        return OwnRemoteLog(
            storage,
            TopicIdPartition(topic.name, topic.topic_id, partition.partition),
            segments,
            end_offset - 1 if segments else _NEVER_COPIED,
            max(end_offset, partition.state.local_log_start_offset),
        )

    @property
    def location(self) -> str:
        return self.storage.location

    def extents_below(self, offset: int) -> list[SegmentObjectExtent]:
        return [self.storage.extent(self.partition, each) for each in self.segments if each.base_offset < offset]

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> OwnRemoteLog:
        inside = tuple(
            each for each in self.segments if each.end_offset > start_offset and each.base_offset < end_offset
        )
        later = [each for each in self.segments if each.base_offset >= end_offset and each.transaction_index_bytes]
        kept = later[:_LATER_SEGMENTS_MAX] if committed else []
        return replace(self, segments=(*inside, *kept), is_whole=not committed or len(kept) == len(later))


@dataclass(frozen=True, slots=True)
class OwnLookUp:
    """Finds the remote part of one partition of the root `root` anew; can be pickled.

    `store_options` are those with which the root was opened: the storage itself may be another one by now.
    """

    root: str
    partition: TopicIdPartition
    store_options: tuple[tuple[str, str], ...] = field(repr=False)

    def __call__(self) -> OwnRemoteLog | None:
        """As of the newest commit; None if the topic was deleted, or if nothing is remote any more.

        Raises LogDirError, DiskFormatError, OSError.
        """
        image = MetadataStore.open(Path(self.root)).image
        topic = image.topics.get(self.partition.topic)
        storage = OwnStorage.of(broker_config(image), dict(self.store_options))
        if storage is None or topic is None or topic.topic_id != self.partition.topic_id:
            return None
        return OwnRemoteLog.of(storage, topic, topic.partitions[self.partition.partition])


def own_remote_part(
    root: Path, storage: OwnStorage, store_options: Mapping[str, str], topic: TopicImage, partition: PartitionImage
) -> RemotePart:
    """The remote part, without segments as long as none was copied: local segments may become remote ones."""
    log = OwnRemoteLog.of(storage, topic, partition)
    return RemotePart(log, OwnLookUp(str(root), log.partition, tuple(store_options.items())))
