"""Compares the leader epochs of a segment's batches with leader-epoch-checkpoint, which may have more epochs.

No CRC covers the epoch of a batch, since the log assigns it. Along the log it never decreases.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.maintenance.verify.findings import REPAIR, FindingSink, Severity
from pyspark_kafkalog.record.header import LEADER_EPOCH_AT
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT


@dataclass(slots=True)
class EpochCheck:
    """The epochs of one segment's batches; `path` is the checkpoint, `log_path` the segment's `.log`."""

    path: Path
    log_path: Path
    sink: FindingSink
    is_ours: bool
    epochs: NDArray[np.int64]
    starts: NDArray[np.int64]
    latest: int = -1

    @classmethod
    def open(cls, directory: Path, log_path: Path, sink: FindingSink, *, is_ours: bool) -> EpochCheck:
        """A check against the checkpoint in `directory`; an unreadable checkpoint is reported elsewhere."""
        path = directory / LEADER_EPOCH_CHECKPOINT
        with contextlib.suppress(ValueError):
            entries = LeaderEpochCheckpoint.open(path).entries
            return cls(
                path,
                log_path,
                sink,
                is_ours,
                np.array([each.epoch for each in entries], dtype=np.int64),
                np.array([each.start_offset for each in entries], dtype=np.int64),
            )
        return cls(path, log_path, sink, is_ours, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    def add(self, batches: NDArray[np.void]) -> None:
        """Report the first batch of a run whose epoch differs from the checkpoint, and the first with a lower epoch."""
        if not len(batches):
            return
        self._check_rises(batches)
        if not len(self.epochs):
            return
        at = np.searchsorted(self.starts, batches["base_offset"], side="right") - 1
        is_wrong = (at >= 0) & (self.epochs[np.maximum(at, 0)] != batches["leader_epoch"])
        is_wrong &= batches["leader_epoch"] >= 0
        if is_wrong.any():
            row = int(is_wrong.argmax())
            batch = batches[row]
            self.sink.add(
                Severity.ERROR if self.is_ours else Severity.WARNING,
                "leader-epoch",
                self.path,
                offset=int(batch["base_offset"]),
                expected=f"epoch {int(batch['leader_epoch'])} at offset {int(batch['base_offset'])}, as its batch says "
                f"at byte {int(batch['position'])} of {self.log_path}",
                found=f"epoch {int(self.epochs[at[row]])}",
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
                advice="restore the file from a copy: no CRC covers the epochs, records are not touched",
            )
