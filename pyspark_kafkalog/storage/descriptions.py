"""What a log directory says of its topics and partitions, the same for roots of ours and of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: its directory and its offsets [log_start_offset, high_watermark), in Kafka's terms.

    Those below `local_log_start_offset` are in remote storage, so [local_log_start_offset, high_watermark) can be read
    here; the two starts differ only on a tiering broker's directory. `log_end_offset` is where the last whole, valid
    batch ends; it lies above the high watermark only on a broker's directory, whose checkpoint may be older than its
    log. The active segment's base offset and size in bytes are -1 where finding out would cost a look at the files.
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
        """Offsets from the log start on that are in remote storage only."""
        return self.local_log_start_offset - self.log_start_offset

    @property
    def offsets_above_high_watermark(self) -> int:
        """Offsets in whole, valid batches that are not read, as they lie above the high watermark."""
        return max(self.log_end_offset - self.high_watermark, 0)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic: id as Kafka's Uuid text (None where a broker's directory tells none), configuration overrides.

    `links`: numbers of partitions that are left out because their directories are symbolic links.
    """

    name: str
    topic_id: str | None
    configs: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]
    links: tuple[int, ...] = ()
