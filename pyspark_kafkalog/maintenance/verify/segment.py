"""Verifies one segment: its `.log` is walked to the end and compared with every file derived from it.

Maintenance and writers continue meanwhile. A finding counts if a second check confirms it, and only checks count during
which no file of the segment was replaced and no swap of it was in progress. A segment that is gone by then, or no
longer part of the log, has no findings.

The leader epochs of batches are compared with leader-epoch-checkpoint, which may have more epochs. No CRC covers the
epoch of a batch, since the log assigns it. Along the log it never decreases.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.verify.batches import BatchWalk
from pyspark_kafkalog.maintenance.verify.findings import REINDEX, REPAIR, FindingSink, Read, SegmentOutcome, Severity
from pyspark_kafkalog.maintenance.verify.indexes import (
    IndexChecks,
    IndexExpectation,
    KnownEpochs,
    OffsetIndexCheck,
    StoredIndex,
)
from pyspark_kafkalog.maintenance.verify.producers import (
    ProducerCheck,
    ProducerEntries,
    compare_producers,
    read_producers,
)
from pyspark_kafkalog.maintenance.verify.scope import NO_END, PartitionScope
from pyspark_kafkalog.metadata.root_format import is_metadata_copy
from pyspark_kafkalog.record.header import LEADER_EPOCH_AT
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.transaction_index import TransactionIndex
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)

_CHECKS_MAX: Final = 40
_BETWEEN_CHECKS_S: Final = 0.02
_FILES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX)


def report_too_short(sink: FindingSink, path: Path, size_bytes: int, committed_bytes: int) -> None:
    """Report an active segment without bytes that have been committed."""
    sink.add(
        Severity.ERROR,
        "log-too-short",
        path,
        position=size_bytes,
        expected=f"at least the {committed_bytes} bytes that have been committed",
        found=f"{size_bytes} bytes",
        advice="restore the file from a backup: committed records are missing",
    )


def check_segment(
    scope: PartitionScope, base_offset: int, next_base: int | None, producers: ProducerEntries | None
) -> SegmentOutcome:
    """Check the segment at `base_offset`, followed by `next_base` when the directory was listed.

    `producers` is the state at the end of the previous one, None if unknown. Raises OSError when a file cannot be read.
    """
    before: SegmentOutcome | None = None
    was: tuple[object, ...] | None = None
    for _ in range(_CHECKS_MAX):
        check = _Check(scope, base_offset, next_base)
        outcome = _check_or_gone(check, producers)
        if outcome.end_offset >= 0 and not outcome.findings:
            return outcome
        is_same = was is not None and was == _identity(check)
        if is_same and before is not None and all(each in before.findings for each in outcome.findings):
            return outcome
        before = outcome if is_same else None
        time.sleep(_BETWEEN_CHECKS_S)
        renewed = scope.renewed()
        live = {} if renewed is None else renewed.live(renewed.bases())
        if renewed is None or base_offset not in live:
            return SegmentOutcome(base_offset)
        scope, next_base = renewed, live[base_offset]
        was = _identity(_Check(scope, base_offset, next_base))
    # An abandoned swap: of its files only the .log is certain to be correct.
    return _check_or_gone(_Check(scope, base_offset, None, is_swapping=True), producers)


def _check_or_gone(check: _Check, producers: ProducerEntries | None) -> SegmentOutcome:
    try:
        return check.run(producers)
    except FileNotFoundError:
        return SegmentOutcome(check.base_offset)


def _identity(check: _Check) -> tuple[object, ...] | None:
    """Identifies the segment's files; None while it is being replaced, or if it is gone.

    The active segment's files grow, so only their inodes count.
    """
    found: list[object] = []
    for suffix in _FILES:
        path = check.path(suffix)
        if suffix == LOG_SUFFIX and path.with_name(path.name + SWAP_SUFFIX).exists():
            return None
        try:
            status = path.stat()
        except FileNotFoundError:
            found.append(None)
            continue
        found.append(status.st_ino if check.is_active else (status.st_ino, status.st_size, status.st_mtime_ns))
    return None if found[0] is None else tuple(found)


@dataclass(slots=True)
class _Check:
    """One check of a segment."""

    scope: PartitionScope
    base_offset: int
    next_base: int | None
    is_swapping: bool = False
    sink: FindingSink = field(init=False)

    def __post_init__(self) -> None:
        self.sink = FindingSink(self.scope.topic_partition)

    @property
    def is_active(self) -> bool:
        return not self.is_swapping and self.scope.is_active(self.base_offset, self.next_base)

    def path(self, suffix: str) -> Path:
        return segment_file(self.scope.directory, self.base_offset, suffix)

    def run(self, producers: ProducerEntries | None) -> SegmentOutcome:
        """Check the segment in its current state. Raises FileNotFoundError when it is gone."""
        with contextlib.ExitStack() as closing:
            fd = open_file(self.path(LOG_SUFFIX))
            closing.callback(os.close, fd)
            size_bytes = os.fstat(fd).st_size
            committed_bytes = self.scope.end_of_segment(self.base_offset)
            end = size_bytes if committed_bytes is None else min(size_bytes, committed_bytes)
            if committed_bytes is not None and size_bytes < committed_bytes:
                report_too_short(self.sink, self.path(LOG_SUFFIX), size_bytes, committed_bytes)
            indexes = self._open_indexes(closing)
            start, is_known = self._producers_at_start(producers)
            checks = self._open_producers(closing, start, is_known=is_known)
            is_native = self.scope.state is not None
            epochs = EpochCheck.open(self.scope.directory, self.path(LOG_SUFFIX), self.sink, is_native=is_native)
            walk = BatchWalk(
                fd,
                str(self.path(LOG_SUFFIX)),
                end,
                self.sink,
                base_offset=self.base_offset,
                # A broker before Kafka 1.0 may have written more offsets in a segment than an index can hold.
                limit_offset=min(self.next_base or NO_END, max(self.base_offset + (1 << 31), self.scope.visible_end)),
                severity=lambda reached: self.scope.severity_at(reached, self.next_base),
                next_start=indexes.next_position_after,
                are_all_records_checked=self.scope.are_records_checked,
            )
            extremes = _Extremes()
            for run in walk.runs():
                indexes.add(run.batches, is_damaged=walk.is_damaged)
                epochs.add(run.good)
                checks.add(run)
                extremes.add(run.batches)
            if not walk.is_damaged:
                indexes.finish(walk.end_position, is_closed=not self.is_active)
            at_end = checks.finish(is_damaged=walk.is_damaged or self.is_swapping)
            is_known = is_known and not walk.is_damaged
            if is_known:
                self._check_next_snapshot(at_end, walk.reached_offset)
            if self.scope.state is not None and self.is_active and not walk.is_damaged:
                self._check_state(self.scope.state, walk, extremes)
                self._check_index_end(self.scope.state, indexes.offsets)
        return SegmentOutcome(
            base_offset=self.base_offset,
            findings=tuple(self.sink.result()),
            end_offset=max(walk.reached_offset, 0),
            inner_gaps=walk.inner_gaps,
            is_damaged=walk.is_damaged,
            read=Read(end, walk.batches_count, walk.records_count),
            producers=at_end if is_known else None,
        )

    def _open_indexes(self, closing: contextlib.ExitStack) -> IndexChecks:
        # A broker preallocates the active segment's; the next writer maintains those of a native log.
        expected = IndexExpectation(
            visible_end=self.scope.visible_end if self.is_active else NO_END,
            may_have_zeros=self.is_active and self.scope.is_of_broker,
            severity=Severity.WARNING if self.is_active and not self.scope.is_of_broker else Severity.ERROR,
        )
        suffixes = (None, None) if self.is_swapping else (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        offsets, times = (None if each is None else self._open(each, closing) for each in suffixes)
        return IndexChecks(self.base_offset, offsets, times, self.sink, expected)

    def _open(self, suffix: str, closing: contextlib.ExitStack) -> StoredIndex | None:
        """The opened index file. None without one, which is reported, except in an empty native log, and in a copy of a
        metadata log, which has none."""
        try:
            fd = open_file(self.path(suffix))
        except FileNotFoundError:
            is_empty_native = self.scope.state is not None and not self.scope.state.log_end_offset
            if not is_empty_native and not is_metadata_copy(self.scope.root):
                self.sink.add(
                    Severity.ERROR,
                    "index-missing",
                    self.path(suffix),
                    expected="an index of the segment",
                    found="no file",
                    advice=REINDEX,
                )
            return None
        except LogDirError as error:  # a link or a pipe
            self.sink.add(
                Severity.ERROR,
                "unreadable",
                self.path(suffix),
                expected="an index of the segment",
                found=str(error),
                advice=REINDEX,
            )
            return None
        closing.callback(os.close, fd)
        return StoredIndex.of_file(fd, self.path(suffix))

    def _producers_at_start(self, before: ProducerEntries | None) -> tuple[ProducerEntries, bool]:
        """The initial state, from the snapshot or the end of the previous segment, and whether it is complete."""
        entries = None
        if self.base_offset > self.scope.log_start_offset:
            entries = read_producers(self.path(PRODUCER_SNAPSHOT_SUFFIX), self.base_offset, self.sink)
        if entries is not None:
            return entries, True
        if before is not None:
            return before, True
        return (), self.base_offset == 0

    def _open_producers(
        self, closing: contextlib.ExitStack, producers: ProducerEntries, *, is_known: bool
    ) -> ProducerCheck:
        path = self.path(TXN_INDEX_SUFFIX)
        index = None
        if not self.is_swapping:
            index = closing.enter_context(TransactionIndex.open(path, self.base_offset))
        return ProducerCheck(
            self.base_offset,
            producers,
            index,
            path,
            str(self.path(LOG_SUFFIX)),
            self.sink,
            # Transactions can have begun before what is known, as in a log with gaps.
            has_gaps=self.scope.has_gaps is not False or self.is_swapping or not is_known,
            log_start_offset=self.scope.log_start_offset,
            visible_end=self.scope.visible_end,
        )

    def _check_next_snapshot(self, producers: ProducerEntries, end_offset: int) -> None:
        """Compare the snapshot at the segment's end with the state; a damaged one is reported with the next segment."""
        offset = end_offset if self.next_base is None else self.next_base
        path = segment_file(self.scope.directory, offset, PRODUCER_SNAPSHOT_SUFFIX)
        unused = FindingSink(self.scope.topic_partition)
        entries = read_producers(path, offset, unused)
        if entries is not None:
            has_gaps = self.scope.has_gaps is not False
            compare_producers(
                producers,
                entries,
                path,
                offset,
                self.sink,
                has_gaps=has_gaps,
                log_start_offset=self.scope.log_start_offset,
            )

    def _check_state(self, state: LogState, walk: BatchWalk, extremes: _Extremes) -> None:
        """Compare the end of the log with the image."""
        found = {
            "log end": (state.log_end_offset, walk.reached_offset),
            "largest timestamp": (state.active_max_timestamp_ms, extremes.largest_ms),
            "first timestamp": (state.active_first_timestamp_ms, extremes.first_ms),
        }
        wrong = {name: each for name, each in found.items() if each[0] != each[1]}
        if wrong:
            self.sink.add(
                Severity.ERROR,
                "log-state",
                self.path(LOG_SUFFIX),
                position=walk.end_position,
                offset=walk.reached_offset,
                expected=", ".join(f"{name} {each[0]}" for name, each in wrong.items()) + ", as was committed",
                found=", ".join(f"{name} {each[1]}" for name, each in wrong.items()),
                advice="restore the file from a copy: committed records are missing or changed",
            )

    def _check_index_end(self, state: LogState, offsets: OffsetIndexCheck | None) -> None:
        """Check that the last committed entry is at the position that the image has."""
        expected_position = state.active_size_bytes - state.bytes_since_last_index_entry
        if offsets is not None and offsets.last_position != expected_position:
            self.sink.add(
                Severity.WARNING,
                "offset-index-end",
                self.path(INDEX_SUFFIX),
                offset=state.log_end_offset,
                expected=f"a last entry with position {expected_position}, as was committed",
                found=f"position {offsets.last_position}",
                advice="nothing: the next writer rebuilds the file; so does kafkalog reindex",
            )


@dataclass(slots=True)
class EpochCheck:
    """The epochs of one segment's batches; `path` is the checkpoint, `log_path` the segment's `.log`."""

    path: Path
    log_path: Path
    sink: FindingSink
    is_native: bool
    known: KnownEpochs
    latest: int = -1

    @classmethod
    def open(cls, directory: Path, log_path: Path, sink: FindingSink, *, is_native: bool) -> EpochCheck:
        """A check against the checkpoint in `directory`; an unreadable checkpoint is reported elsewhere."""
        path = directory / LEADER_EPOCH_CHECKPOINT
        known = KnownEpochs.of(())
        with contextlib.suppress(ValueError):
            entries = LeaderEpochCheckpoint.open(path).entries
            known = KnownEpochs.of((each.epoch, each.start_offset) for each in entries)
        return cls(path, log_path, sink, is_native, known)

    def add(self, batches: NDArray[np.void]) -> None:
        """Report the first batch of a run whose epoch differs from the checkpoint, and the first with a lower epoch."""
        if not len(batches):
            return
        self._check_rises(batches)
        wrong = self.known.first_wrong(batches, are_whole=False)
        if wrong is not None:
            row, epoch = wrong
            batch = batches[row]
            self.sink.add(
                Severity.ERROR if self.is_native else Severity.WARNING,
                "leader-epoch",
                self.path,
                offset=int(batch["base_offset"]),
                expected=f"epoch {int(batch['leader_epoch'])} at offset {int(batch['base_offset'])}, as its batch says "
                f"at byte {int(batch['position'])} of {self.log_path}",
                found=f"epoch {epoch}",
                advice=REPAIR,
            )

    def _check_rises(self, batches: NDArray[np.void]) -> None:
        epochs = batches["leader_epoch"]
        before = np.concatenate([[self.latest], epochs[:-1]])
        falls = epochs < before
        self.latest = int(epochs[-1])
        if falls.any():
            row = int(falls.argmax())
            self.sink.add(
                Severity.WARNING,
                "leader-epoch-falls",
                self.log_path,
                position=int(batches["position"][row]) + LEADER_EPOCH_AT,
                offset=int(batches["base_offset"][row]),
                expected=f"a leader epoch of {int(before[row])} or above, as in the batch before",
                found=int(epochs[row]),
                advice="restore the file from a copy: no CRC covers the epochs, records are unaffected",
            )


@dataclass(slots=True)
class _Extremes:
    """Timestamps of a segment that are part of a commit."""

    first_ms: int = -1
    largest_ms: int = -1
    _is_begun: bool = False

    def add(self, batches: NDArray[np.void]) -> None:
        if not self._is_begun:
            self.first_ms = int(batches["max_timestamp_ms"][0])
            self._is_begun = True
        self.largest_ms = max(self.largest_ms, int(batches["max_timestamp_ms"].max()))


def check_unit(scope: PartitionScope, bases: tuple[int, ...], next_base: int | None) -> Iterator[SegmentOutcome]:
    """Check consecutive segments, followed by `next_base`; each starts with the producers' state of the previous."""
    producers: ProducerEntries | None = None
    for base_offset, following in zip(bases, (*bases, next_base)[1:], strict=True):
        outcome = check_segment(scope, base_offset, following, producers)
        producers = outcome.producers if outcome.end_offset >= 0 else producers
        yield outcome
