"""The keys with the most records and the most bytes, in a bounded sample of a topic's newest records.

Partitions are read backwards from their ends, one slice at a time, until the sample is full. Arrow's grouping counts
the keys. When there are more distinct keys than fit, the lightest are dropped; the weight of the heaviest dropped key
bounds the error of every count, as in space-saving sketches. Control records and records of aborted transactions do not
count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.report.facts import HeavyKey, KeySample, PartitionFacts, TopicFacts
from pyspark_kafkalog.root.protocol import Root

#: Keys that are reported for each measure.
TOP_KEYS: Final = 20
_GROUPS_MAX: Final = 1 << 17
_SLICE_BYTES: Final = 1 << 20
#: A topic's sample is full after this many records, however small they are.
_RECORDS_MAX: Final = 1_000_000
_SCHEMA: Final = pa.schema([KAFKA_SCHEMA.field("key"), KAFKA_SCHEMA.field("value")])


@dataclass(slots=True)
class _Sketch:
    """Records and bytes by key, for at most about _GROUPS_MAX keys."""

    groups: pa.Table | None = None
    records: int = 0
    bytes: int = 0
    dropped_keys: int = 0
    error_records: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the records of `batch` (columns key, value)."""
        key, value = batch.column("key"), batch.column("value")
        sizes = pc.add(_lengths(key), _lengths(value))
        counted = pa.table({"key": key, "records": pa.repeat(1, len(batch)), "bytes": sizes})
        self.records += len(batch)
        self.bytes += pc.sum(sizes).as_py() or 0
        parts = [_grouped(counted)] if self.groups is None else [self.groups, _grouped(counted)]
        self.groups = _grouped(pa.concat_tables(parts))
        if len(self.groups) > _GROUPS_MAX:
            self._let_go()

    def _let_go(self) -> None:
        """Drop the lighter keys: keep the heavier half by records, and the heaviest by bytes."""
        assert self.groups is not None
        by_records = pc.select_k_unstable(self.groups, k=_GROUPS_MAX // 2, sort_keys=[("records", "descending")])
        by_bytes = pc.select_k_unstable(self.groups, k=TOP_KEYS * 8, sort_keys=[("bytes", "descending")])
        kept = pc.unique(pa.concat_arrays([by_records, by_bytes]))
        dropped = pc.invert(pc.is_in(pa.array(range(len(self.groups)), pa.uint64()), kept))
        lost = self.groups.filter(dropped)
        self.error_records += pc.max(lost["records"]).as_py() or 0
        self.dropped_keys += len(lost)
        self.groups = self.groups.take(kept)

    def top(self, by: str) -> tuple[HeavyKey, ...]:
        """The heaviest keys by the column `by`, heaviest first."""
        if self.groups is None:
            return ()
        rows = self.groups.take(pc.sort_indices(self.groups, sort_keys=[(by, "descending")])[:TOP_KEYS])
        return tuple(HeavyKey(row["key"], row["records"], row["bytes"]) for row in rows.to_pylist())


def sample_keys(root: Root, topic: TopicFacts, *, log_bytes_max: int) -> KeySample | None:
    """Read up to about `log_bytes_max` bytes of log from the ends of the topic's partitions, the largest ones first.

    None when there are no records to read. Raises DiskFormatError for a damaged log.
    """
    chosen = _partitions_to_sample(topic, log_bytes_max)
    sketch = _Sketch()
    read = 0
    for at, partition in enumerate(chosen):
        share = _RECORDS_MAX * (at + 1) // len(chosen)
        before = sketch.records
        for batches in _slices_backwards(root, partition, log_bytes_max // len(chosen)):
            for batch in batches:
                sketch.add(batch)
            if sketch.records >= share:
                break
        read += sketch.records > before
    if not sketch.records:
        return None
    return KeySample(
        topic=topic.name,
        partitions=read,
        records=sketch.records,
        bytes=sketch.bytes,
        distinct_keys=(0 if sketch.groups is None else len(sketch.groups)) + sketch.dropped_keys,
        error_records=sketch.error_records,
        by_records=sketch.top("records"),
        by_bytes=sketch.top("bytes"),
    )


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), 0)


def _grouped(table: pa.Table) -> pa.Table:
    """One row for each key, with the sums of records and bytes."""
    found = table.group_by("key").aggregate([("records", "sum"), ("bytes", "sum")])
    return found.select(["key", "records_sum", "bytes_sum"]).rename_columns(["key", "records", "bytes"])


def _partitions_to_sample(topic: TopicFacts, log_bytes_max: int) -> Sequence[PartitionFacts]:
    """The largest partitions with records, as many as leave one slice of log for each."""
    filled = [each for each in topic.partitions if each.error is None and each.offsets_count > 0]
    filled.sort(key=lambda each: -each.size_bytes)
    return filled[: max(log_bytes_max // _SLICE_BYTES, 1)]


def _slices_backwards(root: Root, partition: PartitionFacts, bytes_max: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """The partition's records below its last stable offset, in slices of about _SLICE_BYTES, the last slice first."""
    reader = root.reader(partition.topic_partition.topic, partition.topic_partition.partition)
    end_offset = partition.last_stable_offset
    left = bytes_max
    for run in reversed(partition.runs):
        start_offset = max(run.base_offset, partition.log_start_offset)
        if start_offset >= end_offset:
            continue
        for each in reversed(reader.split(start_offset, end_offset, _SLICE_BYTES)):
            if left <= 0:
                return
            yield reader.read(each.start_offset, each.end_offset, schema=_SCHEMA, committed=True)
            left -= max(each.size_bytes, 1)
        end_offset = start_offset
