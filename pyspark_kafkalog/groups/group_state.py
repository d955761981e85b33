"""How a group is described to users: its kind, state and members, whatever its protocol.

Two kinds of groups have consumers: classic groups (classic_group), whose members, protocol and assignments are one
record, and groups of the consumer protocol (consumer_group), with a record for each member and assignment. A group that
has only offsets is a classic group without members. Share and streams groups are known by their records alone.

Members are as last written: a broker that was stopped or killed leaves them in the records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Final, Literal, TypeAlias, TypeVar

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import dataclass

GroupType: TypeAlias = Literal["Classic", "Consumer", "Share", "Streams"]

#: States of consumer groups, as Kafka's tools spell them.
GROUP_STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
)
CONSUMER_PROTOCOL_TYPE: Final = "consumer"
#: The assignor of a group of the consumer protocol whose members ask for none.
DEFAULT_ASSIGNOR: Final = "uniform"

_INT16: Final = struct.Struct(">h")
_M = TypeVar("_M", bound=Message)

#: Maps a topic id to the topic's name, or to the id itself if it is unknown.
TopicNames: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member. Epochs, target and `is_upgraded` (to the consumer protocol) are None or empty in classic groups."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target_assignment: tuple[TopicPartition, ...] = ()
    epoch: int | None = None
    is_upgraded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group. `assignor` is "" if no strategy was chosen; only groups of the consumer protocol have epochs."""

    group_id: str
    type: GroupType
    state: str
    protocol_type: str = ""
    assignor: str = ""
    members: tuple[GroupMember, ...] = ()
    epoch: int | None = None
    target_assignment_epoch: int | None = None

    @property
    def is_of_consumers(self) -> bool:
        """Whether tools for consumer groups show it; false for share and streams groups, and other protocols."""
        return self.type == "Consumer" or (
            self.type == "Classic" and self.protocol_type in ("", CONSUMER_PROTOCOL_TYPE)
        )

    def without_members(self) -> GroupDescription:
        """The same group in a log that no broker serves any more."""
        assignor = DEFAULT_ASSIGNOR if self.type == "Consumer" else ""
        return replace(self, state="Empty", assignor=assignor, members=())


@dataclass(frozen=True, slots=True)
class OtherGroup:
    """A share or streams group that a broker left: it is listed and can be deleted."""

    group_id: str
    kind: GroupType

    is_empty: ClassVar[bool] = True
    state_name: ClassVar[str] = "Empty"
    subscribed_topics: ClassVar[frozenset[str]] = frozenset()
    empty_since_ms: ClassVar[int] = -1

    @property
    def protocol_type(self) -> str:
        """The protocol, as clients list it."""
        return self.kind.lower()

    def described(self, topic_names: TopicNames) -> GroupDescription:
        """The group for commands, without members."""
        return GroupDescription(group_id=self.group_id, type=self.kind, state=self.state_name)


# What consumers put into the classic protocol


def embedded(message: type[_M], blob: bytes, *, highest: int | None = None) -> _M | None:
    """The consumer's message in a classic member's metadata or assignment; None if `blob` holds no such message.

    It is read in its version, or in `highest`: later versions only add fields at the end.
    """
    version = embedded_version(blob, message.schema().highest_version if highest is None else highest)
    if version is None:
        return None
    try:
        return message.decode(version, blob[_INT16.size :], allow_trailing=True)
    except KafkalogError:
        return None


def embedded_version(blob: bytes, highest: int) -> int | None:
    """The version of the message, at most `highest`; None for bytes that state none."""
    if len(blob) < _INT16.size:
        return None
    (version,) = _INT16.unpack_from(blob)
    return None if version < 0 else min(version, highest)
