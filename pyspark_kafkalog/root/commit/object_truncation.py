"""Truncation of a partition in an object store.

Objects do not change, so a log is cut between its extents. Of the segment or run that contains the end, the batches
before it are stored again, as new runs:

    state      the log ends after the last extent that is kept; the commit drops the extents above it
    runs       the batches that remain of the extent that was cut, up to `_PIECE_BYTES` in an object
    state      the log end, and what transactions are open there

All of it is one commit. A crash before it leaves objects that no commit names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.metadata.extents import RunAttributes, data_object_record
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.commit.changes import StartAt, Truncation
from pyspark_kafkalog.root.commit.runs import ObjectPuts, runs_of
from pyspark_kafkalog.root.objects.extents import ObjectExtents, ObjectLog
from pyspark_kafkalog.root.objects.producers import PartitionProducers, appended_to, producers_below
from pyspark_kafkalog.storage.log.follower import FollowerBatches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producers import producer_batches
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import encode_rows
from pyspark_kafkalog.units import MIB

_PIECE_BYTES: Final = 32 * MIB


@dataclass(frozen=True, slots=True)
class PlannedTruncation:
    """The truncation of one partition. `cut` is its state when the log ends at an extent; None: it is `after`.

    `log` and `end_offset` are the log before, and where what is stored again of it ends. `producers` are those where
    that begins.
    """

    topic_partition: TopicPartition
    topic_id: str
    before: LogState
    after: LogState
    store: ObjectStore
    log: ObjectLog
    cut: LogState | None = None
    end_offset: int = 0

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return self.after != self.before

    def records(self, image: MetadataImage, puts: ObjectPuts) -> Iterator[MetadataRecord]:
        """The records of the truncation, in order; puts what is stored again."""
        number = self.topic_partition.partition
        if self.cut is not None:
            yield partition_state_record(self.topic_id, number, self.cut)
            producers = producers_below(image, self.store, self.topic_partition, self.cut.log_end_offset)
            first_offset = self.cut.log_end_offset
            for batches in _kept_batches(self.store, self.log, first_offset, self.end_offset):
                rows = _rows(producers, batches)
                runs, spans = runs_of(self.topic_id, number, first_offset, batches)
                # Nothing for the history: the batches were there before.
                places = [RunAttributes(encode_rows(span.rows(rows)), span.leader_epoch) for span in spans]
                yield data_object_record(*puts.put(image, list(zip(runs, places, strict=True))))
                first_offset = batches.next_offset
        yield partition_state_record(self.topic_id, number, self.after)


def plan_truncation(
    store: ObjectStore, image: MetadataImage, change: Truncation | StartAt, before: LogState
) -> PlannedTruncation:
    """Decide what `change` leaves of the partition's log. Reads the batches of the extent that is cut.

    Raises OffsetOutOfRangeError for a negative offset, DiskFormatError for damage, ObjectStoreError.
    """
    of = change.topic_partition
    log = ObjectLog.of(image, of)
    offset = change.start_offset if isinstance(change, StartAt) else change.end_offset
    if offset < 0:
        raise OffsetOutOfRangeError(f"{of} cannot be truncated to the negative offset {offset}")
    if isinstance(change, StartAt):
        return PlannedTruncation(of, change.topic_id, before, _empty(before, offset), store, log)
    if offset >= before.log_end_offset:
        return PlannedTruncation(of, change.topic_id, before, before, store, log)
    kept_end = _kept_end(image.partition(of.topic, of.partition), offset)
    producers = producers_below(image, store, of, kept_end)
    end_offset = kept_end
    for batches in _kept_batches(store, log, kept_end, offset):
        _rows(producers, batches)
        end_offset = batches.next_offset
    if end_offset <= before.log_start_offset:
        empty = _empty(before, min(offset, before.log_start_offset))
        return PlannedTruncation(of, change.topic_id, before, empty, store, log)
    after = replace(before, log_end_offset=end_offset, first_unstable_offset=min(producers.open, default=-1))
    if end_offset == kept_end:
        return PlannedTruncation(of, change.topic_id, before, after, store, log)
    # The log starts below for a moment: what is known of producers from before the log start stays.
    cut = replace(before, log_end_offset=kept_end, log_start_offset=0)
    return PlannedTruncation(of, change.topic_id, before, after, store, log, cut, end_offset)


def _empty(before: LogState, offset: int) -> LogState:
    return LogState(leader_epoch=before.leader_epoch, log_start_offset=offset, log_end_offset=offset)


def _kept_end(partition: PartitionImage, offset: int) -> int:
    """The end of the last extent that ends at or below `offset`; where the first one begins if there is none."""
    ends = [each.end_offset for each in partition.segments] + partition.runs.table["end_offset"].tolist()
    return max((end for end in ends if end <= offset), default=partition.extents_range[0])


def _kept_batches(store: ObjectStore, log: ObjectLog, start_offset: int, end_offset: int) -> Iterator[FollowerBatches]:
    """The batches of `log` from `start_offset` on that end at or below `end_offset`, some MiB at a time."""
    if start_offset >= end_offset:
        return
    extents = ObjectExtents(lambda: log, lambda: log, store)
    pieces: list[NDArray[np.uint8]] = []
    tables: list[NDArray[np.void]] = []
    size_bytes = 0
    for run in LogReader(extents, log.topic_partition).runs(start_offset, end_offset):
        batches = run.batches[(run.batches["base_offset"] >= start_offset) & (run.batches["last_offset"] < end_offset)]
        if not len(batches):
            continue
        start = int(batches["position"][0]) - run.position
        end = int(batches["position"][-1] + batches["size_bytes"][-1]) - run.position
        table = batches.copy()
        table["position"] += size_bytes - int(batches["position"][0])
        pieces.append(np.array(run.data[start:end]))
        tables.append(table)
        size_bytes += end - start
        if size_bytes >= _PIECE_BYTES:
            yield FollowerBatches(np.concatenate(pieces), np.concatenate(tables))
            pieces, tables, size_bytes = [], [], 0
    if pieces:
        yield FollowerBatches(np.concatenate(pieces), np.concatenate(tables))


def _rows(producers: PartitionProducers, batches: FollowerBatches) -> NDArray[np.void]:
    """The commit's rows of the batches of producers in `batches`, which are added to `producers`."""
    stored = producer_batches(batches.data, batches.batches, data_position=0, file="<batches stored again>")
    rows = appended_to(producers, stored).rows
    producers.apply(rows)
    return rows
