"""`__remote_log_metadata` as it is written: the records of a complete copy, and the partition that they belong to.

Brokers find the segments of a partition by replaying one partition of the topic, which follows from the topic's id and
the partition's number. A copy is two records: one with all that is known of the segment, in state COPY_SEGMENT_STARTED,
and an update to COPY_SEGMENT_FINISHED. Keys are null. What they look like when they are read: remote_log_metadata.py.

Source of the rules: org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner,
TopicBasedRemoteLogMetadataManager (whose configurations of the topic these are) and RemoteLogSegmentMetadata.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.messages.records import encode_record
from pyspark_kafkalog.metadata.messages.remote_log_records import (
    RemoteLogSegmentIdEntry,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpochEntry,
    TopicIdPartitionEntry,
)
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.names import decode_uuid
from pyspark_kafkalog.tiered.segments import RemoteSegment, RemoteSegmentState, TopicIdPartition

#: remote.log.metadata.topic.num.partitions of a broker that does not set it.
METADATA_PARTITIONS: Final = 50
#: As the broker creates the topic.
METADATA_TOPIC_CONFIGS: Final[Mapping[str, str]] = MappingProxyType(
    {"cleanup.policy": "delete", "retention.ms": "-1", "remote.storage.enable": "false"}
)
_NO_TIMESTAMP: Final = -1
_INT32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


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
