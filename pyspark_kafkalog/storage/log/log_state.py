"""The state of a partition's log that a broker keeps in memory, at constant size; here each commit carries it.

With it a writer continues where the last one stopped, without reading the segment: it holds the log end offset, the
content of the active segment, and what decides when it rolls and when its next index entry is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """One partition's log as of a commit. Offsets are absolute, timestamps in ms (-1: none).

    `log_end_offset` is also the high watermark, as the log holds only committed records.
    `active_first_timestamp_ms` is the largest timestamp of the active segment's first batch, which time-based rolling
    counts from. `bytes_since_last_index_entry` decides when the next offset index entry is due.
    `first_unstable_offset` is the first offset of the oldest open transaction, -1 without one: an adopted log of a
    broker may have one, and read_committed ends there.
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
    producer: ProducerStateEntry | None = None

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed: the first offset of the oldest open transaction, or the log end offset."""
        if self.first_unstable_offset < 0:
            return self.log_end_offset
        return min(max(self.first_unstable_offset, self.log_start_offset), self.log_end_offset)
