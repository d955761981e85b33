"""For following a leader: appends batches as the leader has them, truncates where the logs diverge, raises log starts.

Append. The batches are stored as the leader has stored them: offsets, leader epochs, timestamps and codecs are kept,
control batches are included, and sequences are not checked, as the leader has done that. Each batch is an append of its
own, so that segments roll and indexes get entries as at a leader that got the batches one by one. A crash leaves at
worst a torn batch at the end.

Truncation. `truncated_state` and `empty_state` tell the state that the log will have, and change nothing. That state is
committed first; resuming the log from it (`UnifiedLog.resume`) then cuts the files, as it does after a crashed append.
So there is no moment at which the files are shorter than the state.

Log start. Deleting records only increases the log start offset; the bytes stay until retention deletes whole segments.

Source of the rules: appendAsFollower, truncateTo, truncateFullyAndStartAt and maybeIncrementLogStartOffset of
org.apache.kafka.storage.internals.log.UnifiedLog. Kafka puts all batches of a fetch into one segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches, verify_crcs
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import producer_state_at
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.segment.index_entries import IndexRows, SegmentCounters
from pyspark_kafkalog.storage.segment.segment import LogSegment

#: The name in errors for batches that are not in a file yet.
FETCH_RESPONSE: Final = "<fetch response>"


@dataclass(frozen=True, slots=True)
class FollowerBatches:
    """Checked batches of a leader: `batches` (BATCH_DTYPE) has their positions in `data`."""

    data: NDArray[np.uint8]
    batches: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def first_offset(self) -> int:
        """The base offset of the first batch, of which there is one at least."""
        return int(self.batches["base_offset"][0])

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return int(self.batches["last_offset"][-1]) + 1

    @property
    def records_count(self) -> int:
        return int(self.batches["records_count"].sum())

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches."""
        return len(self.data)

    @property
    def highest_producer_id(self) -> int:
        """-1 without producers."""
        return int(self.batches["producer_id"].max(initial=-1))

    def epochs(self) -> list[EpochEntry]:
        """Each leader epoch of the batches, at the first batch that has it. Old brokers' batches may have none."""
        known = self.batches["leader_epoch"] >= 0
        epochs, first = np.unique(self.batches["leader_epoch"][known], return_index=True)
        offsets = self.batches["base_offset"][known][first]
        return [EpochEntry(*each) for each in zip(epochs.tolist(), offsets.tolist(), strict=True)]


def check_batches(data: Buffer) -> FollowerBatches:
    """The batches of a leader's answer: whole ones, with increasing offsets, epochs that do not fall, and right CRCs.

    Raises CorruptRecordError, UnsupportedFormatError for batches of an older record format.
    """
    scan = scan_batches(data, file=FETCH_RESPONSE)
    if scan.fault is not None:
        raise scan.fault
    view = as_bytes_array(data)
    if scan.consumed_bytes != len(view):
        raise CorruptRecordError(
            file=FETCH_RESPONSE,
            position=scan.consumed_bytes,
            expected="whole batches",
            found=f"{len(view) - scan.consumed_bytes} bytes of one",
        )
    verify_crcs(data, scan.batches, data_position=0, file=FETCH_RESPONSE)
    _check_epochs(scan.batches)
    return FollowerBatches(view, scan.batches)


def _check_epochs(batches: NDArray[np.void]) -> None:
    known = batches[batches["leader_epoch"] >= 0]
    falls = np.flatnonzero(np.diff(known["leader_epoch"]) < 0)
    if len(falls):
        at = int(falls[0])
        raise CorruptRecordError(
            file=FETCH_RESPONSE,
            position=int(known["position"][at + 1]),
            expected=f"a leader epoch of {int(known['leader_epoch'][at])} or more",
            found=str(int(known["leader_epoch"][at + 1])),
        )


def append_as_follower(log: UnifiedLog, batches: FollowerBatches, *, is_read_soon: bool = True) -> None:
    """Store the batches with their offsets and epochs, one after the other; `is_read_soon` as in `UnifiedLog.append`.

    An empty log whose active segment is empty also takes a first batch that begins below its end and reaches above it.
    Raises InvalidRecordError for another batch below the log end, and for an epoch below that of the log's last batch.
    """
    if not len(batches):
        return
    end_offset = log.log_end_offset
    _drop_segments_below(log)  # what was not dropped when the log became empty may overlap the batches
    if batches.first_offset < end_offset:
        _begin_below_end(log, batches)
    epochs = batches.epochs()
    last_epoch = log.epochs.epoch_for_offset(end_offset - 1) if end_offset > log.log_start_offset else None
    if epochs and last_epoch is not None and epochs[0].epoch < last_epoch:
        raise InvalidRecordError(
            f"the batch at offset {batches.first_offset} has leader epoch {epochs[0].epoch}, but the log before it has "
            f"{last_epoch}: it diverges from the log of the leader"
        )
    log.epochs.assign_many(epochs)
    log.append(batches.data, batches.batches, is_read_soon=is_read_soon)


def _begin_below_end(log: UnifiedLog, batches: FollowerBatches) -> None:
    """Let the empty `log` begin with the first batch, which contains its log start."""
    first_end_offset = int(batches.batches["last_offset"][0]) + 1
    if not _has_no_batches(log) or first_end_offset <= log.log_end_offset:
        raise InvalidRecordError(f"offset {batches.first_offset} to append is below the log end {log.log_end_offset}")
    log.drop_segment(log.active_segment)
    log.add_segment(batches.first_offset)
    log.log_end_offset = batches.first_offset


def truncated_state(log: UnifiedLog, offset: int, *, producer_id_expiration_ms: int) -> LogState:
    """The state of `log` without the records from `offset` on; that of now if it ends at or below it.

    A batch that contains `offset` is dropped whole, and the log ends after the last batch that stays. A log that starts
    at or above `offset` becomes empty. Raises OffsetOutOfRangeError for an offset that is in remote storage only, or
    negative; DiskFormatError for damage.
    """
    state = log.state()
    if offset >= log.log_end_offset:
        return state
    if offset < 0 or (state.has_remote_start and offset < state.local_log_start_offset):
        raise OffsetOutOfRangeError(
            f"{log.directory} cannot be truncated to offset {offset}: its local log starts at "
            f"{state.local_log_start_offset}, and what is in remote storage only cannot be cut; delete the topic here "
            "and follow it again"
        )
    segment = log.segments.from_offset(offset)[0]
    counters, end_offset = _kept_part(segment, offset)
    if end_offset <= log.log_start_offset:
        return empty_state(log, min(offset, log.log_start_offset))
    producers = producer_state_at(
        log.directory,
        end_offset,
        log_start_offset=log.log_start_offset,
        expiration_ms=producer_id_expiration_ms,
        now_ms=log.clock(),
    )
    first_unstable = producers.first_undecided_offset
    return LogState(
        leader_epoch=state.leader_epoch,
        log_start_offset=state.log_start_offset,
        log_end_offset=end_offset,
        active_base_offset=segment.base_offset,
        active_size_bytes=counters.size_bytes,
        active_first_timestamp_ms=counters.first_timestamp_ms,
        active_max_timestamp_ms=counters.max_timestamp_ms,
        active_max_timestamp_offset=counters.max_timestamp_offset,
        bytes_since_last_index_entry=counters.bytes_since_last_index_entry,
        first_unstable_offset=-1 if first_unstable is None else first_unstable,
        local_log_start_offset=state.local_log_start_offset,
        producer=producers.last_entry,
    )


def _kept_part(segment: LogSegment, offset: int) -> tuple[SegmentCounters, int]:
    """The segment's counters without the batches that reach `offset`, and the end of the last batch that stays."""
    rows = IndexRows(segment.base_offset, segment.config)
    end_offset = segment.base_offset
    for chunk in segment.chunks():
        count = int(np.searchsorted(chunk.batches["last_offset"], offset, side="left"))
        if count:
            rows.add(chunk.batches[:count])
            end_offset = int(chunk.batches["last_offset"][count - 1]) + 1
        if count < len(chunk.batches):
            break
    return rows.counters, end_offset


def empty_state(log: UnifiedLog, start_offset: int) -> LogState:
    """The state of `log` without any records, when it starts and ends at `start_offset`."""
    return LogState(
        leader_epoch=log.state().leader_epoch,
        log_start_offset=start_offset,
        log_end_offset=start_offset,
        active_base_offset=start_offset,
        active_max_timestamp_offset=start_offset,
    )


def drop_outdated(log: UnifiedLog) -> None:
    """After a truncation: drop leader epochs from the log end on, and all epochs and segments below an empty log."""
    log.epochs.truncate_from_end(0 if _has_no_batches(log) else log.log_end_offset)
    _drop_segments_below(log)


def _has_no_batches(log: UnifiedLog) -> bool:
    """Whether the log is empty, and its active segment is, too."""
    return log.log_start_offset == log.log_end_offset and log.active_segment.size_bytes == 0


def _drop_segments_below(log: UnifiedLog) -> None:
    """Drop the segments below the active one of a log without batches."""
    for segment in tuple(log.segments)[:-1] if _has_no_batches(log) else ():
        log.drop_segment(segment)


def delete_records(log: UnifiedLog, before_offset: int) -> int:
    """Increase the log start offset to `before_offset`, which may be inside a segment; returns the new value.

    Raises OffsetOutOfRangeError above the log end. Retention deletes segments that are entirely below it.
    """
    if before_offset > log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"cannot delete records before offset {before_offset}, the log ends at {log.log_end_offset}"
        )
    if before_offset > log.log_start_offset:
        log.log_start_offset = before_offset
        log.recovery_point = max(before_offset, log.recovery_point)
        log.epochs.truncate_from_start(before_offset)
        log.producers.log_start_moved(before_offset)
    return log.log_start_offset
