"""Requests and responses, as classes: OffsetCommit, OffsetFetch, OffsetDelete.

Generated from ../schemas/offsets.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas; `unknown_tags` are the tagged fields that the schema does not
have, as (tag, bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID, UnknownTags
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class OffsetCommitRequestPartition(Message):
    """A struct of OffsetCommitRequest."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # from version 6
    committed_metadata: str | None = ""
    unknown_tags: UnknownTags = ()


class OffsetCommitRequestTopic(Message):
    """A struct of OffsetCommitRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetCommitRequestPartition,
    }

    name: str = ""  # versions 0 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partitions: tuple[OffsetCommitRequestPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetCommitRequest(ApiMessage):
    """OffsetCommitRequest: api key 8, versions 2 to 10."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetCommitRequestTopic,
    }

    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None  # from version 7
    retention_time_ms: int = -1  # versions 2 to 4
    topics: tuple[OffsetCommitRequestTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetCommitResponsePartition(Message):
    """A struct of OffsetCommitResponse."""

    partition_index: int = 0
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class OffsetCommitResponseTopic(Message):
    """A struct of OffsetCommitResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetCommitResponsePartition,
    }

    name: str = ""  # versions 0 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partitions: tuple[OffsetCommitResponsePartition, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetCommitResponse(ApiMessage):
    """OffsetCommitResponse: api key 8, versions 2 to 10."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetCommitResponseTopic,
    }

    throttle_time_ms: int = 0  # from version 3
    topics: tuple[OffsetCommitResponseTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetFetchRequestTopic(Message):
    """A struct of OffsetFetchRequest."""

    name: str = ""
    partition_indexes: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetFetchRequestTopics(Message):
    """A struct of OffsetFetchRequest."""

    name: str = ""  # versions 8 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partition_indexes: tuple[int, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetFetchRequestGroup(Message):
    """A struct of OffsetFetchRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetFetchRequestTopics,
    }

    group_id: str = ""
    member_id: str | None = None  # from version 9
    member_epoch: int = -1  # from version 9
    topics: tuple[OffsetFetchRequestTopics, ...] | None = ()
    unknown_tags: UnknownTags = ()


class OffsetFetchRequest(ApiMessage):
    """OffsetFetchRequest: api key 9, versions 1 to 10."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetFetchRequestTopic,
        "groups": OffsetFetchRequestGroup,
    }

    group_id: str = ""  # versions 0 to 7
    topics: tuple[OffsetFetchRequestTopic, ...] | None = ()  # versions 0 to 7
    groups: tuple[OffsetFetchRequestGroup, ...] = ()  # from version 8
    require_stable: bool = False  # from version 7
    unknown_tags: UnknownTags = ()


class OffsetFetchResponsePartition(Message):
    """A struct of OffsetFetchResponse."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # versions 5 to 7
    metadata: str | None = ""
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class OffsetFetchResponseTopic(Message):
    """A struct of OffsetFetchResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetFetchResponsePartition,
    }

    name: str = ""
    partitions: tuple[OffsetFetchResponsePartition, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetFetchResponsePartitions(Message):
    """A struct of OffsetFetchResponse."""

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class OffsetFetchResponseTopics(Message):
    """A struct of OffsetFetchResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetFetchResponsePartitions,
    }

    name: str = ""  # versions 8 to 9
    topic_id: str = ZERO_UUID  # from version 10
    partitions: tuple[OffsetFetchResponsePartitions, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetFetchResponseGroup(Message):
    """A struct of OffsetFetchResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetFetchResponseTopics,
    }

    group_id: str = ""
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class OffsetFetchResponse(ApiMessage):
    """OffsetFetchResponse: api key 9, versions 1 to 10."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetFetchResponseTopic,
        "groups": OffsetFetchResponseGroup,
    }

    throttle_time_ms: int = 0  # from version 3
    topics: tuple[OffsetFetchResponseTopic, ...] = ()  # versions 0 to 7
    error_code: int = 0  # versions 2 to 7
    groups: tuple[OffsetFetchResponseGroup, ...] = ()  # from version 8
    unknown_tags: UnknownTags = ()


class OffsetDeleteRequestPartition(Message):
    """A struct of OffsetDeleteRequest."""

    partition_index: int = 0
    unknown_tags: UnknownTags = ()


class OffsetDeleteRequestTopic(Message):
    """A struct of OffsetDeleteRequest."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetDeleteRequestPartition,
    }

    name: str = ""
    partitions: tuple[OffsetDeleteRequestPartition, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetDeleteRequest(ApiMessage):
    """OffsetDeleteRequest: api key 47, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetDeleteRequestTopic,
    }

    group_id: str = ""
    topics: tuple[OffsetDeleteRequestTopic, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetDeleteResponsePartition(Message):
    """A struct of OffsetDeleteResponse."""

    partition_index: int = 0
    error_code: int = 0
    unknown_tags: UnknownTags = ()


class OffsetDeleteResponseTopic(Message):
    """A struct of OffsetDeleteResponse."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "partitions": OffsetDeleteResponsePartition,
    }

    name: str = ""
    partitions: tuple[OffsetDeleteResponsePartition, ...] = ()
    unknown_tags: UnknownTags = ()


class OffsetDeleteResponse(ApiMessage):
    """OffsetDeleteResponse: api key 47, version 0."""

    STRUCTS: ClassVar[Mapping[str, type[Message]]] = {
        "topics": OffsetDeleteResponseTopic,
    }

    error_code: int = 0
    throttle_time_ms: int = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
    unknown_tags: UnknownTags = ()
