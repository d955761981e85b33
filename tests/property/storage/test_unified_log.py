"""UnifiedLog against a list in memory: after any operations it holds the same records and reports the same offsets."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from builders.leader_writers import append_as_leader
from builders.log_reads import Isolation, offset_for_timestamp, read
from builders.staged_writes import append_staged
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiers import examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.reference import Record, decode_batch, encode_batch
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.log.follower import (
    append_as_follower,
    check_batches,
    delete_records,
    drop_outdated,
    empty_state,
    truncated_state,
)
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staged_file import StagingTask, TaskFiles

T0 = 1_700_000_000_000
CONFIG = LogConfig.from_properties(
    {"internal.segment.bytes": "700", "index.interval.bytes": "150", "segment.index.bytes": "60", "segment.ms": "400"}
)
ORDERS = TopicPartition("orders", 0)
EXPIRATION_MS = 86_400_000
timestamp_lists = st.lists(st.integers(0, 300), min_size=1, max_size=5)


@dataclass(frozen=True)
class ModelBatch:
    base_offset: int
    timestamps_ms: tuple[int, ...]

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.timestamps_ms)


def encoded(base_offset: int, timestamps_ms: list[int], codec: CompressionType = CompressionType.NONE) -> bytes:
    records = [
        Record(offset=base_offset + at, timestamp_ms=timestamp_ms, key=None, value=b"%d" % timestamp_ms)
        for at, timestamp_ms in enumerate(timestamps_ms)
    ]
    return encode_batch(records, compression=codec)


class UnifiedLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="unified-log-"))
        self.directory = self.root / str(ORDERS)
        self.directory.mkdir()
        self.batches: list[ModelBatch] = []
        self.start = 0
        self.end = 0
        self.time_ms = T0
        self.staged = 0

    def teardown(self) -> None:
        self.log.suspend()
        shutil.rmtree(self.root)

    def _open(self, *, clean: bool, recovery_point: int = 0) -> UnifiedLog:
        return UnifiedLog.open(
            self.directory,
            CONFIG,
            clean_shutdown=clean,
            recovery_point=recovery_point,
            log_start_offset=self.start,
            clock=lambda: self.time_ms,
        )

    def _times(self, deltas: list[int]) -> list[int]:
        self.time_ms += 100
        return [self.time_ms - delta for delta in deltas]

    @initialize()
    def begin(self) -> None:
        self.log = self._open(clean=True)

    @rule(deltas=timestamp_lists, codec=st.sampled_from([CompressionType.NONE, CompressionType.LZ4]))
    def append_as_leader(self, deltas: list[int], codec: CompressionType) -> None:
        timestamps_ms = self._times(deltas)
        info = append_as_leader(self.log, encoded(0, timestamps_ms, codec), leader_epoch=1)
        assert (info.first_offset, info.last_offset) == (self.end, self.end + len(deltas) - 1)
        self._appended(self.end, timestamps_ms)

    @rule(deltas=timestamp_lists, gap=st.integers(0, 5))
    def append_as_follower(self, deltas: list[int], gap: int) -> None:
        timestamps_ms = self._times(deltas)
        append_as_follower(self.log, check_batches(encoded(self.end + gap, timestamps_ms)))
        self._appended(self.end + gap, timestamps_ms)

    @rule(batches=st.lists(timestamp_lists, min_size=1, max_size=12))
    def append_staged(self, batches: list[list[int]]) -> None:
        task = StagingTask(root=self.root, write_id="w", task=self.staged)
        files = TaskFiles(task, ORDERS.topic, flushing_file_system(LOCAL, "os"))
        self.staged += 1
        stamped = [self._times(deltas) for deltas in batches]
        for timestamps_ms in stamped:
            data = encoded(files.next_offset(ORDERS.partition), timestamps_ms)
            files.append(ORDERS.partition, data, scan_batches(data, file="staged").batches)
        (file,) = files.finish()
        append_staged(self.log, file, leader_epoch=1)
        for timestamps_ms in stamped:
            self._appended(self.end, timestamps_ms)

    def _appended(self, base_offset: int, timestamps_ms: list[int]) -> None:
        batch = ModelBatch(base_offset, tuple(timestamps_ms))
        self.batches.append(batch)
        self.end = batch.next_offset

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(back=st.integers(0, 40))
    def truncate_to(self, back: int) -> None:
        offset = max(self.end - back, 0)
        base_offset = self.log.segments.from_offset(offset)[0].base_offset
        self._cut(truncated_state(self.log, offset, producer_id_expiration_ms=EXPIRATION_MS))
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
            self.end = max([base_offset, *(batch.next_offset for batch in self.batches)])
            if self.end <= self.start:
                self.start = self.end = min(offset, self.start)
                self.batches = []

    def _cut(self, state: LogState) -> None:
        """Commit the state, so to speak; then resuming from it cuts the files."""
        self.log.suspend()
        self.log = UnifiedLog.resume(self.directory, CONFIG, state, clock=lambda: self.time_ms)
        drop_outdated(self.log)

    @rule(ahead=st.integers(0, 20))
    def truncate_fully(self, ahead: int) -> None:
        self.start = self.end = self.end + ahead
        self._cut(empty_state(self.log, self.end))
        self.batches = []

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        offset = self.start + int((self.end - self.start) * part)
        assert delete_records(self.log, offset) == offset
        self.start = offset

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        active_base = self.log.active_segment.base_offset
        if clean:
            self.log.close()
        else:
            self.log.suspend()
        self._reopened(active_base, clean=clean)

    @rule(garbage=st.sampled_from([b"\0" * 70, b"\xff" * 30, encoded(10**6, [1, 2])[:-1], bytes(17)]))
    def reopen_after_a_crash_with_a_torn_tail(self, garbage: bytes) -> None:
        active = self.log.active_segment
        self.log.suspend()
        with active.log_path.open("ab") as file:
            file.write(garbage)
        self._reopened(active.base_offset, clean=False)

    def _reopened(self, active_base: int, *, clean: bool) -> None:
        # A start knows the log end from the last batch alone: an offset reached by truncation inside a batch is lost.
        self.end = max([active_base] + [batch.next_offset for batch in self.batches])
        if self.end < self.start:
            self.batches, self.end = [], self.start
        self.log = self._open(clean=clean, recovery_point=active_base)

    @rule(writes=st.booleans())
    def resume(self, writes: bool) -> None:
        state = self.log.state()
        if writes:
            # What a writer adds and never commits.
            for _ in range(6):
                append_as_leader(self.log, encoded(0, [self.time_ms, self.time_ms]), leader_epoch=1)
        self.log.suspend()
        self.log = UnifiedLog.resume(self.directory, CONFIG, state, clock=lambda: self.time_ms)

    @invariant()
    def offsets_agree(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert self.log.last_stable_offset == self.end

    @rule(part=st.floats(0, 1), max_bytes=st.sampled_from([1, 200, 5000]))
    def read(self, part: float, max_bytes: int) -> None:
        position = first = self.start + int((self.end - self.start) * part)
        found = []
        while True:
            fetched = read(self.log, position, isolation=Isolation.LOG_END, max_bytes=max_bytes)
            if fetched.next_offset == position:
                break
            position = fetched.next_offset
            for at in (fetched.batches["position"] - fetched.position).tolist():
                batch = decode_batch(fetched.data, at, file=fetched.file, file_position=at)
                found += [(record.offset, record.timestamp_ms) for record in batch.records if record.offset >= first]
        assert found == [record for record in self._records() if record[0] >= first]

    @rule(delta=st.integers(-100, 2000))
    def look_up_a_timestamp(self, delta: int) -> None:
        target_ms = self.time_ms - delta
        found = offset_for_timestamp(self.log, target_ms)
        wanted = next((record for record in self._records() if record[1] >= target_ms), None)
        assert (None if found is None else (found.offset, found.timestamp_ms)) == wanted

    @precondition(lambda self: self.batches)
    @rule()
    def indexes_point_at_batches(self) -> None:
        for segment in self.log.segments:
            data = np.fromfile(segment.log_path, dtype=np.uint8)
            batches = scan_batches(data, file="log").batches
            known = dict(zip(batches["last_offset"].tolist(), batches["position"].tolist(), strict=True))
            for offset, position in segment.offset_index.entries_array().tolist():
                assert known[offset] == position
            largest = dict(zip(batches["last_offset"].tolist(), batches["max_timestamp_ms"].tolist(), strict=True))
            for timestamp_ms, offset in segment.time_index.entries_array().tolist():
                assert largest[offset] == timestamp_ms

    def _records(self) -> list[tuple[int, int]]:
        return [
            (batch.base_offset + at, timestamp_ms)
            for batch in self.batches
            for at, timestamp_ms in enumerate(batch.timestamps_ms)
            if batch.base_offset + at >= self.start
        ]


TestUnifiedLog = UnifiedLogMachine.TestCase
TestUnifiedLog.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
