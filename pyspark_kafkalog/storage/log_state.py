"""What a broker keeps in memory about a partition's log, at constant size: it travels in each commit instead.

With it a writer goes on where the last one stopped without reading the segment: where the log ends, what the active
segment holds, when it must roll, when its next index entry is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.producer_snapshot import ProducerStateEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """One partition's log as of a commit. Offsets absolute, timestamps in ms (-1: none).

    `log_end_offset` is the high watermark too: what is committed is all there is.
    `active_first_timestamp_ms` is the largest timestamp of the active segment's first batch, which time-based rolling
    counts from. `bytes_since_last_index_entry` decides when the next offset index entry is due.
    `producer` is the last idempotent writer's entry, which a later `.snapshot` must hold; None when there was none.
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
    producer: ProducerStateEntry | None = None
