"""Results of loading a log and of appending to it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.log.producer_replay import ResumedProducers
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.log.segment_list import SegmentList


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendInfo:
    """The result of an append. `last_offset` is below `first_offset` when there was nothing to append.

    `log_append_time_ms` is the timestamp given to the records, None when they keep their own. If `is_duplicate`,
    nothing was stored, and the offsets are those of the batch that the log already holds.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int | None = None
    is_duplicate: bool = False

    @classmethod
    def nothing(cls, log_end_offset: int) -> AppendInfo:
        """The outcome of appending no batch."""
        return cls(first_offset=log_end_offset, last_offset=log_end_offset - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A log after it was loaded or resumed.

    Records from offset `recovery_point` on may not be on disk yet; with `names_changed`, neither may file names.
    `is_recovered` is true if data of a crashed writer was cut off; `staged` holds the names of the directory's staged
    files.
    """

    segments: SegmentList
    producers: ProducerStateManager | ResumedProducers
    epochs: LeaderEpochCheckpoint
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    names_changed: bool
    is_recovered: bool = False
    staged: tuple[str, ...] = ()
