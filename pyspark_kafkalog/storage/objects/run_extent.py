"""Neighbouring runs of one partition as one extent of its log.

A thousand small runs would be a thousand extents to open. So runs that follow each other are grouped, up to
`GROUP_BYTES`; to a reader a group is a segment without files. What an index would say is known from the runs
themselves, and inside a run from its table, which comes with its bytes: the lookups are exact and cost no request
beyond those that reading needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.storage.artefacts.offset_index import OFFSET_INDEX_DTYPE, OffsetPosition
from pyspark_kafkalog.storage.artefacts.time_index import TimestampOffset
from pyspark_kafkalog.storage.objects.run_source import ObjectBytes, RunSource
from pyspark_kafkalog.units import INT32_MAX, MIB

GROUP_BYTES: Final = 256 * MIB
_GROUP_RUNS: Final = 4096


class RunExtent:
    """The extent of `runs` (RUN_DTYPE, one or more), which follow each other. For one thread.

    `name` is what error messages call the partition's log.
    """

    def __init__(self, runs: NDArray[np.void], objects: ObjectBytes, *, name: str) -> None:
        self.runs = runs
        self.base_offset = int(runs["base_offset"][0])
        self.end_offset = int(runs["end_offset"][-1])
        self._objects = objects
        self._name = name

    @property
    def known_size_bytes(self) -> int:
        return int(self.runs["size_bytes"].sum(dtype=np.int64))

    @property
    def known_max_timestamp_ms(self) -> int:
        return int(self.runs["max_timestamp_ms"].max())

    @cached_property
    def _source(self) -> RunSource:
        return RunSource(self.runs, self._objects, name=f"{self._name}, runs from offset {self.base_offset}")

    def open(self) -> RunSource:
        """The bytes; requested when they are read."""
        return self._source

    def offset_index(self) -> RunOffsets:
        return RunOffsets(self.runs, self._source)

    def time_index(self) -> RunTimestamps:
        return RunTimestamps(self.runs, self._source)


class RunOffsets:
    """Looks up offsets in the runs of an extent."""

    def __init__(self, runs: NDArray[np.void], source: RunSource) -> None:
        self._runs = runs
        self._source = source

    def lookup(self, target_offset: int) -> OffsetPosition:
        """The batch that holds the offset, or the first one after it: its last offset, and its position.

        The last batch if all are below.
        """
        run = min(int(np.searchsorted(self._runs["end_offset"], target_offset, side="right")), len(self._runs) - 1)
        table = self._source.table(run)
        at = min(int(np.searchsorted(table.last_offsets, target_offset)), len(table.last_offsets) - 1)
        return OffsetPosition(int(table.last_offsets[at]), int(table.positions[at]))

    def entries_array(self) -> NDArray[np.void]:
        """Where splits may be cut: the last offset of each run but the last, and the position after it."""
        entries = np.empty(len(self._runs) - 1, OFFSET_INDEX_DTYPE)
        entries["offset"] = self._runs["end_offset"][:-1] - 1
        entries["position"] = np.cumsum(self._runs["size_bytes"], dtype=np.int64)[:-1]
        return entries

    def close_handler(self) -> None:
        """Nothing is open."""


class RunTimestamps:
    """Looks up timestamps in the runs of an extent."""

    def __init__(self, runs: NDArray[np.void], source: RunSource) -> None:
        self._runs = runs
        self._source = source

    @property
    def entries(self) -> int:
        """More than 0: there is a batch."""
        return len(self._runs)

    @property
    def last_entry(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of the first batch that has it."""
        return self._first_since(int(self._runs["max_timestamp_ms"].max()))

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The first batch with a timestamp of at least `timestamp_ms`: its largest timestamp and its last offset.

        If there is none, the first batch with the largest timestamp.
        """
        return self._first_since(min(timestamp_ms, int(self._runs["max_timestamp_ms"].max())))

    def close_handler(self) -> None:
        """Nothing is open."""

    def _first_since(self, timestamp_ms: int) -> TimestampOffset:
        run = int(np.argmax(self._runs["max_timestamp_ms"] >= timestamp_ms))
        table = self._source.table(run)
        at = int(np.argmax(table.max_timestamps_ms >= timestamp_ms))
        return TimestampOffset(int(table.max_timestamps_ms[at]), int(table.last_offsets[at]))


def run_extents(runs: NDArray[np.void], objects: ObjectBytes, *, name: str) -> Iterator[RunExtent]:
    """Extents of `runs` (RUN_DTYPE), which follow each other, in groups; see RunExtent for `name`."""
    ends = np.cumsum(runs["size_bytes"], dtype=np.int64)
    first = 0
    while first < len(runs):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + GROUP_BYTES, side="right"))
        # Positions in a segment are offsets relative to its base in an int32.
        last_offset = int(runs["base_offset"][first]) + INT32_MAX
        last = min(last, int(np.searchsorted(runs["end_offset"], last_offset, side="right")), first + _GROUP_RUNS)
        last = max(last, first + 1)
        yield RunExtent(runs[first:last], objects, name=name)
        first = last
