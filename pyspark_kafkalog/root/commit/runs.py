"""Runs of batches in an object store: how batches become runs, and the objects that commits and tasks put.

A commit puts its runs with `ObjectPuts`: one body, inside of the commit if it is small, else an object. A commit that
has lost the race for its name is planned again; the object stays if the same batches are stored again, since offsets
are added when they are read.

A task of a follower puts a data object before the commit, under a random key (`stage_batches`):

    task      check the batches; one data object with a run for each leader epoch
    driver    check the task's facts about it; commit the runs, and where the transactions in them begin

What passes from the task to the driver is the object's runs and a row for each batch of a producer, no records. Offsets
in an object count from the log end at which its runs are to be appended, so a task must know where the log will end.
The driver compares.

A crash leaves objects that no commit names: the clean-up removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.extents import AT_LOG_END, RunAttributes
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.root.object_producers import rows_of
from pyspark_kafkalog.storage.log.follower import FETCH_RESPONSE, FollowerBatches
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches
from pyspark_kafkalog.storage.log.producers import producer_batches
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import DataKey, ObjectRun, encode_rows, parse_rows
from pyspark_kafkalog.storage.objects.upload import NewRun, UploadTask, WrittenObject, compose_body
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX

_TASK: Final = 0
#: About what a run takes in memory.
_RUN_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class RunSpan:
    """The offsets [first_offset, end_offset) of a run in the log, and its leader epoch."""

    first_offset: int
    end_offset: int
    leader_epoch: int

    def rows(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """Those of `rows` (`producer_batch_dtype`) that are of the run's batches."""
        base_offsets = rows["base_offset"]
        found: NDArray[np.void] = rows[(base_offsets >= self.first_offset) & (base_offsets < self.end_offset)]
        return found


def run_attributes_of(
    spans: Iterable[RunSpan], rows: NDArray[np.void], base_offset: int = AT_LOG_END
) -> list[RunAttributes]:
    """A commit's attributes of runs at these offsets; `base_offset` is what it states for the first one."""
    attributes: list[RunAttributes] = []
    for span in spans:
        own = encode_rows(span.rows(rows))
        stated_offset = AT_LOG_END if attributes else base_offset
        attributes.append(RunAttributes(own, span.leader_epoch, stated_offset, span.first_offset))
    return attributes


def runs_of(
    topic_id: str, partition: int, first_offset: int, batches: FollowerBatches
) -> tuple[list[NewRun], list[RunSpan]]:
    """The runs of the batches from `first_offset` of the log on, one or more for each leader epoch."""
    table = batches.batches
    runs: list[NewRun] = []
    spans: list[RunSpan] = []
    first = 0
    while first < len(table):
        is_other = table["leader_epoch"][first:] != table["leader_epoch"][first]
        is_other |= table["last_offset"][first:] - first_offset >= INT32_MAX
        is_other |= np.cumsum(table["size_bytes"][first:], dtype=np.int64) > INT32_MAX
        is_other[0] = False
        count = int(np.argmax(is_other)) if is_other.any() else len(is_other)
        rows = table[first : first + count].copy()
        start = int(rows["position"][0])
        end = int(rows["position"][-1] + rows["size_bytes"][-1])
        rows["position"] -= start
        runs.append(NewRun(topic_id, partition, first_offset, [LeaderBatches(batches.data[start:end], rows)]))
        spans.append(RunSpan(first_offset, int(rows["last_offset"][-1]) + 1, int(rows["leader_epoch"][0])))
        first_offset = spans[-1].end_offset
        first += count
    return runs, spans


class ObjectPuts:
    """Puts the objects of one commit; those of an attempt that lost its race are used again if they are the same."""

    def __init__(self, store: ObjectStore, write_id: str, *, inline_bytes: int) -> None:
        self._store = store
        self._write_id = write_id
        self._inline_bytes = inline_bytes
        self._count = 0
        self._written: dict[bytes, WrittenObject] = {}

    def put(
        self, image: MetadataImage, runs: Sequence[tuple[NewRun, RunAttributes]]
    ) -> tuple[WrittenObject, list[RunAttributes]]:
        """An object with the runs, or its body if it is small, and the attributes of its runs in their order."""
        ordered = sorted(runs, key=lambda each: (each[0].topic_id, each[0].partition))
        body, made = compose_body([run for run, _ in ordered])
        known = self._written.get(body)
        if known is None or image.staging_horizon.has_expired(known.planned_at):
            topics = frozenset(image.topic_names[each.topic_id] for each in made)
            planned_at, key = image.next_offset, ""
            if len(body) > self._inline_bytes:
                key = UploadTask(self._write_id, _TASK, planned_at).key(self._count)
                self._count += 1
                self._store.put(key, body)
            known = WrittenObject(self._write_id, key, len(body), planned_at, topics, made, None if key else body)
            self._written = {body: known}
        return known, [place for _, place in ordered]


def stage_batches(
    store: ObjectStore,
    topic_id: str,
    of: TopicPartition,
    first_offset: int,
    batches: FollowerBatches,
    *,
    planned_at: int,
) -> StagedBatches:
    """Put checked `batches` (one or more) into `store`, to be appended to a log that ends at `first_offset`.

    `planned_at` is the end of the metadata log when this was planned: see metadata/image.StagingHorizon. Each call puts
    another object. Raises InvalidRecordError for a gap that no run can have, ObjectStoreError.
    """
    rows = rows_of(producer_batches(batches.data, batches.batches, data_position=0, file=FETCH_RESPONSE))
    runs, spans = runs_of(topic_id, of.partition, first_offset, batches)
    body, made = compose_body(runs)
    write_id = uuid.uuid4().hex
    key = UploadTask(write_id, _TASK, planned_at).key(0)
    store.put(key, body)
    written = WrittenObject(write_id, key, len(body), planned_at, frozenset({of.topic}), made)
    return StagedBatches(written, tuple(run_attributes_of(spans, rows)), first_offset)


@dataclass(frozen=True)
class StagedBatches:
    """Batches in the store: `written` has runs of one partition alone, in the order of their offsets.

    The first run begins at `first_offset` of the log, each further one where the one before ends. `attributes` are
    those of the runs, whose rows do not say yet where transactions begin. Can be pickled.
    """

    written: WrittenObject
    attributes: tuple[RunAttributes, ...]
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
        return sum(_RUN_BYTES + len(each.producer_batches) for each in self.attributes)

    @property
    def spans(self) -> list[RunSpan]:
        """The offsets of the runs."""
        found: list[RunSpan] = []
        first_offset = self.first_offset
        for run, given in zip(self.written.runs, self.attributes, strict=True):
            found.append(RunSpan(first_offset, first_offset + run.offsets_count, given.leader_epoch))
            first_offset = found[-1].end_offset
        return found

    @cached_property
    def producer_rows(self) -> NDArray[np.void]:
        """The batches of producers (`producer_batch_dtype`). Raises InvalidRecordError for any that cannot be."""
        return np.concatenate(
            [
                parse_rows(given.producer_batches, start_offset=span.first_offset, end_offset=span.end_offset)
                for span, given in zip(self.spans, self.attributes, strict=True)
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
        if (
            not written.runs
            or len(written.runs) != len(self.attributes)
            or not 0 <= self.first_offset <= INT64_MAX >> 1
        ):
            count, stated = len(written.runs), len(self.attributes)
            raise _refusal(of, f"{count} runs with attributes of {stated} cannot begin at {self.first_offset}")
        end, epoch = 0, -1
        for run, given in zip(written.runs, self.attributes, strict=True):
            is_of = (run.topic_id, run.partition) == (topic_id, of.partition)
            if not is_of or run.position < end or run.end > written.size_bytes or not _is_possible(run):
                raise _refusal(of, f"an object of {written.size_bytes} bytes cannot have, after byte {end}, {run}")
            if not epoch <= given.leader_epoch <= INT32_MAX and given.leader_epoch != -1:
                raise _refusal(of, f"a run has leader epoch {given.leader_epoch} after one with {epoch}")
            if given.base_offset != AT_LOG_END:
                raise _refusal(of, f"a run states the base offset {given.base_offset}")
            end, epoch = run.end, max(epoch, given.leader_epoch)
        if len(self.producer_rows) > len(self):
            raise _refusal(of, f"{len(self)} batches cannot have {len(self.producer_rows)} batches of producers")


def _is_possible(run: ObjectRun) -> bool:
    return (
        0 < run.batches_count <= run.offsets_count <= INT32_MAX
        and 0 <= run.records_count <= run.offsets_count
        and run.batches_count * RECORD_BATCH_OVERHEAD_BYTES <= run.size_bytes <= INT32_MAX
    )


def _refusal(of: TopicPartition, reason: str) -> InvalidRecordError:
    return InvalidRecordError(f"{of}: the facts that a task has stated about its batches are wrong: {reason}")
