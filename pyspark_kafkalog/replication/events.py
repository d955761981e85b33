"""What happens to a follower besides appending: the events of its log and of its report.

Each event is one line of the log and one object of the report. Losses are among them, with their offsets: nothing is
cut, skipped or left out without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class EventKind(Enum):
    """The kinds of events; values are the names in the report."""

    TOPIC_ADDED = "topic-added"
    PARTITIONS_ADDED = "partitions-added"
    CONFIGS_CHANGED = "configs-changed"
    CONFIGS_REFUSED = "configs-refused"
    ACCESS_CHANGED = "access-changed"
    TOPIC_DELETED = "topic-deleted"
    TOPIC_RECREATED = "topic-recreated"
    TOPIC_REPLACED = "topic-replaced"
    TOPIC_REFUSED = "topic-refused"
    TOPIC_UNREADABLE = "topic-unreadable"
    LEADER_CHANGED = "leader-changed"
    GAP = "gap"
    DIVERGED = "diverged"
    CUT = "cut"
    PARTITION_STOPPED = "partition-stopped"
    LEADER_UNAVAILABLE = "leader-unavailable"
    PARTITION_ERROR = "partition-error"
    COMMIT_ERROR = "commit-error"


#: What a person should look at: records were lost or may differ, or something is no longer followed.
ALARMING = frozenset(
    {
        EventKind.TOPIC_DELETED,
        EventKind.TOPIC_RECREATED,
        EventKind.TOPIC_REPLACED,
        EventKind.TOPIC_REFUSED,
        EventKind.TOPIC_UNREADABLE,
        EventKind.GAP,
        EventKind.DIVERGED,
        EventKind.CUT,
        EventKind.PARTITION_STOPPED,
        EventKind.LEADER_UNAVAILABLE,
        EventKind.PARTITION_ERROR,
        EventKind.COMMIT_ERROR,
    }
)


#: Records are lost, or are about to be dropped: the report has these before that is committed.
LOSSES = frozenset({EventKind.GAP, EventKind.DIVERGED, EventKind.CUT, EventKind.TOPIC_REPLACED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `topic` is empty and `partition` -1 where it concerns more. Offsets [first_offset, end_offset) are
    those that it is about, -1 if it is about none."""

    kind: EventKind
    detail: str
    topic: str = ""
    partition: int = -1
    first_offset: int = -1
    end_offset: int = -1

    @property
    def subject(self) -> str:
        """The partition, the topic, or nothing."""
        return f"{self.topic}-{self.partition}" if self.partition >= 0 else self.topic

    def line(self) -> str:
        """The event as a line of text."""
        subject = f" {self.subject}" if self.topic else ""
        offsets = f" offsets {self.first_offset} to {self.end_offset}" if self.first_offset >= 0 else ""
        return f"{self.kind.value}{subject}{offsets}: {self.detail}"

    def fields(self) -> Mapping[str, Any]:
        """The event as an object of the report."""
        found: dict[str, Any] = {"event": self.kind.value, "detail": self.detail}
        if self.topic:
            found["topic"] = self.topic
        if self.partition >= 0:
            found["partition"] = self.partition
        if self.first_offset >= 0:
            found["first_offset"], found["end_offset"] = self.first_offset, self.end_offset
        return found

    @staticmethod
    def of_fields(fields: Mapping[str, Any]) -> Event:
        """The event that `fields` has made an object of. Raises KeyError, ValueError."""
        return Event(
            kind=EventKind(fields["event"]),
            detail=str(fields["detail"]),
            topic=str(fields.get("topic", "")),
            partition=int(fields.get("partition", -1)),
            first_offset=int(fields.get("first_offset", -1)),
            end_offset=int(fields.get("end_offset", -1)),
        )
