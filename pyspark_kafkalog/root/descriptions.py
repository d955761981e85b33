"""Descriptions of topics and partitions, the same for native log directories and brokers' directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: its directory and its offsets [log_start_offset, high_watermark), in Kafka's terms.

    Offsets below `local_log_start_offset` are in remote storage, so [local_log_start_offset, high_watermark) can be
    read here; the two starts differ only in the directory of a broker with tiered storage. `log_end_offset` is the end
    of the last whole, valid batch; it is above the high watermark only in a broker's directory, whose checkpoint may be
    older than its log. The active segment's base offset and size in bytes are -1 where they could only be found by
    reading the file system.
    """

    topic: str
    partition: int
    directory: Path
    leader_epoch: int
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    log_end_offset: int
    active_base_offset: int = -1
    active_size_bytes: int = -1

    @property
    def remote_offsets_count(self) -> int:
        """Number of offsets from the log start on that are in remote storage only."""
        return self.local_log_start_offset - self.log_start_offset

    @property
    def offsets_above_high_watermark(self) -> int:
        """Number of offsets in whole, valid batches that are not read because they are above the high watermark."""
        return max(self.log_end_offset - self.high_watermark, 0)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic: its id as Kafka's Uuid text (None where a broker's directory has none) and configuration overrides.

    `links` holds the numbers of the partitions that are left out because their directories are symbolic links.
    """

    name: str
    topic_id: str | None
    configs: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]
    links: tuple[int, ...] = ()
