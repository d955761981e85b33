"""In any order of appends, cleanings and reads, the latest record of each key stays unchanged."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from builders.controlled import create_log_dir
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tiers import examples

from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA

_Row = tuple[bytes, bytes | None]
_RETENTION_MS = 1000

_rows = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e", b"f"]), st.one_of(st.none(), st.binary(max_size=60))),
    min_size=1,
    max_size=12,
)


class CleanedTopic(RuleBasedStateMachine):
    """One partition of a compacted topic, and all that was ever written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.now_ms = 1_700_000_000_000
        self.written: list[_Row] = []  # row i has offset i
        self.tombstones: dict[int, int] = {}  # offset -> when a cleaning first came past it
        self.readings: list[tuple[int, list[int], Iterator[int]]] = []

    @initialize(segment_bytes=st.sampled_from([300, 1000]), codec=st.sampled_from(["uncompressed", "zstd", "lz4"]))
    def create(self, segment_bytes: int, codec: str) -> None:
        self.log_dir = create_log_dir(self.root / "log", clock=lambda: self.now_ms)
        configs = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": str(segment_bytes),
            "index.interval.bytes": "100",
            "delete.retention.ms": str(_RETENTION_MS),
            "min.cleanable.dirty.ratio": "0",
            "compression.type": codec,
        }
        self.log_dir.create_topic("orders", partitions=1, configs=configs)

    @rule(rows=_rows)
    def append(self, rows: list[_Row]) -> None:
        keys, values = (
            pa.array([key for key, _ in rows], pa.binary()),
            pa.array([value for _, value in rows], pa.binary()),
        )
        self.log_dir.append("orders", pa.table({"key": keys, "value": values}), partition=0, flush="os")
        self.written += rows

    @rule(later_ms=st.sampled_from([0, 1, _RETENTION_MS - 1, _RETENTION_MS]), keys_a_map=st.sampled_from([2, 1000]))
    def clean(self, later_ms: int, keys_a_map: int) -> None:
        self.now_ms += later_ms
        before = self._stored()
        report = clean_partition(self.log_dir.root, "orders", 0, dedupe_buffer_bytes=24 * keys_a_map)
        assert report.error is None
        after = self._stored()
        gone = before.keys() - after.keys()
        end_offset = report.first_uncleanable_offset or 0
        latest = {key: offset for offset, (key, _) in enumerate(self.written[:end_offset])}
        for offset in gone:
            key, value = self.written[offset]
            if latest[key] == offset:
                assert value is None
                assert self.now_ms >= self.tombstones[offset] + _RETENTION_MS
        for offset, (_, value) in after.items():
            if value is None and offset < end_offset:
                self.tombstones.setdefault(offset, self.now_ms)
        if report.skipped is None:
            below = [self.written[offset][0] for offset in after if offset < end_offset]
            assert len(below) == len(set(below))
        clean_partition(self.log_dir.root, "orders", 0, force=True)
        assert self._stored() == after

    @rule(taken=st.integers(0, 20))
    def begin_to_read(self, taken: int) -> None:
        reading = self._offsets(len(self.written))
        first = list(itertools.islice(reading, taken))
        self.readings.append((len(self.written), first, reading))

    @rule()
    def read_on(self) -> None:
        """What was begun before any number of cleanings ends with what is still there, in order, each once."""
        stored = self._stored().keys()
        for end_offset, first, reading in self.readings:
            found = [*first, *reading]
            assert found == sorted(set(found))
            assert {each for each in stored if each < end_offset} <= set(found)
        self.readings.clear()

    @invariant()
    def the_latest_record_of_each_key_is_there(self) -> None:
        if not hasattr(self, "log_dir"):
            return
        stored = self._stored()
        assert list(stored) == sorted(stored)
        assert all(self.written[offset] == row for offset, row in stored.items())
        latest = {key: offset for offset, (key, _) in enumerate(self.written)}
        for key, offset in latest.items():
            assert offset in stored or self.written[offset] == (key, None)

    def teardown(self) -> None:
        if hasattr(self, "log_dir"):
            self.read_on()
        shutil.rmtree(self.root)

    def _stored(self) -> dict[int, _Row]:
        table = self.log_dir.read("orders", columns=["offset", "key", "value"])
        rows = zip(table["offset"].to_pylist(), table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
        return {offset: (key, value) for offset, key, value in rows}

    def _offsets(self, end_offset: int) -> Iterator[int]:
        for batch in self.log_dir.reader("orders", 0).read(0, end_offset, schema=KAFKA_SCHEMA):
            yield from batch["offset"].to_pylist()


CleanedTopic.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=20, deadline=None)
TestCleanedTopic = CleanedTopic.TestCase
