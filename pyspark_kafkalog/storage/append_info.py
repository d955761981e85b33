"""What goes between the log and the functions that load it and append to it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.storage.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.producer_state import ProducerStateManager
from pyspark_kafkalog.storage.resumed_producers import ResumedProducers
from pyspark_kafkalog.storage.segment_list import SegmentList


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendInfo:
    """What an append has done. `last_offset` is below `first_offset` when there was nothing to append.

    `log_append_time_ms` is the timestamp given to the records, None when they keep their own. With `is_duplicate`
    nothing was stored; the offsets are those of the batch that is there already.
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
    """A log as loading or resuming has found it.

    Offsets from `recovery_point` on may not be on disk yet, nor, with `names_changed`, the names of files.
    `is_recovered` says that something a crashed writer left was cut off; `staged` are names of staged files that lie in
    the directory.
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
