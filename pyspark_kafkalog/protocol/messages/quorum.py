"""Requests and responses, as classes: DescribeQuorum, FetchSnapshot.

Generated from ../schemas/quorum.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, Records
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class DescribeQuorumRequestPartitionData(Message):
    partition_index: int = 0


class DescribeQuorumRequestTopicData(Message):
    topic_name: str = ""
    partitions: tuple[DescribeQuorumRequestPartitionData, ...] = ()


class DescribeQuorumRequest(ApiMessage):
    """DescribeQuorumRequest: api key 55, versions 0 to 2."""

    topics: tuple[DescribeQuorumRequestTopicData, ...] = ()


class ReplicaState(Message):
    replica_id: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 2
    log_end_offset: int = 0
    last_fetch_timestamp: int = -1  # from version 1
    last_caught_up_timestamp: int = -1  # from version 1


class DescribeQuorumResponsePartitionData(Message):
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""  # from version 2
    leader_id: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


class DescribeQuorumResponseTopicData(Message):
    topic_name: str = ""
    partitions: tuple[DescribeQuorumResponsePartitionData, ...] = ()


class Listener(Message):
    name: str = ""
    host: str = ""
    port: int = 0


class Node(Message):
    node_id: int = 0
    listeners: tuple[Listener, ...] = ()


class DescribeQuorumResponse(ApiMessage):
    """DescribeQuorumResponse: api key 55, versions 0 to 2."""

    error_code: int = 0
    error_message: str | None = ""  # from version 2
    topics: tuple[DescribeQuorumResponseTopicData, ...] = ()
    nodes: tuple[Node, ...] = ()  # from version 2


class SnapshotId(Message):
    end_offset: int = 0
    epoch: int = 0


class FetchSnapshotRequestPartitionSnapshot(Message):
    partition: int = 0
    current_leader_epoch: int = 0
    snapshot_id: SnapshotId = SnapshotId()
    position: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 1


class FetchSnapshotRequestTopicSnapshot(Message):
    name: str = ""
    partitions: tuple[FetchSnapshotRequestPartitionSnapshot, ...] = ()


class FetchSnapshotRequest(ApiMessage):
    """FetchSnapshotRequest: api key 59, versions 0 to 1."""

    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2147483647
    topics: tuple[FetchSnapshotRequestTopicSnapshot, ...] = ()


class LeaderIdAndEpoch(Message):
    leader_id: int = 0
    leader_epoch: int = 0


class FetchSnapshotResponsePartitionSnapshot(Message):
    index: int = 0
    error_code: int = 0
    snapshot_id: SnapshotId = SnapshotId()
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    size: int = 0
    position: int = 0
    unaligned_records: Records | None = None


class FetchSnapshotResponseTopicSnapshot(Message):
    name: str = ""
    partitions: tuple[FetchSnapshotResponsePartitionSnapshot, ...] = ()


class NodeEndpoint(Message):
    node_id: int = 0
    host: str = ""
    port: int = 0


class FetchSnapshotResponse(ApiMessage):
    """FetchSnapshotResponse: api key 59, versions 0 to 1."""

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: tuple[FetchSnapshotResponseTopicSnapshot, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()  # from version 1
