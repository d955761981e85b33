"""A root whose segments are copied, locally deleted and dropped at random reads as if nothing had been remote.

The twin of the log is the list of all its rows, read before they became remote: rows of any range in both isolation
levels, the answers of time look-ups, and tasks of old plans are compared with it after every step.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders.tiered_fixtures import ISOLATIONS
from builders.tiered_logs import (
    OF,
    T0,
    bases,
    copy_closed,
    fill,
    image_of,
    move_local_start,
    move_log_start,
    remove_files,
    rows,
    tiering_root,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root.planned import PlannedPartition
from pyspark_kafkalog.storage.log.reader import LogReader

_STEPS = st.lists(
    st.sampled_from(["append", "copy", "copy", "local start", "files", "log start", "plan"]), min_size=4, max_size=12
)


@dataclass
class Twin:
    """The root, its rows by isolation level, and plans made at different times."""

    log_dir: LogDir
    rng: random.Random
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    plans: list[tuple[PlannedPartition, int, int, bool]] = field(default_factory=list)

    @property
    def state(self) -> Any:
        return image_of(self.log_dir).state

    def append(self) -> None:
        end = self.state.log_end_offset
        fill(self.log_dir, self.rng, self.rng.randint(1, 25))
        for isolation in ISOLATIONS:
            self.rows.setdefault(isolation, []).extend(rows(self.log_dir, end, isolation=isolation))

    def copy(self) -> None:
        copy_closed(self.log_dir, self.rng.choice([1, 2, None]))

    def local_start(self) -> None:
        """As local retention: at the base of a local segment, up to what is remote."""
        segments = image_of(self.log_dir).segments
        copied = segments[-1].end_offset if segments else 0
        due = [each for each in bases(self.log_dir) if self.state.local_log_start_offset < each <= copied]
        if due:
            move_local_start(self.log_dir, self.rng.choice(due))

    def files(self) -> None:
        """Removes the files of committed deletions, or some of them, the oldest first."""
        start = self.state.local_log_start_offset
        due = [each for each in bases(self.log_dir)[1:] if each <= start]
        if due:
            remove_files(self.log_dir, self.rng.choice(due))

    def log_start(self) -> None:
        state = self.state
        move_log_start(self.log_dir, self.rng.randint(state.log_start_offset, state.log_end_offset))

    def plan(self) -> None:
        self.log_dir.refresh()
        planned = self.log_dir.root.planned_partition(OF, self.log_dir.topic(OF.topic).topic_id)
        start, end = self.some_range()
        committed = self.rng.random() < 0.5
        self.plans.append((planned.part(start, end, committed=committed), start, end, committed))

    def some_range(self) -> tuple[int, int]:
        start, end = self.state.log_start_offset, self.state.log_end_offset
        one, other = sorted((self.rng.randint(start, end), self.rng.randint(start, end)))
        return one, other

    def expected(self, isolation: str, start: int, end: int) -> list[dict[str, Any]]:
        return [row for row in self.rows[isolation] if start <= row["offset"] < end]

    def check(self) -> None:
        start, end = self.state.log_start_offset, self.state.log_end_offset
        for isolation in ISOLATIONS:
            assert rows(self.log_dir, isolation=isolation) == self.expected(isolation, start, end)
            one, other = self.some_range()
            assert rows(self.log_dir, one, other, isolation=isolation) == self.expected(isolation, one, other)
        self.check_times(start, end)
        for planned, planned_start, planned_end, committed in self.plans:
            first = max(planned_start, start)
            assert planned.moved_log_start() in (0, start)
            found = read(LogReader(planned.extents(), OF), first, planned_end, committed=committed)
            assert found == self.expected(ISOLATIONS[committed], first, planned_end)

    def check_times(self, start: int, end: int) -> None:
        """Control records, which the rows do not have, have the smallest timestamp."""
        reader = self.log_dir.reader(OF.topic, OF.partition)
        present = self.expected(ISOLATIONS[0], start, end)
        for _ in range(3):
            time_ms = T0 + self.rng.randint(1, 1000 * end + 30_000)
            found = reader.offset_for_timestamp(time_ms, start, end)
            later = [row["offset"] for row in present if row["timestamp"].timestamp() * 1000 >= time_ms]
            assert (None if found is None else found.offset) == (later[0] if later else None)


def read(reader: LogReader, start: int, end: int, *, committed: bool) -> list[dict[str, Any]]:
    return [
        row for batch in reader.read(start, end, schema=KAFKA_SCHEMA, committed=committed) for row in batch.to_pylist()
    ]


@contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(["aiven", "local"]), _STEPS)
def test_every_read_at_every_step_equals_the_untiered_log(seed: int, layout: str, steps: list[str]) -> None:
    with directory() as path:
        twin = Twin(tiering_root(path / "root", path / "tier", layout=layout), random.Random(seed))
        twin.append()
        for step in steps:
            getattr(twin, step.replace(" ", "_"))()
            twin.check()
