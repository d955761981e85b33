"""Reads of remote segments over a store in memory: requests, deleted objects, and a store that lies."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from builders.aiven_objects import AivenWriter
from builders.tiered_fixtures import ALL, COLUMNS, TieredFixture, rows_of
from fakes.faulty_store import Call, FaultyStore
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, OffsetOutOfRangeError
from pyspark_kafkalog.object_store.store import ObjectNotFoundError
from pyspark_kafkalog.spark.data_source import read_schema
from pyspark_kafkalog.spark.options.parse import parse_read_options
from pyspark_kafkalog.spark.read.reader import KafkalogBatchReader, OffsetRangePartition, read_offset_range
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.segment.reader import LocalExtent
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered import remote_storage
from pyspark_kafkalog.tiered.objects import WINDOW_BYTES, BytesCache, RemoteBytes, Window
from pyspark_kafkalog.tiered.remote_log import RemoteLog, tiered_extents

FIXTURE: Final = ALL[0]
SEGMENT: Final = "tiered-0-ub7nht-nQm-AWIiVV-G6Zg/00000000000000000113-nC7UUOzYRgeCVagqhCOXow"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The fixture's remote storage, copied into memory, in place of the directory."""
    copied = FaultyStore()
    for path in FIXTURE.remote.rglob("*"):
        if path.is_file():
            copied.bucket.write(str(path.relative_to(FIXTURE.remote)), path.read_bytes())
    monkeypatch.setattr(remote_storage, "open_objects", lambda location, settings: copied)
    remote_objects._cache.cache_clear()
    return copied


def key(suffix: str) -> str:
    return f"kafka-tiered-storage/{SEGMENT}{suffix}"


def opened() -> LogDir:
    return LogDir.open(FIXTURE.log_dir, remote_storage=FIXTURE.remote)


def rows(start: int = 0, end: int = 690) -> list[tuple[Any, ...]]:
    return [row for row in FIXTURE.rows("tiered", "read_uncommitted") if row[0] == 0 and start <= row[1] < end]


def read(log_dir: LogDir, start: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
    return rows_of(log_dir.read("tiered", partition=0, start_offset=start, columns=COLUMNS, **options))


def planned(**options: str) -> list[OffsetRangePartition]:
    given_options = {
        "path": str(FIXTURE.log_dir),
        "remoteStorage": str(FIXTURE.remote),
        "assign": '{"tiered":[0]}',
        "includeHeaders": "true",
        **options,
    }
    reader = KafkalogBatchReader(parse_read_options(given_options), read_schema(include_headers=True))
    return list(reader.partitions())  # type: ignore[arg-type]


def task_rows(each: OffsetRangePartition) -> Iterator[tuple[Any, ...]]:
    schema = to_arrow_schema(read_schema(include_headers=True), timezone="UTC")
    for batch in read_offset_range(each, schema):
        yield from rows_of(batch)


def test_plan_makes_no_request_for_a_segment(store: FaultyStore) -> None:
    pieces = planned(maxBytesPerPartition="3000", isolationLevel="read_committed")
    assert len(pieces) > 6
    assert set(store.requests) == {"list"}  # which finds the layout
    assert sorted(row for each in pieces for row in task_rows(each)) == rows()


def test_task_requests_the_log_once_and_one_index(store: FaultyStore) -> None:
    (first, *_) = planned(endingOffsets='{"tiered":{"0":113}}')
    store.requests.clear()
    assert list(task_rows(first)) == rows(0, 113)
    assert store.requests == {"get": 1, "get_range": 1}


def test_segment_whose_object_is_missing_is_data_loss_that_names_it(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.delete([key(".log")])
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 113 to 267 of tiered-0 are in the remote segment nC7UUO"):
        read(opened())
    (task,) = planned()
    with pytest.raises(DataLossError, match="records of offsets 113 to 268 are gone"):
        list(task_rows(task))
    (task,) = planned(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert list(task_rows(task)) == [*rows(0, 113), *rows(268)]
    assert "an object of it is missing" in caplog.text


def test_object_that_is_deleted_while_it_is_read_is_looked_up_again(store: FaultyStore, tmp_path: Path) -> None:
    """Retention deletes the first two segments after the plan, and notes it."""
    shutil.copytree(FIXTURE.log_dir, tmp_path / "log-dir")
    (task,) = planned(path=str(tmp_path / "log-dir"), failOnDataLoss="false")
    for name in store.bucket.keys(f"kafka-tiered-storage/{SEGMENT.partition('/')[0]}"):
        if "/00000000000000000000-" in name or "/00000000000000000113-" in name:
            store.delete([name])
    for directory in (tmp_path / "log-dir").glob("__remote_log_metadata-*"):
        shutil.rmtree(directory)  # so that the objects decide which segments there are
    assert list(task_rows(task)) == rows(268)


def test_look_up_that_meets_a_deletion_is_repeated_before_local_segments_are_all_there_is(store: FaultyStore) -> None:
    snapshot = opened().root.partition("tiered", 0)
    assert snapshot.remote is not None
    known = snapshot.remote.log
    as_planned = replace(known, segments=(), known_end_offset=0)
    look_ups: list[RemoteLog | None] = [None, None, known]

    def look_up() -> RemoteLog:
        found = look_ups.pop(0)
        if found is None:
            raise FileNotFoundError("a segment that the broker deletes just now")
        return found

    extents = tiered_extents(as_planned, LocalExtents(snapshot.directory), look_up)
    reader = LogReader(extents, snapshot.topic_partition)
    schema = opened().read("tiered", partition=0, columns=COLUMNS).schema
    batches = list(reader.read(100, 690, schema=schema, committed=False))
    assert rows_of(pa.Table.from_batches(batches)) == rows(100, 690)
    assert not look_ups


class MovingLocalLog(LocalExtents):
    """Local segments of which the first is deleted while aborted transactions are looked for."""

    looks: list[int]

    def __init__(self, directory: Path) -> None:
        LocalExtents.__init__(self, directory)
        object.__setattr__(self, "looks", [])

    def current(self) -> Sequence[LocalExtent]:
        listed = LocalExtents.current(self)
        return listed if self.looks else [LocalExtent(self.directory, 500, listed[0].base_offset), *listed]

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        self.looks.append(start_offset)
        if len(self.looks) == 1:
            raise OffsetOutOfRangeError("offset 500 of tiered-0 is below 552, its first segment")
        return LocalExtents.aborted_transactions(self, start_offset, end_offset)


def test_local_segment_deleted_while_its_markers_are_read_is_read_remotely(store: FaultyStore) -> None:
    snapshot = opened().root.partition("tiered", 0)
    assert snapshot.remote is not None
    log = snapshot.remote.log
    local = MovingLocalLog(snapshot.directory)
    found = tiered_extents(log, local, lambda: log).aborted_transactions(0, 690)
    assert len(local.looks) == 2
    expected = tiered_extents(log, LocalExtents(snapshot.directory), lambda: log).aborted_transactions(0, 690)
    assert list(found.transactions) == list(expected.transactions)


def test_object_shorter_than_the_metadata_say_is_an_error_with_object_and_position(store: FaultyStore) -> None:
    store.bucket.write(key(".log"), store.bucket.body(key(".log"))[:-10])
    with pytest.raises(CorruptRecordError, match=rf"{SEGMENT}.log at byte 0: expected \d+ bytes, found \d+ bytes"):
        read(opened())


def test_damaged_bytes_are_an_error_with_object_and_position(store: FaultyStore) -> None:
    body = bytearray(store.bucket.body(key(".log")))
    body[100] ^= 1
    store.bucket.write(key(".log"), bytes(body))
    with pytest.raises(CorruptRecordError, match=rf"{SEGMENT}.log at byte 17: expected CRC"):
        read(opened())


def test_damaged_or_missing_indexes_change_no_row(store: FaultyStore) -> None:
    committed = opened().read("tiered", isolation="read_committed")
    for suffix in (".index", ".timeindex"):
        store.bucket.write(key(suffix), b"\xff" * 37)
    assert read(opened(), 200) == rows(200)
    assert read(opened()) == rows()
    name = next(each for each in store.bucket.objects if each.endswith(".txnindex"))
    store.bucket.write(name, store.bucket.body(name)[:-1])
    assert opened().read("tiered", isolation="read_committed").equals(committed)
    del store.bucket.objects[name]
    assert opened().read("tiered", isolation="read_committed").equals(committed)


def test_failing_request_is_an_error_that_names_the_object(store: FaultyStore) -> None:
    def fail(call: Call) -> None:
        if call.kind == "get_range":
            raise ObjectNotFoundError(f"memory: no object {call.keys}")

    store.before = fail
    with pytest.raises(OffsetOutOfRangeError, match="an object of it is missing"):
        read(opened())


class Content:
    """A LogContent in memory, that counts the bytes requested of it."""

    def __init__(self, data: bytes, chunk_bytes: int = 1) -> None:
        self.name = "memory"
        self.data = data
        self.size_bytes = len(data)
        self.requested: list[tuple[int, int]] = []
        self._chunk_bytes = chunk_bytes

    def window_end(self, start: int) -> int:
        return min(-(-(start + WINDOW_BYTES) // self._chunk_bytes) * self._chunk_bytes, self.size_bytes)

    def window(self, start: int, end: int) -> Window:
        assert 0 <= start < end <= self.size_bytes
        start -= start % self._chunk_bytes
        end = min(-(-end // self._chunk_bytes) * self._chunk_bytes, self.size_bytes)
        self.requested.append((start, end))
        return Window(start, memoryview(self.data)[start:end])


DATA: Final = bytes(range(251)) * (5 * WINDOW_BYTES // 251)


@settings(deadline=None, max_examples=40)  # each example moves up to 50 MB
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, len(DATA) + 10), st.integers(1, 3 * WINDOW_BYTES)), max_size=4),
    st.sampled_from([1, 4096, 3_000_001]),
)
def test_any_reads_in_any_order_give_the_bytes(reads: list[tuple[bool, int, int]], chunk_bytes: int) -> None:
    source = RemoteBytes(Content(DATA, chunk_bytes))
    for into, start, size_bytes in reads:
        if into:
            buffer = bytearray(size_bytes)
            count = source.read_into(start, memoryview(buffer))
            assert bytes(buffer[:count]) == DATA[start : start + size_bytes]
        else:
            assert bytes(source.read(start, size_bytes)) == DATA[start : start + size_bytes]
    source.close()


def test_sequential_read_requests_each_byte_once_and_ahead_of_the_reader() -> None:
    content = Content(DATA)
    source = RemoteBytes(content)
    buffer = bytearray(1 << 20)
    at = 0
    while count := source.read_into(at, memoryview(buffer)):
        at += count
    source.close()
    assert at == len(DATA)
    assert sum(end - start for start, end in content.requested) == len(DATA)
    assert len(content.requested) <= len(DATA) // WINDOW_BYTES + 3


def test_reader_that_stops_early_has_requested_little() -> None:
    content = Content(DATA)
    source = RemoteBytes(content)
    source.read(0, 61)
    source.read(70, 61)
    source.read_into(0, memoryview(bytearray(1 << 20)))
    source.close()
    assert sum(end - start for start, end in content.requested) <= 2 << 20


def test_cache_keeps_the_last_used_up_to_its_bytes() -> None:
    cache: BytesCache[str] = BytesCache(max_bytes=100)
    loads: list[str] = []

    def load(name: str, size_bytes: int) -> str:
        def loaded() -> tuple[str, int]:
            loads.append(name)
            return name, size_bytes

        return cache.get(name, loaded)

    assert [load(*each) for each in (("a", 40), ("b", 40), ("a", 40), ("c", 40), ("a", 40))] == list("abaca")
    assert loads == ["a", "b", "c"]
    assert load("b", 40) == "b"
    assert loads == ["a", "b", "c", "b"]
    assert cache.size_bytes == 80
    assert load("large", 101) == "large"
    assert cache.size_bytes == 80


@pytest.mark.parametrize("is_compressed", [False, True])
def test_chunks_that_lie_are_errors_with_object_and_position(is_compressed: bool, tmp_path: Path) -> None:
    fixture = TieredFixture("tiered")
    AivenWriter(is_compressed=is_compressed).write(fixture, tmp_path)
    log = next(tmp_path.glob("tiered-ub7*/0/00000000000000000113-*.log"))
    body = log.read_bytes()
    for damaged in (body[:-3], body[:50] + bytes([body[50] ^ 0xFF]) + body[51:]):
        log.write_bytes(damaged)
        with pytest.raises(CorruptRecordError, match=rf"{log.name} at byte \d+: expected"):
            LogDir.open(fixture.log_dir, remote_storage=tmp_path).read("tiered")
