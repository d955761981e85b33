"""What a log directory says of its topics and partitions, the same for roots of ours and of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: its directory and the offsets [log_start_offset, high_watermark) that can be read.

    The active segment's base offset and size in bytes are -1 where finding out would cost a look at the files.
    """

    topic: str
    partition: int
    directory: Path
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    active_base_offset: int = -1
    active_size_bytes: int = -1


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic: id as Kafka's Uuid text (None where a broker's directory tells none), configuration overrides."""

    name: str
    topic_id: str | None
    configs: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]
