"""Requests and responses, as classes: ConsumerGroupHeartbeat, ConsumerGroupDescribe.

Generated from ../schemas/consumer_groups.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class ConsumerGroupHeartbeatRequestTopicPartitions(Message):
    topic_id: str = ZERO_UUID
    partitions: tuple[int, ...] = ()


class ConsumerGroupHeartbeatRequest(ApiMessage):
    """ConsumerGroupHeartbeatRequest: api key 68, versions 0 to 1."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None  # from version 1
    server_assignor: str | None = None
    topic_partitions: tuple[ConsumerGroupHeartbeatRequestTopicPartitions, ...] | None = None


class ConsumerGroupHeartbeatResponseTopicPartitions(Message):
    topic_id: str = ZERO_UUID
    partitions: tuple[int, ...] = ()


class ConsumerGroupHeartbeatResponseAssignment(Message):
    topic_partitions: tuple[ConsumerGroupHeartbeatResponseTopicPartitions, ...] = ()


class ConsumerGroupHeartbeatResponse(ApiMessage):
    """ConsumerGroupHeartbeatResponse: api key 68, versions 0 to 1."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = None


class ConsumerGroupDescribeRequest(ApiMessage):
    """ConsumerGroupDescribeRequest: api key 69, versions 0 to 1."""

    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool = False


class ConsumerGroupDescribeResponseTopicPartitions(Message):
    topic_id: str = ZERO_UUID
    topic_name: str = ""
    partitions: tuple[int, ...] = ()


class ConsumerGroupDescribeResponseAssignment(Message):
    topic_partitions: tuple[ConsumerGroupDescribeResponseTopicPartitions, ...] = ()


class Member(Message):
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: ConsumerGroupDescribeResponseAssignment = ConsumerGroupDescribeResponseAssignment()
    target_assignment: ConsumerGroupDescribeResponseAssignment = ConsumerGroupDescribeResponseAssignment()
    member_type: int = -1  # from version 1


class DescribedGroup(Message):
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[Member, ...] = ()
    authorized_operations: int = -2147483648


class ConsumerGroupDescribeResponse(ApiMessage):
    """ConsumerGroupDescribeResponse: api key 69, versions 0 to 1."""

    throttle_time_ms: int = 0
    groups: tuple[DescribedGroup, ...] = ()
