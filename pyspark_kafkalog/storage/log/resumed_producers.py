"""Producer state between commits: the last writer's entry, which is all that a plain commit needs.

The complete state is in the latest snapshot and the batches after it. It is read only if a roll must write the next
snapshot, or the last stable offset is requested: once per segment, not once per commit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import ProducerFencedError
from pyspark_kafkalog.record.header import NO_SEQUENCE, next_sequence
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.producer_replay import load_latest_snapshot, replay_log
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.log.segment_list import SegmentList


class ResumedProducers:
    """The last writer's entry, None if no producer with an id has ever written to the log.

    `first_undecided_offset` is the first offset of the oldest open transaction, None without one: appends of this
    package neither begin nor end transactions.
    """

    def __init__(
        self,
        directory: Path,
        last_entry: ProducerStateEntry | None,
        *,
        log_start_offset: int,
        expiration_ms: int,
        fs: FileSystem,
        first_undecided_offset: int | None = None,
    ) -> None:
        self.last_entry = last_entry
        self.first_undecided_offset = first_undecided_offset
        self._directory = directory
        self._log_start_offset = log_start_offset
        self._expiration_ms = expiration_ms
        self._fs = fs

    def load(self, segments: SegmentList, log_end_offset: int, now_ms: int) -> ProducerStateManager:
        """The complete state at `log_end_offset`. Reads the log only if a producer with an id has written to it."""
        producers = ProducerStateManager(self._directory, expiration_ms=self._expiration_ms, fs=self._fs)
        load_latest_snapshot(producers, self._log_start_offset, log_end_offset, now_ms)
        if self.last_entry is not None:
            replay_log(producers, segments, log_end_offset)
        producers.end_offset = log_end_offset
        return producers

    def count_in(self, batches: NDArray[np.void]) -> None:
        """Make the last batch with a producer id, if any, the last entry. `batches` has final offsets."""
        rows = batches[batches["producer_id"] >= 0]
        if not len(rows):
            return
        row = rows[-1]
        producer_id, epoch = int(row["producer_id"]), int(row["producer_epoch"])
        delta = int(row["last_offset"]) - int(row["base_offset"])
        base_sequence = int(row["base_sequence"])
        self.last_entry = ProducerStateEntry(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_sequence=NO_SEQUENCE if base_sequence == NO_SEQUENCE else next_sequence(base_sequence, delta),
            last_offset=int(row["last_offset"]),
            offset_delta=delta,
            last_timestamp_ms=int(row["max_timestamp_ms"]),
        )

    def check(self, batches: NDArray[np.void]) -> None:
        """Raise ProducerFencedError if a batch's producer has written with a newer epoch."""
        if self.last_entry is None:
            return
        own = batches["producer_id"] == self.last_entry.producer_id
        older = own & (batches["producer_epoch"] < self.last_entry.producer_epoch)
        if older.any():
            raise ProducerFencedError(
                f"producer {self.last_entry.producer_id} with epoch {int(batches['producer_epoch'][older][0])} is "
                f"fenced: epoch {self.last_entry.producer_epoch} has written"
            )
