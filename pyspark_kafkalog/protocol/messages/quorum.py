"""Requests and responses, as classes: DescribeQuorum, FetchSnapshot.

Generated from ../schemas/quorum.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.pieces import Records
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class DescribeQuorumRequestPartitionData(Message):
    """A struct of DescribeQuorumRequest."""

    partition_index: int = 0
    unknown_tags: UnknownTags = ()


class DescribeQuorumRequestTopicData(Message):
    """A struct of DescribeQuorumRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": DescribeQuorumRequestPartitionData,
    }

    topic_name: str = ""
    partitions: tuple[DescribeQuorumRequestPartitionData, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeQuorumRequest(ApiMessage):
    """DescribeQuorumRequest: api key 55, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DescribeQuorumRequestTopicData,
    }

    topics: tuple[DescribeQuorumRequestTopicData, ...] = ()
    unknown_tags: UnknownTags = ()


class ReplicaState(Message):
    """A struct of DescribeQuorumResponse."""

    replica_id: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 2
    log_end_offset: int = 0
    last_fetch_timestamp: int = -1  # from version 1
    last_caught_up_timestamp: int = -1  # from version 1
    unknown_tags: UnknownTags = ()


class DescribeQuorumResponsePartitionData(Message):
    """A struct of DescribeQuorumResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "current_voters": ReplicaState,
        "observers": ReplicaState,
    }

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""  # from version 2
    leader_id: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeQuorumResponseTopicData(Message):
    """A struct of DescribeQuorumResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": DescribeQuorumResponsePartitionData,
    }

    topic_name: str = ""
    partitions: tuple[DescribeQuorumResponsePartitionData, ...] = ()
    unknown_tags: UnknownTags = ()


class Listener(Message):
    """A struct of DescribeQuorumResponse."""

    name: str = ""
    host: str = ""
    port: int = 0
    unknown_tags: UnknownTags = ()


class Node(Message):
    """A struct of DescribeQuorumResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "listeners": Listener,
    }

    node_id: int = 0
    listeners: tuple[Listener, ...] = ()
    unknown_tags: UnknownTags = ()


class DescribeQuorumResponse(ApiMessage):
    """DescribeQuorumResponse: api key 55, versions 0 to 2."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": DescribeQuorumResponseTopicData,
        "nodes": Node,
    }

    error_code: int = 0
    error_message: str | None = ""  # from version 2
    topics: tuple[DescribeQuorumResponseTopicData, ...] = ()
    nodes: tuple[Node, ...] = ()  # from version 2
    unknown_tags: UnknownTags = ()


class SnapshotId(Message):
    """A struct of FetchSnapshotRequest."""

    end_offset: int = 0
    epoch: int = 0
    unknown_tags: UnknownTags = ()


class FetchSnapshotRequestPartitionSnapshot(Message):
    """A struct of FetchSnapshotRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "snapshot_id": SnapshotId,
    }

    partition: int = 0
    current_leader_epoch: int = 0
    snapshot_id: SnapshotId = SnapshotId()
    position: int = 0
    replica_directory_id: str = ZERO_UUID  # from version 1
    unknown_tags: UnknownTags = ()


class FetchSnapshotRequestTopicSnapshot(Message):
    """A struct of FetchSnapshotRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": FetchSnapshotRequestPartitionSnapshot,
    }

    name: str = ""
    partitions: tuple[FetchSnapshotRequestPartitionSnapshot, ...] = ()
    unknown_tags: UnknownTags = ()


class FetchSnapshotRequest(ApiMessage):
    """FetchSnapshotRequest: api key 59, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": FetchSnapshotRequestTopicSnapshot,
    }

    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2147483647
    topics: tuple[FetchSnapshotRequestTopicSnapshot, ...] = ()
    unknown_tags: UnknownTags = ()


class LeaderIdAndEpoch(Message):
    """A struct of FetchSnapshotResponse."""

    leader_id: int = 0
    leader_epoch: int = 0
    unknown_tags: UnknownTags = ()


class FetchSnapshotResponsePartitionSnapshot(Message):
    """A struct of FetchSnapshotResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "snapshot_id": SnapshotId,
        "current_leader": LeaderIdAndEpoch,
    }

    index: int = 0
    error_code: int = 0
    snapshot_id: SnapshotId = SnapshotId()
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    size: int = 0
    position: int = 0
    unaligned_records: Records | None = None
    unknown_tags: UnknownTags = ()


class FetchSnapshotResponseTopicSnapshot(Message):
    """A struct of FetchSnapshotResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": FetchSnapshotResponsePartitionSnapshot,
    }

    name: str = ""
    partitions: tuple[FetchSnapshotResponsePartitionSnapshot, ...] = ()
    unknown_tags: UnknownTags = ()


class NodeEndpoint(Message):
    """A struct of FetchSnapshotResponse."""

    node_id: int = 0
    host: str = ""
    port: int = 0
    unknown_tags: UnknownTags = ()


class FetchSnapshotResponse(ApiMessage):
    """FetchSnapshotResponse: api key 59, versions 0 to 1."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": FetchSnapshotResponseTopicSnapshot,
        "node_endpoints": NodeEndpoint,
    }

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: tuple[FetchSnapshotResponseTopicSnapshot, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()  # from version 1
    unknown_tags: UnknownTags = ()
