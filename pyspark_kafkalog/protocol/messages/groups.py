"""Requests and responses, as classes: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups,
ListGroups, DeleteGroups.

Generated from ../schemas/groups.json by scripts/make_messages.py: change the schemas, not this file. Field
types, defaults and versions are those of the schemas.
"""

from __future__ import annotations

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage


class FindCoordinatorRequest(ApiMessage):
    """FindCoordinatorRequest: api key 10, versions 0 to 6."""

    key: str = ""  # versions 0 to 3
    key_type: int = 0  # from version 1
    coordinator_keys: tuple[str, ...] = ()  # from version 4


class Coordinator(Message):
    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""


class FindCoordinatorResponse(ApiMessage):
    """FindCoordinatorResponse: api key 10, versions 0 to 6."""

    throttle_time_ms: int = 0  # from version 1
    error_code: int = 0  # versions 0 to 3
    error_message: str | None = ""  # versions 1 to 3
    node_id: int = 0  # versions 0 to 3
    host: str = ""  # versions 0 to 3
    port: int = 0  # versions 0 to 3
    coordinators: tuple[Coordinator, ...] = ()  # from version 4


class JoinGroupRequestProtocol(Message):
    name: str = ""
    metadata: bytes = b""


class JoinGroupRequest(ApiMessage):
    """JoinGroupRequest: api key 11, versions 0 to 9."""

    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1  # from version 1
    member_id: str = ""
    group_instance_id: str | None = None  # from version 5
    protocol_type: str = ""
    protocols: tuple[JoinGroupRequestProtocol, ...] = ()
    reason: str | None = None  # from version 8


class JoinGroupResponseMember(Message):
    member_id: str = ""
    group_instance_id: str | None = None  # from version 5
    metadata: bytes = b""


class JoinGroupResponse(ApiMessage):
    """JoinGroupResponse: api key 11, versions 0 to 9."""

    throttle_time_ms: int = 0  # from version 2
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None  # from version 7
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False  # from version 9
    member_id: str = ""
    members: tuple[JoinGroupResponseMember, ...] = ()


class SyncGroupRequestAssignment(Message):
    member_id: str = ""
    assignment: bytes = b""


class SyncGroupRequest(ApiMessage):
    """SyncGroupRequest: api key 14, versions 0 to 5."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None  # from version 3
    protocol_type: str | None = None  # from version 5
    protocol_name: str | None = None  # from version 5
    assignments: tuple[SyncGroupRequestAssignment, ...] = ()


class SyncGroupResponse(ApiMessage):
    """SyncGroupResponse: api key 14, versions 0 to 5."""

    throttle_time_ms: int = 0  # from version 1
    error_code: int = 0
    protocol_type: str | None = None  # from version 5
    protocol_name: str | None = None  # from version 5
    assignment: bytes = b""


class HeartbeatRequest(ApiMessage):
    """HeartbeatRequest: api key 12, versions 0 to 4."""

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None  # from version 3


class HeartbeatResponse(ApiMessage):
    """HeartbeatResponse: api key 12, versions 0 to 4."""

    throttle_time_ms: int = 0  # from version 1
    error_code: int = 0


class MemberIdentity(Message):
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None  # from version 5


class LeaveGroupRequest(ApiMessage):
    """LeaveGroupRequest: api key 13, versions 0 to 5."""

    group_id: str = ""
    member_id: str = ""  # versions 0 to 2
    members: tuple[MemberIdentity, ...] = ()  # from version 3


class MemberResponse(Message):
    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int = 0


class LeaveGroupResponse(ApiMessage):
    """LeaveGroupResponse: api key 13, versions 0 to 5."""

    throttle_time_ms: int = 0  # from version 1
    error_code: int = 0
    members: tuple[MemberResponse, ...] = ()  # from version 3


class DescribeGroupsRequest(ApiMessage):
    """DescribeGroupsRequest: api key 15, versions 0 to 6."""

    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False  # from version 3


class DescribedGroupMember(Message):
    member_id: str = ""
    group_instance_id: str | None = None  # from version 4
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribedGroup(Message):
    error_code: int = 0
    error_message: str | None = None  # from version 6
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: int = -2147483648  # from version 3


class DescribeGroupsResponse(ApiMessage):
    """DescribeGroupsResponse: api key 15, versions 0 to 6."""

    throttle_time_ms: int = 0  # from version 1
    groups: tuple[DescribedGroup, ...] = ()


class ListGroupsRequest(ApiMessage):
    """ListGroupsRequest: api key 16, versions 0 to 5."""

    states_filter: tuple[str, ...] = ()  # from version 4
    types_filter: tuple[str, ...] = ()  # from version 5


class ListedGroup(Message):
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = ""  # from version 4
    group_type: str = ""  # from version 5


class ListGroupsResponse(ApiMessage):
    """ListGroupsResponse: api key 16, versions 0 to 5."""

    throttle_time_ms: int = 0  # from version 1
    error_code: int = 0
    groups: tuple[ListedGroup, ...] = ()


class DeleteGroupsRequest(ApiMessage):
    """DeleteGroupsRequest: api key 42, versions 0 to 3."""

    groups_names: tuple[str, ...] = ()


class DeletableGroupResult(Message):
    group_id: str = ""
    error_code: int = 0
    error_message: str | None = None  # from version 3


class DeleteGroupsResponse(ApiMessage):
    """DeleteGroupsResponse: api key 42, versions 0 to 3."""

    throttle_time_ms: int = 0
    results: tuple[DeletableGroupResult, ...] = ()
