"""After any change of an index, a lookup gives what a plain list with bisect gives."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path

import numpy as np
from builders.indexes import add_entry
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiers import examples

from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex, TimeIndex

_BASE = 5_000
_ROOM_ENTRIES = 3_000  # more than the 8 KiB that are searched first

_steps = st.integers(1, 50)


class IndexMachine(RuleBasedStateMachine):
    """One offset index and one time index beside lists of their entries."""

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.offsets: list[int] = []
        self.positions: list[int] = []
        self.timestamps_ms: list[int] = []
        self.time_offsets: list[int] = []
        self._open()

    def _open(self) -> None:
        directory = Path(self.directory.name)
        self.index = OffsetIndex.open(directory / "0.index", _BASE, max_index_bytes=_ROOM_ENTRIES * 8, writable=True)
        self.time_index = TimeIndex.open(
            directory / "0.timeindex", _BASE, max_index_bytes=_ROOM_ENTRIES * 12, writable=True
        )
        self.index.resize(_ROOM_ENTRIES * 8)
        self.time_index.resize(_ROOM_ENTRIES * 12)

    def _next(self, step: int) -> tuple[int, int, int]:
        offset = (self.offsets[-1] if self.offsets else _BASE) + step
        position = (self.positions[-1] if self.positions else 0) + step * 7
        timestamp_ms = (self.timestamps_ms[-1] if self.timestamps_ms else 100) + step // 3
        return max(offset, self.time_offsets[-1] if self.time_offsets else 0), position, timestamp_ms

    def _note(self, offset: int, position: int, timestamp_ms: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)
        if not self.timestamps_ms or timestamp_ms > self.timestamps_ms[-1]:
            self.timestamps_ms.append(timestamp_ms)
            self.time_offsets.append(offset)

    @precondition(lambda self: len(self.offsets) < _ROOM_ENTRIES - 1)
    @rule(step=_steps)
    def append(self, step: int) -> None:
        offset, position, timestamp_ms = self._next(step)
        add_entry(self.index, offset, position)
        self.time_index.maybe_append(timestamp_ms, offset)
        self._note(offset, position, timestamp_ms)

    @precondition(lambda self: len(self.offsets) < _ROOM_ENTRIES - 1_002)
    @rule(count=st.integers(1, 1_000), step=_steps)
    def append_many(self, count: int, step: int) -> None:
        rows = []
        for _ in range(count):
            rows.append(self._next(step))
            self._note(*rows[-1])
        offsets, positions, timestamps_ms = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        self.index.append_many(offsets, positions)
        self.time_index.maybe_append_many(timestamps_ms, offsets)

    @precondition(lambda self: bool(self.offsets))
    @rule(data=st.data())
    def truncate_to(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(_BASE - 1, self.offsets[-1] + 1))
        self.index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        kept = bisect_right(self.offsets, offset - 1)
        del self.offsets[kept:], self.positions[kept:]
        kept = bisect_right(self.time_offsets, offset - 1)
        del self.timestamps_ms[kept:], self.time_offsets[kept:]

    @rule(killed=st.booleans())
    def reopen(self, killed: bool) -> None:
        for index in (self.index, self.time_index):
            if killed:
                index.close_handler()
            else:
                index.close()
        self._open()

    @rule(wanted=st.lists(st.integers(_BASE - 10, _BASE + 200_000), max_size=20))
    def look_up_offsets(self, wanted: list[int]) -> None:
        for target in wanted:
            slot = bisect_right(self.offsets, target) - 1
            expected = (self.offsets[slot], self.positions[slot]) if slot >= 0 else (_BASE, 0)
            assert self.index.lookup(target) == expected

    @rule(wanted=st.lists(st.integers(90, 20_000), max_size=20))
    def look_up_timestamps(self, wanted: list[int]) -> None:
        for target in wanted:
            slot = bisect_right(self.timestamps_ms, target) - 1
            expected = (self.timestamps_ms[slot], self.time_offsets[slot]) if slot >= 0 else (-1, _BASE)
            assert self.time_index.lookup(target) == expected

    @invariant()
    def entries_are_those_of_the_lists(self) -> None:
        if not hasattr(self, "index"):
            return
        assert self.index.entries_array().tolist() == list(zip(self.offsets, self.positions, strict=True))
        assert self.time_index.entries_array().tolist() == list(zip(self.timestamps_ms, self.time_offsets, strict=True))
        with OffsetIndex.open(self.index.path, _BASE, max_index_bytes=8) as reader:
            assert reader.entries == len(self.offsets)

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            self.time_index.close()
            self.directory.cleanup()


TestIndexes = IndexMachine.TestCase
TestIndexes.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
