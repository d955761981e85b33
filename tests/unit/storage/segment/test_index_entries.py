"""Planned index entries and rolls for whole tables equal Kafka's rules applied batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiers import examples

from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.storage.segment.index_entries import SegmentCounters, SegmentLimits, plan_run

BASE = 1000


@dataclass
class PlainSegment:
    """LogSegment.shouldRoll and LogSegment.append, one batch at a time."""

    limits: SegmentLimits
    size: int = 0
    first_ms: int = -1
    max_ms: int = -1
    max_offset: int = 0
    since: int = 0
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)

    def must_roll(self, size: int, max_ms: int, last_offset: int) -> bool:
        waited = max_ms - self.first_ms if self.first_ms >= 0 else self.limits.waited_without_timestamps_ms
        return (
            (self.size > 0 and self.size > self.limits.segment_bytes - size)
            or (self.size > 0 and waited > self.limits.roll_after_ms)
            or (len(self.offset_entries) >= self.limits.offset_entries_left)
            or (len(self.time_entries) >= self.limits.time_entries_left)
            or last_offset - self.limits.base_offset > 0x7FFFFFFF
        )

    def append(self, size: int, max_ms: int, last_offset: int) -> None:
        if not self.size:
            self.first_ms = max_ms
        if max_ms > self.max_ms:
            self.max_ms, self.max_offset = max_ms, last_offset
        if self.since > self.limits.index_interval_bytes:
            self.offset_entries.append((last_offset, self.size))
            last_ms = self.time_entries[-1][0] if self.time_entries else self.limits.last_time_entry_ms
            if self.max_ms > last_ms:
                self.time_entries.append((self.max_ms, self.max_offset))
            self.since = 0
        self.size += size
        self.since += size


batch_sizes = st.one_of(st.integers(61, 200), st.integers(61, 3000))
timestamps = st.one_of(st.just(-1), st.integers(0, 50), st.integers(1000, 1100))
batch_lists = st.lists(
    st.tuples(batch_sizes, timestamps, st.one_of(st.integers(0, 10), st.integers(0, 2**30))), min_size=1, max_size=60
)


def table(batches: list[tuple[int, int, int]]) -> NDArray[np.void]:
    rows = np.zeros(len(batches), dtype=BATCH_DTYPE)
    offset = BASE
    for row, (size, max_ms, delta) in zip(rows, batches, strict=True):
        row["size_bytes"], row["max_timestamp_ms"] = size, max_ms
        row["base_offset"], row["last_offset"] = offset, offset + delta
        offset += delta + 1
    return rows


@settings(max_examples=examples(300), deadline=None)
@given(
    before=st.lists(st.tuples(batch_sizes, timestamps, st.integers(0, 10)), max_size=10),
    batches=batch_lists,
    segment_bytes=st.integers(3000, 20000),
    roll_after_ms=st.integers(0, 1200),
    interval=st.integers(0, 1000),
    offset_room=st.integers(1, 30),
    time_room=st.integers(1, 30),
    waited_ms=st.integers(0, 2000),
)
def test_planned_run_equals_append_of_one_batch_after_the_other(
    before: list[tuple[int, int, int]],
    batches: list[tuple[int, int, int]],
    segment_bytes: int,
    roll_after_ms: int,
    interval: int,
    offset_room: int,
    time_room: int,
    waited_ms: int,
) -> None:
    limits = SegmentLimits(
        base_offset=BASE,
        segment_bytes=segment_bytes,
        roll_after_ms=roll_after_ms,
        index_interval_bytes=interval,
        offset_entries_left=offset_room,
        time_entries_left=time_room,
        last_time_entry_ms=-1,
        waited_without_timestamps_ms=waited_ms,
    )
    rows = table([*before, *batches])
    plain = PlainSegment(limits)
    for at in range(len(before)):
        plain.append(*(int(rows[name][at]) for name in ("size_bytes", "max_timestamp_ms", "last_offset")))
    counters = SegmentCounters(
        size_bytes=plain.size,
        first_timestamp_ms=plain.first_ms,
        max_timestamp_ms=plain.max_ms,
        max_timestamp_offset=plain.max_offset,
        bytes_since_last_index_entry=plain.since,
    )
    limits = SegmentLimits(
        base_offset=BASE,
        segment_bytes=segment_bytes,
        roll_after_ms=roll_after_ms,
        index_interval_bytes=interval,
        offset_entries_left=offset_room - len(plain.offset_entries),
        time_entries_left=time_room - len(plain.time_entries),
        last_time_entry_ms=plain.time_entries[-1][0] if plain.time_entries else -1,
        waited_without_timestamps_ms=waited_ms,
    )
    known = len(plain.offset_entries), len(plain.time_entries)
    rest = rows[len(before) :]
    plan = plan_run(rest, counters, limits)
    count = 0
    for row in rest:
        arguments = int(row["size_bytes"]), int(row["max_timestamp_ms"]), int(row["last_offset"])
        if plain.must_roll(*arguments):
            break
        plain.append(*arguments)
        count += 1
    assert plan.count == count
    entries = plan.entries
    assert (
        list(zip(entries.offsets.tolist(), entries.positions.tolist(), strict=True)) == plain.offset_entries[known[0] :]
    )
    found = list(zip(entries.timestamps_ms.tolist(), entries.time_offsets.tolist(), strict=True))
    assert found == plain.time_entries[known[1] :]
    assert plan.counters == SegmentCounters(
        size_bytes=plain.size,
        first_timestamp_ms=plain.first_ms,
        max_timestamp_ms=plain.max_ms,
        max_timestamp_offset=plain.max_offset,
        bytes_since_last_index_entry=plain.since,
    )
