"""What one commit changes in the extents of partitions, and in the objects of the root: a part of delta.py.

The functions take a partition before and return it after; `ObjectChanges` collects what the commit adds to the root's
data objects and what it drops. Records that contradict the image raise InvalidRecordError: a merge of extents that
another merge has replaced meanwhile, an object that has expired, a run outside of its object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.extents import DataObject, DataObjects, planned_at_of
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, StagingHorizon, stored_run_dtype
from pyspark_kafkalog.metadata.messages.metadata_records import (
    DataObjectRecord,
    DroppedObjectsRecord,
    DroppedSegment,
    ObjectsDeletedRecord,
    PartitionRunsRecord,
    Run,
    SegmentObject,
    SegmentObjectsRecord,
    StagingHorizonRecord,
)
from pyspark_kafkalog.object_store.store import MAX_KEY_BYTES
from pyspark_kafkalog.storage.objects.data_object import DataKey, parse_rows, run_dtype

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ObjectChanges:
    """The objects that one commit over `base` adds and drops, or that a snapshot restores."""

    def __init__(
        self, base: MetadataImage, *, commit_offset: int, timestamp_ms: int, is_snapshot: bool = False
    ) -> None:
        self._is_snapshot = is_snapshot
        self._base = base
        self._commit_offset = commit_offset
        self._timestamp_ms = timestamp_ms
        self._last_id = base.objects.last_id
        self._added: list[DataObject] = []
        self._runs_counts: dict[int, int] = {}
        self._dropped_runs: list[NDArray[np.int64]] = []
        self._dropped_segments: list[DroppedSegment] = []
        self._dropped = base.dropped
        self._horizon = base.staging_horizon

    def add(self, record: DataObjectRecord, own_offset: int) -> DataObject:
        """The object of `record`, which is at metadata offset `own_offset` unless it is part of a snapshot."""
        is_commit = self._check_place(record.object_id, record.commit_offset)
        added = DataObject(
            own_offset if is_commit else record.object_id,
            record.key,
            record.size_bytes,
            self._commit_offset if is_commit else record.commit_offset,
        )
        if added.object_id <= self._last_id or record.size_bytes <= 0:
            raise InvalidRecordError(
                f"a DataObjectRecord adds object {added.object_id} of {record.size_bytes} bytes after object "
                f"{self._last_id}"
            )
        _check_content(record, is_commit)
        self._last_id = added.object_id
        self._added.append(added)
        self._runs_counts[added.object_id] = 0
        return added

    def count_runs(self, object_ids: Sequence[int]) -> None:
        """Count a run of each of the objects, which this commit or snapshot adds."""
        for object_id in object_ids:
            if object_id not in self._runs_counts:
                raise InvalidRecordError(f"a run is in data object {object_id}, which does not exist")
            self._runs_counts[object_id] += 1

    def drop_runs(self, object_ids: NDArray[np.int64]) -> None:
        """Count that one run of each of the objects is gone."""
        if len(object_ids):
            self._dropped_runs.append(object_ids.copy())

    def drop_segments(self, topic: str, topic_id: str, partition: int, segments: Sequence[SegmentObject]) -> None:
        self._dropped_segments += [
            DroppedSegment(
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                base_offset=each.base_offset,
                segment_id=each.segment_id,
            )
            for each in segments
        ]

    def restore_dropped(self, record: DroppedObjectsRecord) -> None:
        """Objects that an earlier commit dropped, from a snapshot. maintenance/objects/clean_up.py deletes them."""
        last = self._dropped[-1].commit_offset if self._dropped else -1
        if not last < record.commit_offset < self._commit_offset:
            raise InvalidRecordError(
                f"a DroppedObjectsRecord states commit {record.commit_offset}: expected one after {last} and below "
                f"{self._commit_offset}"
            )
        for key in record.data_keys:
            _check_key(key)
        for each in record.segments:
            check_segment_id(each.segment_id, record.commit_offset)
            if each.partition < 0 or each.base_offset < 0:
                raise InvalidRecordError(
                    f"a DroppedObjectsRecord names a segment of partition {each.partition} of topic {each.topic} at "
                    f"offset {each.base_offset}"
                )
        self._dropped = (*self._dropped, record)

    def deleted(self, record: ObjectsDeletedRecord) -> None:
        """The objects dropped below that offset do not exist any more."""
        self._dropped = tuple(each for each in self._dropped if each.commit_offset >= record.dropped_below)

    def set_horizon(self, record: StagingHorizonRecord) -> None:
        is_commit = self._check_place(record.commit_offset)
        if not 0 <= record.horizon_offset <= self._commit_offset + 1:
            raise InvalidRecordError(
                f"a StagingHorizonRecord lets expire what was planned below {record.horizon_offset}: expected an "
                f"offset from 0 to {self._commit_offset + 1}"
            )
        self._horizon = StagingHorizon(
            record.horizon_offset,
            self._commit_offset if is_commit else record.commit_offset,
            self._timestamp_ms if is_commit else record.timestamp_ms,
        )

    def _check_place(self, *only_in_snapshots: int) -> bool:
        """Whether a record is of a commit: there it does not state these offsets, which snapshots state."""
        if any((offset < 0) == self._is_snapshot for offset in only_in_snapshots):
            raise InvalidRecordError(
                f"a record of a {'snapshot' if self._is_snapshot else 'commit'} states the offsets {only_in_snapshots}"
            )
        return not self._is_snapshot

    def build(self) -> tuple[DataObjects, tuple[DroppedObjectsRecord, ...], StagingHorizon]:
        """The objects, the dropped ones and the horizon after the commit."""
        objects = self._base.objects.appended(self._added, [self._runs_counts[each.object_id] for each in self._added])
        keys: list[str] = []
        if self._dropped_runs:
            import numpy as np

            objects, keys = objects.without_runs(np.concatenate(self._dropped_runs))
        dropped = self._dropped
        if keys or self._dropped_segments:
            record = DroppedObjectsRecord(
                commit_offset=self._commit_offset,
                timestamp_ms=self._timestamp_ms,
                data_keys=tuple(keys),
                segments=tuple(self._dropped_segments),
            )
            dropped = (*dropped, record)
        return objects, dropped, self._horizon


def _check_content(record: DataObjectRecord, is_commit: bool) -> None:
    """Raise InvalidRecordError unless the object is inside the commit or has a valid key."""
    if record.key:
        _check_key(record.key)
    elif is_commit and (record.inline_data is None or len(record.inline_data) != record.size_bytes):
        found = "no data" if record.inline_data is None else f"{len(record.inline_data)} bytes"
        raise InvalidRecordError(f"a DataObjectRecord without a key states {record.size_bytes} bytes and holds {found}")


def _check_key(key: str) -> None:
    """Raise InvalidRecordError unless `key` is one that a write of this package makes.

    Named objects are read, and deleted once they are dropped: no other object of the store may be named.
    """
    if DataKey.parse(key) is None or len(key) > MAX_KEY_BYTES:
        raise InvalidRecordError(
            f"a record names the object {key[:MAX_KEY_BYTES]!r}: expected the key of a data object"
        )


def check_segment_id(segment_id: str, commit_offset: int) -> None:
    """Raise InvalidRecordError unless the segment's copy was planned up to that offset, as its id says.

    Ids of brokers are random: remote storage that is shared with them has segments that are not the root's.
    """
    planned_at = planned_at_of(segment_id)
    if planned_at > commit_offset:
        raise InvalidRecordError(
            f"a record names segment {segment_id}: expected one that was planned up to offset {commit_offset}, found "
            f"{planned_at}: it is none of this root"
        )


def run_row(run: Run, added: DataObject, base_offset: int, leader_epoch: int) -> tuple[int, ...]:
    """The row of `run`, in the order of `run_dtype`. Raises InvalidRecordError if it cannot be a run of the object."""
    is_inside = run.position >= 0 and run.size_bytes > 0 and run.position + run.size_bytes <= added.size_bytes
    if not is_inside or run.batches_count <= 0 or not 0 <= run.records_count <= run.offsets_count <= 1 << 62:
        raise InvalidRecordError(
            f"a run of partition {run.partition} in a data object of {added.size_bytes} bytes cannot be at "
            f"{run.position} with {run.size_bytes} bytes, {run.batches_count} batches, {run.records_count} records, "
            f"{run.offsets_count} offsets"
        )
    return (
        base_offset,
        base_offset + run.offsets_count,
        added.object_id,
        run.position,
        run.max_timestamp_ms,
        run.size_bytes,
        run.records_count,
        run.batches_count,
        leader_epoch,
    )


def with_runs(
    partition: PartitionImage, rows: Sequence[tuple[int, ...]], producer_batches: Sequence[NDArray[np.void]] = ()
) -> PartitionImage:
    """`partition` with the runs `rows` and their batches of producers appended, whose offsets follow its log end."""
    state = replace(partition.state, log_end_offset=rows[-1][1])
    batches = partition.producer_batches
    if producer_batches:
        import numpy as np

        batches = batches.appended(np.concatenate(producer_batches))
    return PartitionImage(partition.partition, state, partition.segments, partition.runs.appended(rows), batches)


def with_stored_batches(partition: PartitionImage, data: bytes) -> PartitionImage:
    """`partition` with the batches of producers of a snapshot's record. Raises InvalidRecordError."""
    known = partition.producer_batches.table
    start_offset = int(known["last_offset"][-1]) + 1 if len(known) else 0
    rows = parse_rows(data, start_offset=start_offset, end_offset=partition.state.log_end_offset)
    return replace(partition, producer_batches=partition.producer_batches.appended(rows))


def with_stored_runs(partition: PartitionImage, record: PartitionRunsRecord) -> tuple[PartitionImage, list[int]]:
    """`partition` with the runs of a snapshot's record, and their object ids. Raises InvalidRecordError."""
    if len(record.runs) % stored_run_dtype().itemsize or not record.runs:
        raise InvalidRecordError(f"a PartitionRunsRecord has {len(record.runs)} bytes, not a number of whole runs")
    import numpy as np

    rows = np.frombuffer(record.runs, stored_run_dtype()).astype(run_dtype())
    bases, ends = rows["base_offset"], rows["end_offset"]
    before = partition.extents_range[1] if partition.has_extents else int(bases[0])
    is_contiguous = (bases[1:] == ends[:-1]).all() and before == bases[0]
    if not is_contiguous or (bases >= ends).any() or ends[-1] > partition.state.log_end_offset:
        raise InvalidRecordError(
            f"a PartitionRunsRecord has runs from {bases[0]} to {ends[-1]} that do not follow each other from {before} "
            f"to at most {partition.state.log_end_offset}"
        )
    return replace(partition, runs=partition.runs.appended(rows)), rows["object_id"].tolist()


def with_segments(
    name: str, partition: PartitionImage, record: SegmentObjectsRecord
) -> tuple[PartitionImage, Sequence[SegmentObject], NDArray[np.int64]]:
    """`partition`, called `name`, with the record's segments, the segments they replace, and the runs' object ids.

    Without segments the record replaces all by nothing: those of a file root whose remote storage is switched off.
    Raises InvalidRecordError unless exactly the extents that the record states are replaced.
    """
    if not record.segments:
        return _without_segments(name, partition, record)
    _check_segments(name, record)
    start, end = record.segments[0].base_offset, record.segments[-1].end_offset
    first = sum(each.end_offset <= start for each in partition.segments)
    last = sum(each.base_offset < end for each in partition.segments)
    replaced = partition.segments[first:last]
    runs_count = partition.runs.count_up_to(end)
    runs = partition.runs.table[:runs_count]
    bounds = _bounds(replaced, runs)
    stated = (record.replaced_segments, record.replaced_runs)
    follows = not partition.has_extents or partition.extents_range[1] == start
    is_addition = stated == ((), 0) and not len(partition.runs) and follows
    is_as_stated = stated == (tuple(each.segment_id for each in replaced), runs_count) and bounds == (start, end)
    if not is_addition and not is_as_stated:
        raise InvalidRecordError(
            f"{name}: segments of offsets {start} to {end - 1} cannot replace {len(record.replaced_segments)} segments "
            f"and {record.replaced_runs} runs: there are {len(replaced)} segments and {runs_count} runs, "
            f"of offsets {bounds[0]} to {bounds[1] - 1}; another job has replaced them, or retention dropped them"
        )
    segments = (*partition.segments[:first], *record.segments, *partition.segments[last:])
    after = replace(
        partition,
        segments=segments,
        runs=partition.runs.without_first(runs_count),
        producer_batches=partition.producer_batches.merged_up_to(end),
    )
    return after, replaced, runs["object_id"]


def _without_segments(
    name: str, partition: PartitionImage, record: SegmentObjectsRecord
) -> tuple[PartitionImage, Sequence[SegmentObject], NDArray[np.int64]]:
    """See `with_segments`."""
    segments, runs = partition.segments, partition.runs
    found = tuple(each.segment_id for each in segments)
    if not found or record.replaced_segments != found or record.replaced_runs or len(runs):
        raise InvalidRecordError(
            f"{name}: a SegmentObjectsRecord without segments replaces {len(record.replaced_segments)} segments and "
            f"{record.replaced_runs} runs: expected all of the {len(found)} segments that there are, and "
            f"{len(runs)} runs"
        )
    return replace(partition, segments=()), segments, runs.table["object_id"]


def _check_segments(name: str, record: SegmentObjectsRecord) -> None:
    segments = record.segments
    are_contiguous = all(one.end_offset == other.base_offset for one, other in pairwise(segments))
    if not are_contiguous or not all(0 <= each.base_offset < each.end_offset for each in segments):
        found = ", ".join(f"[{each.base_offset}, {each.end_offset})" for each in segments[:10])
        raise InvalidRecordError(f"{name}: a SegmentObjectsRecord has segments of the offsets {found}")
    for each in segments:
        if min(each.size_bytes, *_index_sizes(each)) < 0:
            raise InvalidRecordError(f"{name}: the segment at {each.base_offset} has a negative size")


def _index_sizes(segment: SegmentObject) -> Iterator[int]:
    yield segment.offset_index_bytes
    yield segment.time_index_bytes
    yield segment.producer_snapshot_bytes
    yield segment.leader_epoch_index_bytes
    yield segment.transaction_index_bytes


def _bounds(segments: Sequence[SegmentObject], runs: NDArray[np.void]) -> tuple[int, int]:
    """First offset and end of the extents; (0, 0) without one."""
    bases = [each.base_offset for each in segments[:1]] + runs["base_offset"][:1].tolist()
    ends = runs["end_offset"][-1:].tolist() + [each.end_offset for each in segments[-1:]]
    return (bases[0], ends[0]) if bases else (0, 0)


def first_base_offset(run: Run, partition: PartitionImage, *, is_first: bool) -> int:
    """The base offset that `run` states as the first one of an empty log. Raises InvalidRecordError."""
    state = partition.state
    is_empty = is_first and not partition.has_extents and state.log_start_offset == state.log_end_offset
    end_offset = run.base_offset + run.offsets_count
    if not is_empty or not 0 <= run.base_offset <= state.log_start_offset < end_offset:
        raise InvalidRecordError(
            f"a run of partition {run.partition} cannot begin at offset {run.base_offset} and end at {end_offset}: the "
            f"log is from {state.log_start_offset} to {state.log_end_offset}, with {len(partition.runs)} runs"
        )
    return run.base_offset


def trimmed(
    partition: PartitionImage, *, is_cut: bool = False
) -> tuple[PartitionImage, Sequence[SegmentObject], NDArray[np.int64]] | None:
    """`partition` without the extents below its log start, those segments, and the runs' object ids; None if none.

    `is_cut`: also without those that reach above the log end, as after a truncation, and without any if it is empty.
    """
    start, end = partition.state.log_start_offset, partition.state.log_end_offset
    segments, runs = partition.segments, partition.runs
    if not is_cut:
        if segments:
            if segments[0].end_offset > start:
                return None
        elif not len(runs) or runs.table["end_offset"][0] > start:
            return None
    segments_count = sum(each.end_offset <= start for each in segments)
    runs_count = runs.count_up_to(start)
    segments_kept, runs_kept = segments[segments_count:], runs.without_first(runs_count)
    segments_dropped, ids = segments[:segments_count], runs.table["object_id"][:runs_count]
    batches = partition.producer_batches
    if is_cut:
        batches = batches.truncated_to(end if start < end else 0)
        count = sum(each.end_offset <= end for each in segments_kept)
        segments_dropped, segments_kept = (*segments_dropped, *segments_kept[count:]), segments_kept[:count]
        import numpy as np

        count = runs_kept.count_up_to(end)
        ids = np.concatenate([ids, runs_kept.table["object_id"][count:]])
        runs_kept = runs_kept.without_last(len(runs_kept) - count)
    kept = replace(partition, segments=segments_kept, runs=runs_kept, producer_batches=batches.deleted_up_to(start))
    return kept, segments_dropped, ids
