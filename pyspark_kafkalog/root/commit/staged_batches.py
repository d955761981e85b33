"""Batches of a leader that a task has put into the store of a root, for a follower's commit that names them.

    task      check the batches; one data object with a run for each leader epoch, under a random key (runs.py)
    driver    check what the task says of it; commit the runs, and where the transactions in them begin

What passes from the task to the driver is the object's runs and a row for each batch of a producer, no records.

Offsets in an object count from the log end at which its runs are to be appended, so a task must know where the log will
end. The driver compares. An object that is never committed is removed by the clean-up, as those of abandoned writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.extents import AT_LOG_END, RunPlace
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import DataKey, ObjectRun, parse_rows
from pyspark_kafkalog.storage.objects.upload import WrittenObject
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX

#: About what a run takes in memory.
_RUN_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class RunSpan:
    """The offsets [first_offset, end_offset) of a run in the log, and its leader epoch."""

    first_offset: int
    end_offset: int
    leader_epoch: int


@dataclass(frozen=True)
class StagedBatches:
    """Batches in the store: `written` has runs of one partition alone, in the order of their offsets.

    The first run begins at `first_offset` of the log, each further one where the one before ends. `places` are those of
    the runs, whose rows do not say yet where transactions begin. Can be pickled.
    """

    written: WrittenObject
    places: tuple[RunPlace, ...]
    first_offset: int

    def __len__(self) -> int:
        return sum(each.batches_count for each in self.written.runs)

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return self.first_offset + sum(each.offsets_count for each in self.written.runs)

    @property
    def records_count(self) -> int:
        return sum(each.records_count for each in self.written.runs)

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches."""
        return sum(each.size_bytes for each in self.written.runs)

    @property
    def held_bytes(self) -> int:
        """About the memory that this takes."""
        return sum(_RUN_BYTES + len(each.producer_batches) for each in self.places)

    @property
    def spans(self) -> list[RunSpan]:
        """The offsets of the runs."""
        found: list[RunSpan] = []
        first_offset = self.first_offset
        for run, place in zip(self.written.runs, self.places, strict=True):
            found.append(RunSpan(first_offset, first_offset + run.offsets_count, place.leader_epoch))
            first_offset = found[-1].end_offset
        return found

    @cached_property
    def producer_rows(self) -> NDArray[np.void]:
        """The batches of producers (PRODUCER_BATCH_DTYPE). Raises InvalidRecordError for any that cannot be."""
        return np.concatenate(
            [
                parse_rows(place.producer_batches, start_offset=span.first_offset, end_offset=span.end_offset)
                for span, place in zip(self.spans, self.places, strict=True)
            ]
        )

    @property
    def highest_producer_id(self) -> int:
        """-1 without producers."""
        return int(self.producer_rows["producer_id"].max(initial=-1))

    def check(self, topic_id: str, of: TopicPartition) -> None:
        """Raise InvalidRecordError for anything that cannot be, or is of another partition than `of`."""
        written = self.written
        key = DataKey.parse(written.key)
        if key is None or key.planned_at != written.planned_at or written.inline_data is not None:
            raise _refusal(of, f"an object planned at {written.planned_at} cannot have the key {written.key!r}")
        if not written.runs or len(written.runs) != len(self.places) or not 0 <= self.first_offset <= INT64_MAX >> 1:
            raise _refusal(
                of, f"{len(written.runs)} runs with {len(self.places)} places cannot begin at {self.first_offset}"
            )
        end, epoch = 0, -1
        for run, place in zip(written.runs, self.places, strict=True):
            is_of = (run.topic_id, run.partition) == (topic_id, of.partition)
            if not is_of or run.position < end or run.end > written.size_bytes or not _is_possible(run):
                raise _refusal(of, f"an object of {written.size_bytes} bytes cannot have, after byte {end}, {run}")
            if not epoch <= place.leader_epoch <= INT32_MAX and place.leader_epoch != -1:
                raise _refusal(of, f"a run has leader epoch {place.leader_epoch} after one with {epoch}")
            if place.base_offset != AT_LOG_END:
                raise _refusal(of, f"a run states the base offset {place.base_offset}")
            end, epoch = run.end, max(epoch, place.leader_epoch)
        if len(self.producer_rows) > len(self):
            raise _refusal(of, f"{len(self)} batches cannot have {len(self.producer_rows)} batches of producers")


def _is_possible(run: ObjectRun) -> bool:
    return (
        0 < run.batches_count <= run.offsets_count <= INT32_MAX
        and 0 <= run.records_count <= run.offsets_count
        and run.batches_count * RECORD_BATCH_OVERHEAD_BYTES <= run.size_bytes <= INT32_MAX
    )


def _refusal(of: TopicPartition, reason: str) -> InvalidRecordError:
    return InvalidRecordError(f"{of}: what a task says of its batches is wrong: {reason}")
