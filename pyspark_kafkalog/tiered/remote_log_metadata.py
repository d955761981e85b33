"""`__remote_log_metadata`: what brokers noted of the segments that they tiered, as it is read and as it is written.

A copy of a segment is two records: one with all of its metadata (COPY_SEGMENT_STARTED), and an update when the copy is
complete (COPY_SEGMENT_FINISHED). Its deletion is two more updates. Records of many partitions share a partition of the
topic, so all that the directory has are read. A key is ignored: brokers of version 4.1 write none.

A process keeps what it has read and reads only new records later; a partition of the topic that was truncated or
created again is read from its start.

Brokers find the segments of a partition by replaying one partition of the topic, which follows from the topic's id and
the partition's number. An export writes the two records of a complete copy there.

Source of the rules: org.apache.kafka.server.log.remote.metadata.storage.RemotePartitionMetadataStore,
RemoteLogMetadataCache, RemoteLogLeaderEpochState and ConsumerTask; RemoteLogSegmentState.isValidTransition. Of what is
written: RemoteLogMetadataTopicPartitioner, TopicBasedRemoteLogMetadataManager (whose configurations of the topic these
are) and RemoteLogSegmentMetadata.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.messages.internal_records import (
    RemoteLogRecord,
    RemoteLogSegmentIdEntry,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpochEntry,
    TopicIdPartitionEntry,
)
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.messages.records import decode_framed, encode_record
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.names import decode_uuid
from pyspark_kafkalog.storage.segment.reader import Extent, SegmentReader
from pyspark_kafkalog.tiered.segments import RemoteSegment, RemoteSegmentState, TopicIdPartition, check_leader_epochs
from pyspark_kafkalog.values import dataclass

REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
_DELETE_PARTITION_FINISHED: Final = 2
_KEPT_DIRECTORIES: Final = 4
_NEXT_STATES: Final[Mapping[RemoteSegmentState, frozenset[RemoteSegmentState]]] = {
    RemoteSegmentState.COPY_SEGMENT_STARTED: frozenset(
        (RemoteSegmentState.COPY_SEGMENT_FINISHED, RemoteSegmentState.DELETE_SEGMENT_STARTED)
    ),
    RemoteSegmentState.COPY_SEGMENT_FINISHED: frozenset((RemoteSegmentState.DELETE_SEGMENT_STARTED,)),
    RemoteSegmentState.DELETE_SEGMENT_STARTED: frozenset((RemoteSegmentState.DELETE_SEGMENT_FINISHED,)),
    RemoteSegmentState.DELETE_SEGMENT_FINISHED: frozenset(),
}
_TYPES: Final[Mapping[int, type[RemoteLogRecord]]] = {
    0: RemoteLogSegmentMetadataRecord,
    1: RemoteLogSegmentMetadataUpdateRecord,
    2: RemotePartitionDeleteMetadataRecord,
}
#: remote.log.metadata.topic.num.partitions of a broker that does not set it.
METADATA_PARTITIONS: Final = 50
#: As the broker creates the topic.
METADATA_TOPIC_CONFIGS: Final[Mapping[str, str]] = MappingProxyType(
    {"cleanup.policy": "delete", "retention.ms": "-1", "remote.storage.enable": "false"}
)
_NO_TIMESTAMP: Final = -1
_INT32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


@dataclass(slots=True)
class RemotePartition:
    """The copies of one partition's segments that are not deleted completely, by id.

    `highest_by_epoch`: the last offset that was copied in each leader epoch, also of copies that were deleted since.
    """

    segments: dict[str, RemoteSegment] = field(default_factory=dict)
    highest_by_epoch: dict[int, int] = field(default_factory=dict)

    def change_state(self, segment_id: str, state: RemoteSegmentState, custom_metadata: bytes | None) -> None:
        """Apply an update. One of an unknown copy, or to a state that cannot follow the present one, is dropped."""
        known = self.segments.get(segment_id)
        if known is None or (state is not known.state and state not in _NEXT_STATES[known.state]):
            return
        if state is RemoteSegmentState.DELETE_SEGMENT_FINISHED:
            del self.segments[segment_id]
            return
        custom = known.custom_metadata if custom_metadata is None else custom_metadata
        self.segments[segment_id] = changed = replace(known, state=state, custom_metadata=custom)
        if state is RemoteSegmentState.COPY_SEGMENT_FINISHED:
            for each, last_offset in _last_offsets(changed):
                self.highest_by_epoch[each.epoch] = max(last_offset, self.highest_by_epoch.get(each.epoch, last_offset))


def _last_offsets(segment: RemoteSegment) -> Iterable[tuple[EpochEntry, int]]:
    """Each leader epoch of the segment with its last offset in it."""
    following = [each.start_offset - 1 for each in segment.leader_epochs[1:]]
    return zip(segment.leader_epochs, [*following, segment.last_offset], strict=True)


class RemoteLogMetadata:
    """The state that the records add up to: a RemotePartition for each topic id and partition number."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], RemotePartition] = {}

    def apply(self, value: Buffer, *, file: str, file_position: int) -> None:
        """Apply one record's value. `file` and `file_position` name it in errors.

        Raises CorruptRecordError, or UnsupportedFormatError for an unknown type or version.
        """
        at = _Place(file, file_position)
        record = decode_framed(value, _TYPES, kind="remote log metadata", file=file, file_position=file_position)
        if isinstance(record, RemoteLogSegmentMetadataRecord):
            self._start(record, at)
        elif isinstance(record, RemoteLogSegmentMetadataUpdateRecord):
            of = record.remote_log_segment_id.topic_id_partition
            found = self.partitions.get((of.id, of.partition))
            state = _state(record.remote_log_segment_state, at)
            if found is not None:
                found.change_state(record.remote_log_segment_id.id, state, record.custom_metadata)
        elif isinstance(record, RemotePartitionDeleteMetadataRecord):
            of = record.topic_id_partition
            if record.remote_partition_delete_state == _DELETE_PARTITION_FINISHED:
                self.partitions.pop((of.id, of.partition), None)

    def _start(self, record: RemoteLogSegmentMetadataRecord, at: _Place) -> None:
        of = record.remote_log_segment_id.topic_id_partition
        segment = _checked_segment(record, at)
        found = self.partitions.setdefault((of.id, of.partition), RemotePartition())
        known = found.segments.get(segment.segment_id)
        if known is None or known.state is RemoteSegmentState.COPY_SEGMENT_STARTED:
            found.segments[segment.segment_id] = segment


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a record is: the file, and the byte at which its batch begins."""

    file: str
    position: int

    def error(self, expected: str, found: str) -> CorruptRecordError:
        return CorruptRecordError(file=self.file, position=self.position, expected=expected, found=found)


def _state(number: int, at: _Place) -> RemoteSegmentState:
    try:
        return RemoteSegmentState(number)
    except ValueError:
        raise at.error("a state of a remote log segment, from 0 to 3", str(number)) from None


def _checked_segment(record: RemoteLogSegmentMetadataRecord, at: _Place) -> RemoteSegment:
    """The copy that the record begins. Raises CorruptRecordError for values that cannot be a segment's."""
    start, last = record.start_offset, record.end_offset
    epochs = tuple(sorted(EpochEntry(each.leader_epoch, each.offset) for each in record.segment_leader_epochs))
    if _state(record.remote_log_segment_state, at) is not RemoteSegmentState.COPY_SEGMENT_STARTED:
        raise at.error("a segment in state COPY_SEGMENT_STARTED (0)", f"state {record.remote_log_segment_state}")
    if not 0 <= start <= last:
        raise at.error("a segment's first and last offset", f"{start} and {last}")
    if record.segment_size_in_bytes < 0:
        raise at.error("a size of 0 or more bytes", str(record.segment_size_in_bytes))
    check_leader_epochs(epochs, start, last, at.error)
    return RemoteSegment(
        segment_id=record.remote_log_segment_id.id,
        start_offset=start,
        last_offset=last,
        size_bytes=record.segment_size_in_bytes,
        leader_epochs=epochs,
        state=RemoteSegmentState.COPY_SEGMENT_STARTED,
        max_timestamp_ms=record.max_timestamp_ms,
        has_transaction_index=not record.txn_index_empty,
        custom_metadata=record.custom_metadata,
    )


@dataclass(frozen=True, slots=True)
class MetadataPartition:
    """A partition of the topic in a broker's directory: its committed records are [log_start_offset, end_offset)."""

    number: int
    topic_id: str | None
    log_start_offset: int
    end_offset: int
    extents: tuple[Extent, ...]


class RemoteLogMetadataReader:
    """Replays the partitions of the topic in one broker's directory, each record once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metadata = RemoteLogMetadata()
        self._read_to: dict[tuple[int, str | None], int] = {}

    def read(self, partitions: Iterable[MetadataPartition]) -> RemoteLogMetadata:
        """The state as of the ends of `partitions`. Raises DiskFormatError for damage, OSError."""
        with self._lock:
            partitions = tuple(partitions)
            if not self._continues(partitions):
                self._metadata, self._read_to = RemoteLogMetadata(), {}
            for each in partitions:
                self._read_partition(each)
            return self._metadata

    def _continues(self, partitions: Iterable[MetadataPartition]) -> bool:
        """Whether `partitions` are those that were read, perhaps with more records."""
        ends = {(each.number, each.topic_id): each.end_offset for each in partitions}
        return all(ends.get(known, -1) >= offset for known, offset in self._read_to.items())

    def _read_partition(self, partition: MetadataPartition) -> None:
        key = partition.number, partition.topic_id
        offset = max(self._read_to.get(key, 0), partition.log_start_offset)
        first = max(bisect_right(partition.extents, offset, key=attrgetter("base_offset")) - 1, 0)
        for extent in partition.extents[first:]:
            if extent.base_offset >= partition.end_offset:
                break
            self._read_extent(extent, offset, partition.end_offset)
        self._read_to[key] = partition.end_offset

    def _read_extent(self, extent: Extent, start_offset: int, end_offset: int) -> None:
        with SegmentReader(extent) as segment:
            for position, header in segment.headers(segment.position_for_offset(start_offset)):
                if header.base_offset >= end_offset:
                    return
                if header.is_control or header.last_offset < start_offset:
                    continue
                data = segment.batch_at(position, header)
                for record in decode_batch(data, 0, file=segment.file, file_position=position).records:
                    if record.value is not None and start_offset <= record.offset < end_offset:
                        self._metadata.apply(record.value, file=segment.file, file_position=position)


@lru_cache(maxsize=_KEPT_DIRECTORIES)
def metadata_reader(directories: tuple[Path, ...]) -> RemoteLogMetadataReader:
    """This process's reader of the topic in a broker's directories."""
    return RemoteLogMetadataReader()


def metadata_partition(of: TopicIdPartition, partitions_count: int) -> int:
    """The partition of `__remote_log_metadata`, which has `partitions_count`, for the copies of a partition."""
    import numpy as np

    from pyspark_kafkalog.record.partitioner import murmur2  # imports compiled code

    most, least = struct.unpack(">QQ", decode_uuid(of.topic_id))
    hashed = 1
    for each in (_hash_of_long(least), _hash_of_long(most), of.partition):  # java.util.Objects.hash
        hashed = (31 * hashed + each) & _INT32
    data = np.frombuffer(hashed.to_bytes(4, "big"), dtype=np.uint8)
    return (int(murmur2(data.ctypes.data, len(data))) & _POSITIVE) % partitions_count


def _hash_of_long(value: int) -> int:
    return (value ^ (value >> 32)) & _INT32


def copied_records(of: TopicIdPartition, segment: RemoteSegment, *, broker_id: int, now_ms: int) -> tuple[bytes, bytes]:
    """The values of the two records that make `segment` known as copied completely by the node `broker_id`."""
    segment_id = RemoteLogSegmentIdEntry(
        topic_id_partition=TopicIdPartitionEntry(name=of.topic, id=of.topic_id, partition=of.partition),
        id=segment.segment_id,
    )
    started = RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_id,
        start_offset=segment.start_offset,
        end_offset=segment.last_offset,
        broker_id=broker_id,
        max_timestamp_ms=_NO_TIMESTAMP if segment.max_timestamp_ms is None else segment.max_timestamp_ms,
        event_timestamp_ms=now_ms,
        segment_leader_epochs=tuple(
            SegmentLeaderEpochEntry(leader_epoch=each.epoch, offset=each.start_offset) for each in segment.leader_epochs
        ),
        segment_size_in_bytes=segment.size_bytes,
        remote_log_segment_state=RemoteSegmentState.COPY_SEGMENT_STARTED,
        txn_index_empty=not segment.has_transaction_index,
    )
    finished = RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=segment_id,
        broker_id=broker_id,
        event_timestamp_ms=now_ms,
        custom_metadata=segment.custom_metadata,
        remote_log_segment_state=RemoteSegmentState.COPY_SEGMENT_FINISHED,
    )
    return encode_record(started), encode_record(finished)


def remote_segment(segment: SegmentObject) -> RemoteSegment:
    """A segment that this package has put, as brokers describe it."""
    return RemoteSegment(
        segment_id=segment.segment_id,
        start_offset=segment.base_offset,
        last_offset=segment.end_offset - 1,
        size_bytes=segment.size_bytes,
        leader_epochs=tuple(EpochEntry(each.leader_epoch, each.start_offset) for each in segment.leader_epochs),
        max_timestamp_ms=segment.max_timestamp_ms,
        has_transaction_index=segment.transaction_index_bytes > 0,
    )
