"""The layout `local`: Kafka's LocalTieredStorage, whose objects are plain copies of a segment's files.

    [kafka-tiered-storage/]<topic>-<partition>-<topic id>/<20 digit start offset>-<segment id>.<suffix>

    .log .index .timeindex     as in the partition's directory
    .txnindex                  only if the segment has one
    .leader_epoch_checkpoint   the log's leader epochs below the segment's end, as leader-epoch-checkpoint
    .snapshot                  the producers at the segment's end; copied last, so that with it the copy is complete

No object says where a segment ends: from the objects alone it is the end of the last batch. A deletion removes the
`.log` first.

Source: org.apache.kafka.server.log.remote.storage.RemoteLogSegmentFileset and LocalTieredStorage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.object_store.store import ByteRange, ObjectMetadata, ObjectNotFoundError, check_key
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, parse_header
from pyspark_kafkalog.storage.artefacts.checkpoint_file import parse_epochs
from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.names import offset_file_name, parse_partition_dir
from pyspark_kafkalog.tiered.objects import (
    INDEX_BYTES_MAX,
    WINDOW_BYTES,
    Copy,
    IndexBytes,
    IndexKind,
    ReadableObjects,
    RemoteBytes,
    Window,
    for_each,
    object_name,
    read_range,
)
from pyspark_kafkalog.tiered.segments import UUID_CHARS, RemoteSegment, TopicIdPartition, clamp_epochs, is_uuid
from pyspark_kafkalog.units import INT64_MAX
from pyspark_kafkalog.values import dataclass

#: LocalTieredStorage makes this folder in the directory that `rsm.config.dir` names.
FOLDER: Final = "kafka-tiered-storage"
LOG: Final = ".log"
SNAPSHOT: Final = ".snapshot"
INDEX_SUFFIXES: Final[Mapping[IndexKind, str]] = {
    IndexKind.OFFSET: ".index",
    IndexKind.TIMESTAMP: ".timeindex",
    IndexKind.TRANSACTION: ".txnindex",
    IndexKind.LEADER_EPOCH: ".leader_epoch_checkpoint",
    IndexKind.PRODUCER_SNAPSHOT: SNAPSHOT,
}
_REQUIRED: Final = frozenset((LOG, *INDEX_SUFFIXES.values())) - {".txnindex"}
_FILE: Final = re.compile(rf"([0-9]{{20}})-(.{{{UUID_CHARS}}})(\.[a-z_]+)")


class SegmentFile(NamedTuple):
    """The name of an object of a segment, in its parts."""

    start_offset: int
    segment_id: str
    suffix: str


@dataclass(frozen=True, slots=True)
class LocalLayout:
    """`folder`: "kafka-tiered-storage" if the store's root is the directory above it, else ""."""

    folder: str = ""
    name: str = "local"
    keeps_indexes: ClassVar[bool] = False

    def log_content(self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment) -> PlainLog:
        return PlainLog(store, self._key(of, segment, LOG), segment.size_bytes)

    def index(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, kind: IndexKind
    ) -> IndexBytes | None:
        """See SegmentLayout. A missing transaction index is an empty one, as in Kafka."""
        key = self._key(of, segment, INDEX_SUFFIXES[kind])
        try:
            return IndexBytes(object_name(store, key), store.get(key, max_bytes=INDEX_BYTES_MAX))
        except ObjectNotFoundError:
            if kind is IndexKind.TRANSACTION:
                return None
            raise

    def partitions(self, store: ReadableObjects) -> dict[TopicIdPartition, list[ObjectMetadata]]:
        found: dict[TopicIdPartition, list[ObjectMetadata]] = defaultdict(list)
        for each in store.list_objects(self.folder):
            of = parse_folder(self._in_folder(each.key).partition("/")[0])
            if of is not None:
                found[of].append(each)
        return dict(found)

    def objects_of(self, store: ReadableObjects, of: TopicIdPartition) -> list[ObjectMetadata]:
        return list(store.list_objects(self._folder_of(of)))

    @property
    def required(self) -> frozenset[str]:
        return _REQUIRED

    def copies(self, objects: Sequence[ObjectMetadata]) -> dict[Copy, dict[str, int]]:
        copies: dict[Copy, dict[str, int]] = defaultdict(dict)
        for each in objects:
            file = parse_file(each.key.rpartition("/")[2])
            if file is not None:
                copies[file.start_offset, file.segment_id][file.suffix] = each.size_bytes
        return dict(copies)

    def segments(
        self, store: ReadableObjects, of: TopicIdPartition, objects: Sequence[ObjectMetadata]
    ) -> list[RemoteSegment]:
        complete = [(*copy, sizes) for copy, sizes in self.copies(objects).items() if self.required.issubset(sizes)]
        return for_each(lambda each: self._segment(store, of, *each), sorted(complete, key=lambda each: each[:2]))

    def _segment(
        self, store: ReadableObjects, of: TopicIdPartition, start_offset: int, segment_id: str, sizes: Mapping[str, int]
    ) -> RemoteSegment | None:
        """A copy as its objects describe it; None if it holds no batch, or is deleted meanwhile."""
        found = RemoteSegment(
            segment_id=segment_id,
            start_offset=start_offset,
            last_offset=INT64_MAX - 1,
            size_bytes=sizes[LOG],
            leader_epochs=(),
            has_transaction_index=".txnindex" in sizes,
        )
        try:
            epochs = self.index(store, of, found, IndexKind.LEADER_EPOCH)
            last_offset = self._last_offset(store, of, found, sizes[".index"])
            max_timestamp_ms = self._max_timestamp_ms(store, of, found, sizes[".timeindex"])
        except ObjectNotFoundError:
            return None
        if epochs is None or last_offset < start_offset:
            return None
        return RemoteSegment(
            segment_id=segment_id,
            start_offset=start_offset,
            last_offset=last_offset,
            size_bytes=sizes[LOG],
            leader_epochs=clamp_epochs(parse_epochs(bytes(epochs.data), file=epochs.name), start_offset, last_offset),
            max_timestamp_ms=max_timestamp_ms,
            has_transaction_index=found.has_transaction_index,
        )

    def _last_offset(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, index_bytes: int
    ) -> int:
        """The last offset of the `.log`'s last batch, -1 if it has none; found from the last index entry on."""
        content = self.log_content(store, of, segment)
        source = RemoteBytes(content)
        try:
            position = self._last_position(store, of, segment, index_bytes)
            for start in (position, 0) if position else (0,):
                try:
                    return _last_offset_from(source, start)
                except CorruptRecordError:
                    if start == 0:
                        raise
        finally:
            source.close()
        raise AssertionError("unreachable")

    def _last_position(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, index_bytes: int
    ) -> int:
        entry = self._last_entry(store, of, segment, IndexKind.OFFSET, index_bytes, OffsetIndex.entry_struct.size)
        position = OffsetIndex.entry_struct.unpack(entry)[1] if entry else 0
        return position if 0 < position < segment.size_bytes else 0

    def _max_timestamp_ms(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, index_bytes: int
    ) -> int | None:
        """The timestamp of the last entry, which a roll writes; None without a valid one."""
        entry = self._last_entry(store, of, segment, IndexKind.TIMESTAMP, index_bytes, TimeIndex.entry_struct.size)
        timestamp_ms = TimeIndex.entry_struct.unpack(entry)[0] if entry else 0
        return timestamp_ms if timestamp_ms > 0 else None

    def _last_entry(
        self,
        store: ReadableObjects,
        of: TopicIdPartition,
        segment: RemoteSegment,
        kind: IndexKind,
        index_bytes: int,
        entry_bytes: int,
    ) -> bytes:
        if index_bytes < entry_bytes or index_bytes % entry_bytes:
            return b""
        key = self._key(of, segment, INDEX_SUFFIXES[kind])
        return bytes(read_range(store, key, ByteRange(index_bytes - entry_bytes, entry_bytes)))

    def _key(self, of: TopicIdPartition, segment: RemoteSegment, suffix: str) -> str:
        return f"{self._folder_of(of)}/{offset_file_name(segment.start_offset, f'-{segment.segment_id}{suffix}')}"

    def _folder_of(self, of: TopicIdPartition) -> str:
        folder = f"{of.topic_partition}-{of.topic_id}"
        return check_key(f"{self.folder}/{folder}" if self.folder else folder)

    def _in_folder(self, key: str) -> str:
        return key.removeprefix(f"{self.folder}/") if self.folder else key


def _last_offset_from(source: RemoteBytes, position: int) -> int:
    last_offset = -1
    while position < source.size_bytes():
        head = source.read(position, RECORD_BATCH_OVERHEAD_BYTES)
        header = parse_header(head, 0, file=source.name, file_position=position)
        position += header.size_bytes
        if position > source.size_bytes():
            raise CorruptRecordError(
                file=source.name,
                position=position - header.size_bytes,
                expected=f"a whole batch of {header.size_bytes} bytes",
                found=f"{source.size_bytes() - position + header.size_bytes} bytes to the end of the object",
            )
        last_offset = header.last_offset
    return last_offset


@dataclass(frozen=True, slots=True)
class PlainLog:
    """A LogContent whose object is the `.log` itself."""

    store: ReadableObjects
    key: str
    size_bytes: int

    @property
    def name(self) -> str:
        return object_name(self.store, self.key)

    def window_end(self, start: int) -> int:
        return min(start + WINDOW_BYTES, self.size_bytes)

    def window(self, start: int, end: int) -> Window:
        """The bytes [start, end), by one request."""
        return Window(start, memoryview(read_range(self.store, self.key, ByteRange(start, end - start))))


def parse_folder(name: str) -> TopicIdPartition | None:
    """The partition of a folder named <topic>-<partition>-<topic id>; ids may begin with or hold a `-`."""
    topic_id = name[-UUID_CHARS:]
    of = parse_partition_dir(name[: -UUID_CHARS - 1])
    if of is None or not is_uuid(topic_id) or name[-UUID_CHARS - 1] != "-":
        return None
    return TopicIdPartition(of.topic, topic_id, of.partition)


def parse_file(name: str) -> SegmentFile | None:
    """The parts of an object's name, without its folder; None if it is not one of a segment."""
    match = _FILE.fullmatch(name)
    if match is None or not is_uuid(match[2]) or int(match[1]) > INT64_MAX:
        return None
    return SegmentFile(int(match[1]), match[2], match[3])
