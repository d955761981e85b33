"""Segments that this package writes: merged runs of object roots, and tiered segments of file roots.

    layout aiven   <topic>-<topic id>/<partition>/<offset>-<segment id>.log .indexes .rsm-manifest
    layout local   <topic>-<partition>-<topic id>/<offset>-<segment id>.log .index .timeindex .txnindex
                   .leader_epoch_checkpoint .snapshot

Both are plain: the bytes of the files as they are. Whatever reads the layout reads them, a broker with the plugin too;
aiven_layout.py and local_layout.py say who else does. The object that completes a copy for other readers is put last.
This package itself needs no manifest: the commit that names a segment holds the sizes of its files.

A crash between the puts leaves objects that no commit names. A segment's id begins with the end of the metadata log
when its copy was planned, so that the clean-up knows when they have expired (metadata/image.StagingHorizon).
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.messages.metadata_records import DroppedSegment, SegmentLeaderEpoch, SegmentObject
from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.artefacts.index_file import MappedIndex, OffsetIndex, TimeIndex, read_entries
from pyspark_kafkalog.storage.artefacts.producer_snapshot import read_snapshot_bytes
from pyspark_kafkalog.storage.artefacts.transaction_index import read_aborted
from pyspark_kafkalog.storage.filesystem import TEMPORARY, open_to_read
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_file_name,
    segment_file,
)
from pyspark_kafkalog.storage.segment.stored import largest_timestamp_ms
from pyspark_kafkalog.tiered import aiven_layout, local_layout
from pyspark_kafkalog.tiered.local_layout import PlainLog
from pyspark_kafkalog.tiered.objects import (
    IndexBytes,
    IndexKind,
    ReadableObjects,
    SegmentStore,
    object_name,
    process_cache,
    read_range,
)
from pyspark_kafkalog.tiered.segments import TopicIdPartition, clamp_epochs
from pyspark_kafkalog.units import MIB
from pyspark_kafkalog.values import dataclass

#: What the manifest calls a chunk; the plugin's documentation recommends it.
_CHUNK_BYTES: Final = 4 * MIB
_NO_BROKER: Final = -1
#: The order of Kafka's LocalTieredStorage.
_LOCAL_ORDER: Final = (
    IndexKind.OFFSET,
    IndexKind.TIMESTAMP,
    IndexKind.TRANSACTION,
    IndexKind.LEADER_EPOCH,
    IndexKind.PRODUCER_SNAPSHOT,
)


class OwnLayout(Enum):
    """The value is that of rsm.config.layout. As a ReadableLayout, it reads the segments that commits describe."""

    AIVEN = "aiven"
    LOCAL = "local"

    @property
    def keeps_indexes(self) -> bool:
        return True

    def log_content(self, store: ReadableObjects, of: TopicIdPartition, segment: SegmentObject) -> PlainLog:
        """The segment's `.log`. Makes no request."""
        return PlainLog(store, log_key(of, segment, self), segment.size_bytes)

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
            return read_range(store, key, wanted), wanted.size_bytes

        data: Buffer = process_cache().get((store.url, key), load)
        return IndexBytes(name, memoryview(data)[place.start : place.end])


@dataclass(frozen=True, slots=True)
class OwnKey:
    """The parts of a key of a segment's object."""

    partition: TopicIdPartition
    base_offset: int
    segment_id: str


_AIVEN_SUFFIXES: Final = (aiven_layout.LOG, aiven_layout.INDEXES, aiven_layout.MANIFEST)
_LOCAL_SUFFIXES: Final = (local_layout.LOG, *local_layout.INDEX_SUFFIXES.values())


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
        return path + local_layout.INDEX_SUFFIXES[kind], ByteRange(0, sizes[kind]) if sizes[kind] else None
    ends = dict(zip(sizes, accumulate(sizes.values()), strict=True))
    return path + aiven_layout.INDEXES, ByteRange(ends[kind] - sizes[kind], sizes[kind]) if sizes[kind] else None


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
        found = aiven_layout.parse_key(key)
        return None if found is None else OwnKey(found.partition, found.start_offset, found.segment_id)
    folder, _, name = key.rpartition("/")
    of, file = local_layout.parse_folder(folder), local_layout.parse_file(name)
    if of is None or file is None or file.suffix not in _LOCAL_SUFFIXES:
        return None
    return OwnKey(of, file.start_offset, file.segment_id)


def _path(of: TopicIdPartition, base_offset: int, segment_id: str, layout: OwnLayout) -> str:
    name = offset_file_name(base_offset, f"-{segment_id}")
    if layout is OwnLayout.AIVEN:
        return f"{of.topic}-{of.topic_id}/{of.partition}/{name}"
    return f"{of.topic_partition}-{of.topic_id}/{name}"


def put_segment(
    store: SegmentStore,
    of: TopicIdPartition,
    directory: Path,
    base_offset: int,
    end_offset: int,
    *,
    epochs: Sequence[EpochEntry],
    segment_id: str,
    now_ms: int,
    layout: OwnLayout = OwnLayout.AIVEN,
    is_cleaned: bool = False,
) -> SegmentObject:
    """Put the closed segment at `base_offset` of `directory`, which ends at `end_offset`, into the store.

    `epochs` are the leader epochs of the log. `is_cleaned`: the log cleaner has written it. The
    producer snapshot at `end_offset` must exist, as a broker demands. Raises ObjectStoreError, OSError.
    """
    leader_epochs = [each for each in epochs if each.start_offset < end_offset]
    own_epochs = clamp_epochs(leader_epochs, base_offset, end_offset - 1)
    indexes = {
        IndexKind.OFFSET: _entries(segment_file(directory, base_offset, INDEX_SUFFIX), OffsetIndex),
        IndexKind.TIMESTAMP: _entries(segment_file(directory, base_offset, TIME_INDEX_SUFFIX), TimeIndex),
        IndexKind.PRODUCER_SNAPSHOT: read_snapshot_bytes(segment_file(directory, end_offset, PRODUCER_SNAPSHOT_SUFFIX)),
        IndexKind.LEADER_EPOCH: _epochs_text(leader_epochs),
        IndexKind.TRANSACTION: read_aborted(segment_file(directory, base_offset, TXN_INDEX_SUFFIX)),
    }
    log = segment_file(directory, base_offset, LOG_SUFFIX)
    segment = SegmentObject(
        segment_id=segment_id,
        base_offset=base_offset,
        end_offset=end_offset,
        size_bytes=log.stat().st_size,
        max_timestamp_ms=largest_timestamp_ms(directory, base_offset),
        offset_index_bytes=len(indexes[IndexKind.OFFSET]),
        time_index_bytes=len(indexes[IndexKind.TIMESTAMP]),
        producer_snapshot_bytes=len(indexes[IndexKind.PRODUCER_SNAPSHOT]),
        leader_epoch_index_bytes=len(indexes[IndexKind.LEADER_EPOCH]),
        transaction_index_bytes=len(indexes[IndexKind.TRANSACTION]),
        leader_epochs=tuple(
            SegmentLeaderEpoch(leader_epoch=each.epoch, start_offset=each.start_offset) for each in own_epochs
        ),
        is_cleaned=is_cleaned,
    )
    _put_file(store, log_key(of, segment, layout), log)
    if layout is OwnLayout.AIVEN:
        _, indexes_key, manifest_key = segment_keys(of, base_offset, segment_id)
        store.put(indexes_key, b"".join(indexes.values()))
        store.put(manifest_key, manifest(of, segment, now_ms=now_ms))
        return segment
    for kind in _LOCAL_ORDER:
        if indexes[kind] or kind is not IndexKind.TRANSACTION:
            store.put(index_place(of, segment, kind, layout)[0], indexes[kind])
    return segment


def manifest(of: TopicIdPartition, segment: SegmentObject, *, now_ms: int) -> bytes:
    """The manifest of a plain segment."""
    positions = _positions(segment)
    size_bytes = segment.size_bytes
    tree = {
        "version": "1",
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": _CHUNK_BYTES,
            "originalFileSize": size_bytes,
            "transformedChunkSize": _CHUNK_BYTES,
            "finalTransformedChunkSize": (size_bytes - 1) % _CHUNK_BYTES + 1 if size_bytes else 0,
        },
        "segmentIndexes": dict(positions),
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": of.topic_id,
                    "topicPartition": {"topic": of.topic, "partition": of.partition},
                },
                "id": segment.segment_id,
            },
            "startOffset": segment.base_offset,
            "endOffset": segment.end_offset - 1,
            "maxTimestampMs": segment.max_timestamp_ms,
            "brokerId": _NO_BROKER,
            "eventTimestampMs": now_ms,
            "segmentLeaderEpochs": {str(each.leader_epoch): each.start_offset for each in segment.leader_epochs},
        },
    }
    return json.dumps(tree, separators=(",", ":")).encode()


def _positions(segment: SegmentObject) -> Iterator[tuple[str, dict[str, int] | None]]:
    position = 0
    for kind, size_bytes in index_sizes(segment).items():
        is_missing = kind is IndexKind.TRANSACTION and not size_bytes
        yield kind.value, None if is_missing else {"position": position, "size": size_bytes}
        position += size_bytes


def _epochs_text(epochs: Sequence[EpochEntry]) -> bytes:
    """A leader epoch checkpoint: version 0, number of entries, entries."""
    lines = ["0", str(len(epochs)), *(f"{each.epoch} {each.start_offset}" for each in epochs)]
    return ("\n".join(lines) + "\n").encode()


def _entries(path: Path, kind: type[MappedIndex]) -> bytes:
    return read_entries(path, kind.entry_struct.size)


def _put_file(store: SegmentStore, key: str, path: Path) -> None:
    """Put a file without reading it into memory."""
    with open_to_read(path) as file:
        if not os.fstat(file.fileno()).st_size:
            store.put(key, b"")
            return
        # Not closed here: the traceback of a failed put refers to the mapping, which ends with the last reference.
        store.put(key, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
