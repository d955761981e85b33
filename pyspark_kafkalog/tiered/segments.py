"""Remote log segments: what is known of each segment that a broker copied to remote storage (KIP-405).

A copy of a segment has an id of its own, so that a segment that is copied again, by a new leader or after a crash,
never overwrites an earlier copy. Its objects are written once and only deleted.

Source of the terms: org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata and RemoteLogSegmentState.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.names import TopicPartition

#: Kafka's Uuid as text: 16 bytes of base64url, without padding. It may begin with `-`, and hold `-` and `_`.
UUID_CHARS: Final = 22
_LISTED_MAX: Final = 8
_UUID: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")


class RemoteSegmentState(IntEnum):
    """The states of a copy, in their order; only one that is COPY_SEGMENT_FINISHED is read."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """A partition of the topic with this id: a topic that was re-created has another one."""

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it."""
        return self.topic_id, self.partition

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """One copy of a segment with the offsets [start_offset, last_offset].

    `size_bytes` is that of the `.log`. `leader_epochs` are the segment's own, the first one clamped to its start.
    `max_timestamp_ms` is the largest timestamp, None if it is not known without reading the time index.
    `has_transaction_index` is False if it is known to have none. `custom_metadata` is the storage plugin's.
    """

    segment_id: str
    start_offset: int
    last_offset: int
    size_bytes: int
    leader_epochs: tuple[EpochEntry, ...]
    state: RemoteSegmentState = RemoteSegmentState.COPY_SEGMENT_FINISHED
    max_timestamp_ms: int | None = None
    has_transaction_index: bool = True
    custom_metadata: bytes | None = None

    @property
    def base_offset(self) -> int:
        """The start offset, as a local segment calls it."""
        return self.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        return self.last_offset + 1


def is_uuid(text: str) -> bool:
    """Whether `text` is a Uuid as Kafka prints it."""
    return _UUID.fullmatch(text) is not None


def check_leader_epochs(
    epochs: Sequence[EpochEntry], start_offset: int, last_offset: int, error: Callable[[str, str], Exception]
) -> None:
    """Raise `error(expected, found)` unless these can be the leader epochs of a segment with these offsets."""
    starts = [each.start_offset for each in epochs]
    is_rising = starts == sorted(starts) and len({each.epoch for each in epochs}) == len(epochs)
    if not epochs or not is_rising or epochs[0].epoch < 0 or not start_offset <= starts[0] or starts[-1] > last_offset:
        found = ", ".join(f"{each.epoch} from {each.start_offset}" for each in epochs[:_LISTED_MAX]) or "none"
        raise error(f"rising leader epochs that begin in the offsets {start_offset} to {last_offset}", found)


def clamp_epochs(epochs: Iterable[EpochEntry], start_offset: int, last_offset: int) -> tuple[EpochEntry, ...]:
    """The leader epochs of a segment with these offsets, from those of its log: the first begins at its start."""
    own: list[EpochEntry] = []
    for each in epochs:
        if each.start_offset > last_offset:
            break
        if each.start_offset <= start_offset:
            own.clear()
        own.append(EpochEntry(each.epoch, max(each.start_offset, start_offset)))
    return tuple(own)
