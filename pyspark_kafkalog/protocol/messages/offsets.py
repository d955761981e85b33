"""Requests and responses, as classes: OffsetCommit, OffsetFetch, OffsetDelete.

Generated from ../schemas/offsets.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class OffsetCommitRequestPartition(Message):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # from version 6
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(Message):
    name: str = ""  # versions 0 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partitions: tuple[OffsetCommitRequestPartition, ...] = ()


class OffsetCommitRequest(ApiMessage):
    """OffsetCommitRequest: api key 8, versions 2 to 10."""

    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None  # from version 7
    retention_time_ms: int = -1  # versions 2 to 4
    topics: tuple[OffsetCommitRequestTopic, ...] = ()


class OffsetCommitResponsePartition(Message):
    partition_index: int = 0
    error_code: int = 0


class OffsetCommitResponseTopic(Message):
    name: str = ""  # versions 0 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partitions: tuple[OffsetCommitResponsePartition, ...] = ()


class OffsetCommitResponse(ApiMessage):
    """OffsetCommitResponse: api key 8, versions 2 to 10."""

    throttle_time_ms: int = 0  # from version 3
    topics: tuple[OffsetCommitResponseTopic, ...] = ()


class OffsetFetchRequestTopic(Message):
    name: str = ""
    partition_indexes: tuple[int, ...] = ()


class OffsetFetchRequestTopics(Message):
    name: str = ""  # versions 8 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partition_indexes: tuple[int, ...] = ()


class OffsetFetchRequestGroup(Message):
    group_id: str = ""
    member_id: str | None = None  # from version 9
    member_epoch: int = -1  # from version 9
    topics: tuple[OffsetFetchRequestTopics, ...] | None = ()


class OffsetFetchRequest(ApiMessage):
    """OffsetFetchRequest: api key 9, versions 1 to 10."""

    group_id: str = ""  # versions 0 to 7
    topics: tuple[OffsetFetchRequestTopic, ...] | None = ()  # versions 0 to 7
    groups: tuple[OffsetFetchRequestGroup, ...] = ()  # from version 8
    require_stable: bool = False  # from version 7


class OffsetFetchResponsePartition(Message):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # versions 5 to 7
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseTopic(Message):
    name: str = ""
    partitions: tuple[OffsetFetchResponsePartition, ...] = ()


class OffsetFetchResponsePartitions(Message):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseTopics(Message):
    name: str = ""  # versions 8 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partitions: tuple[OffsetFetchResponsePartitions, ...] = ()


class OffsetFetchResponseGroup(Message):
    group_id: str = ""
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    error_code: int = 0


class OffsetFetchResponse(ApiMessage):
    """OffsetFetchResponse: api key 9, versions 1 to 10."""

    throttle_time_ms: int = 0  # from version 3
    topics: tuple[OffsetFetchResponseTopic, ...] = ()  # versions 0 to 7
    error_code: int = 0  # versions 2 to 7
    groups: tuple[OffsetFetchResponseGroup, ...] = ()  # from version 8


class OffsetDeleteRequestPartition(Message):
    partition_index: int = 0


class OffsetDeleteRequestTopic(Message):
    name: str = ""
    partitions: tuple[OffsetDeleteRequestPartition, ...] = ()


class OffsetDeleteRequest(ApiMessage):
    """OffsetDeleteRequest: api key 47, version 0."""

    group_id: str = ""
    topics: tuple[OffsetDeleteRequestTopic, ...] = ()


class OffsetDeleteResponsePartition(Message):
    partition_index: int = 0
    error_code: int = 0


class OffsetDeleteResponseTopic(Message):
    name: str = ""
    partitions: tuple[OffsetDeleteResponsePartition, ...] = ()


class OffsetDeleteResponse(ApiMessage):
    """OffsetDeleteResponse: api key 47, version 0."""

    error_code: int = 0
    throttle_time_ms: int = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
