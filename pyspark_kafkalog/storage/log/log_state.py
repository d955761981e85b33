"""Where a partition's log starts and ends as of a commit: what a broker keeps in memory, at constant size.

Each commit carries the states of the partitions that it changes, so a writer resumes from it without reading the
segment. Where the log of a broker's directory starts and ends is read from its files (read_only.py).
"""

from __future__ import annotations

from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.values import quick_dataclass


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """One partition's log as of a commit. Offsets are absolute, timestamps in ms (-1: none).

    `log_end_offset` is also the high watermark, as the log holds only committed records.
    `active_first_timestamp_ms` is the largest timestamp of the active segment's first batch, which time-based rolling
    counts from. `bytes_since_last_index_entry` decides when the next offset index entry is due.
    `first_unstable_offset` is the first offset of the oldest open transaction, -1 without one: an adopted log of a
    broker may have one, and read_committed ends there.
    `local_log_start_offset` is the first offset in the partition's directory; those below it are in remote storage
    only. A value below the log start stands for the log start.
    `producer` is the last idempotent writer's entry, which a later `.snapshot` must hold; None if no idempotent writer
    has written.
    """

    leader_epoch: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    active_base_offset: int = 0
    active_size_bytes: int = 0
    active_first_timestamp_ms: int = NO_TIMESTAMP
    active_max_timestamp_ms: int = NO_TIMESTAMP
    active_max_timestamp_offset: int = 0
    bytes_since_last_index_entry: int = 0
    first_unstable_offset: int = -1
    local_log_start_offset: int = -1
    producer: ProducerStateEntry | None = None

    def __post_init__(self) -> None:
        if self.local_log_start_offset < self.log_start_offset:
            object.__setattr__(self, "local_log_start_offset", self.log_start_offset)

    @property
    def has_closed_segments(self) -> bool:
        """Whether records of the partition's directory are in other segments than the active one."""
        return self.active_base_offset > self.local_log_start_offset

    @property
    def has_remote_start(self) -> bool:
        """Whether the log begins in remote storage."""
        return self.local_log_start_offset > self.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed: the first offset of the oldest open transaction, or the log end offset."""
        if self.first_unstable_offset < 0:
            return self.log_end_offset
        return min(max(self.first_unstable_offset, self.log_start_offset), self.log_end_offset)
