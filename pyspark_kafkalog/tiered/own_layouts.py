"""The layouts in which this package writes segments to remote storage: the keys of a segment's objects.

    aiven   <topic>-<topic id>/<partition>/<offset>-<segment id>.log .indexes .rsm-manifest
    local   <topic>-<partition>-<topic id>/<offset>-<segment id>.log .index .timeindex .txnindex
            .leader_epoch_checkpoint .snapshot

Both are plain: the bytes of the files as they are. layouts/aiven.py and layouts/local.py say who else reads and writes
them. The object that completes a copy for other readers is the last of its keys, and is put last; this package needs
none of them complete, since the commit that names a segment holds the sizes of its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Final

from pyspark_kafkalog.metadata.messages.metadata_records import DroppedSegment, SegmentObject
from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.filesystem import TEMPORARY
from pyspark_kafkalog.storage.names import offset_file_name
from pyspark_kafkalog.tiered.index_cache import process_cache
from pyspark_kafkalog.tiered.layouts import aiven, local
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexBytes, IndexKind, object_name, read_ranges
from pyspark_kafkalog.tiered.objects import ReadableObjects
from pyspark_kafkalog.tiered.segments import TopicIdPartition


class OwnLayout(Enum):
    """The value is that of rsm.config.layout. As a ReadableLayout, it reads the segments that commits describe."""

    AIVEN = "aiven"
    LOCAL = "local"

    @property
    def keeps_indexes(self) -> bool:
        return True

    def log_content(self, store: ReadableObjects, of: TopicIdPartition, segment: SegmentObject) -> local.PlainLog:
        """The segment's `.log`. Makes no request."""
        return local.PlainLog(store, log_key(of, segment, self), segment.size_bytes)

    def index(
        self, store: ReadableObjects, of: TopicIdPartition, segment: SegmentObject, kind: IndexKind
    ) -> IndexBytes:
        """An index. All of an object's are got at once, and kept in this process.

        Raises FileNotFoundError, CorruptRecordError if the object is shorter than the commit says.
        """
        key, place = index_place(of, segment, kind, self)
        name = object_name(store, key)
        if place is None:
            return IndexBytes(name, b"")
        wanted = place if self is OwnLayout.LOCAL else ByteRange(0, sum(index_sizes(segment).values()))

        def load() -> tuple[Buffer, int]:
            return read_ranges(store, key, [wanted])[0], wanted.size_bytes

        data: Buffer = process_cache().get((store.url, key), load)
        return IndexBytes(name, memoryview(data)[place.start : place.end])


@dataclass(frozen=True, slots=True)
class OwnKey:
    """The parts of a key of a segment's object."""

    partition: TopicIdPartition
    base_offset: int
    segment_id: str


_AIVEN_SUFFIXES: Final = (aiven.LOG, aiven.INDEXES, aiven.MANIFEST)
_LOCAL_SUFFIXES: Final = (local.LOG, *local.INDEX_SUFFIXES.values())


def segment_keys(
    of: TopicIdPartition, base_offset: int, segment_id: str, layout: OwnLayout = OwnLayout.AIVEN
) -> tuple[str, ...]:
    """The keys of all objects that the segment can have, the `.log` first.

    In the layout aiven these are `.log`, `.indexes` and `.rsm-manifest`; in the layout local a segment without aborted
    transactions has no `.txnindex`.
    """
    path = _path(of, base_offset, segment_id, layout)
    return tuple(path + suffix for suffix in (_AIVEN_SUFFIXES if layout is OwnLayout.AIVEN else _LOCAL_SUFFIXES))


def dropped_keys(dropped: DroppedSegment, layout: OwnLayout = OwnLayout.AIVEN) -> tuple[str, ...]:
    """The keys of a segment that a commit has dropped."""
    of = TopicIdPartition(dropped.topic, dropped.topic_id, dropped.partition)
    return segment_keys(of, dropped.base_offset, dropped.segment_id, layout)


def log_key(of: TopicIdPartition, segment: SegmentObject, layout: OwnLayout) -> str:
    """The key of the segment's `.log`."""
    return segment_keys(of, segment.base_offset, segment.segment_id, layout)[0]


def index_place(
    of: TopicIdPartition, segment: SegmentObject, kind: IndexKind, layout: OwnLayout
) -> tuple[str, ByteRange | None]:
    """The key of the object with the index, and the place of the index in it; None if the index is empty."""
    path = _path(of, segment.base_offset, segment.segment_id, layout)
    sizes = index_sizes(segment)
    if layout is OwnLayout.LOCAL:
        return path + local.INDEX_SUFFIXES[kind], ByteRange(0, sizes[kind]) if sizes[kind] else None
    ends = dict(zip(sizes, accumulate(sizes.values()), strict=True))
    return path + aiven.INDEXES, ByteRange(ends[kind] - sizes[kind], sizes[kind]) if sizes[kind] else None


def index_sizes(segment: SegmentObject) -> dict[IndexKind, int]:
    """The sizes of the indexes in bytes, in their order in the object `.indexes`."""
    return {
        IndexKind.OFFSET: segment.offset_index_bytes,
        IndexKind.TIMESTAMP: segment.time_index_bytes,
        IndexKind.PRODUCER_SNAPSHOT: segment.producer_snapshot_bytes,
        IndexKind.LEADER_EPOCH: segment.leader_epoch_index_bytes,
        IndexKind.TRANSACTION: segment.transaction_index_bytes,
    }


def parse_key(key: str, layout: OwnLayout) -> OwnKey | None:
    """The parts of a key that `segment_keys` makes, None for any other.

    A killed write to a directory can leave `<key>.<random>.tmp`, which counts as an object of the segment too.
    """
    key = TEMPORARY.sub("", key)
    if layout is OwnLayout.AIVEN:
        found = aiven.parse_key(key)
        return None if found is None else OwnKey(found.partition, found.start_offset, found.segment_id)
    folder, _, name = key.rpartition("/")
    of, file = local.parse_folder(folder), local.parse_file(name)
    if of is None or file is None or file.suffix not in _LOCAL_SUFFIXES:
        return None
    return OwnKey(of, file.start_offset, file.segment_id)


def _path(of: TopicIdPartition, base_offset: int, segment_id: str, layout: OwnLayout) -> str:
    name = offset_file_name(base_offset, f"-{segment_id}")
    if layout is OwnLayout.AIVEN:
        return f"{of.topic}-{of.topic_id}/{of.partition}/{name}"
    return f"{of.topic_partition}-{of.topic_id}/{name}"
