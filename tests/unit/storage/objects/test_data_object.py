"""Data objects: what a task puts into the store, its footer, and its runs as batches of the log."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders.data_objects import T0, TOPIC_IDS, WRITE_ID, Log, Objects, Plan, some_batches, stage
from fakes.faulty_store import Call, Fault, FaultyStore

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStoreError
from pyspark_kafkalog.record.header import TRANSACTIONAL_MASK, crc32c
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects import run_source
from pyspark_kafkalog.storage.objects import upload as upload_module
from pyspark_kafkalog.storage.objects.data_object import (
    TABLE_ENTRY_BYTES,
    DataKey,
    ObjectRun,
    parse_footer,
    read_footer,
)
from pyspark_kafkalog.storage.objects.run_source import RunExtent, run_extents
from pyspark_kafkalog.storage.objects.upload import UploadTask, WrittenObject, settle, upload
from pyspark_kafkalog.storage.segment.reader import SegmentReader

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("returns", 0)
TASK = UploadTask(WRITE_ID, 3, 500)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


def put(store: FaultyStore, scratch: Path, plans: list[Plan], *, inline_bytes: int = 0) -> list[WrittenObject]:
    staged = []
    for number, plan in enumerate(plans):
        for each in stage(scratch / str(number), plan):
            renamed = replace(each, name=f"{number}-{each.name}")
            renamed.path(scratch).parent.mkdir(parents=True, exist_ok=True)
            each.path(scratch / str(number)).rename(renamed.path(scratch))
            staged.append(renamed)
    return upload(store, TASK, staged, TOPIC_IDS, directory=scratch, inline_bytes=inline_bytes)


def log_of(store: FaultyStore, scratch: Path, plans: list[Plan], **options: int) -> tuple[Objects, Log]:
    """The log of A after a write of `plans`."""
    objects = Objects(store, put(store, scratch, plans, **options))
    log = Log(A, base_offset=1000)
    log.append(objects, range(len(objects.committed)), plans, leader_epoch=7)
    return objects, log


def all_bytes(extent: RunExtent) -> bytes:
    source = extent.open()
    return bytes(source.read(0, source.size_bytes()))


def test_key_tells_its_parts() -> None:
    key = DataKey("ab12", 3, 0, 77)
    assert str(key) == "data/ab12-3-0-77.batches"
    assert DataKey.parse(str(key)) == key
    assert [DataKey.parse(each) for each in ("data/x.batches", "data/a-1-2-3.batches.tmp", "x/a-1-2-3.batches")] == [
        None,
        None,
        None,
    ]


def test_object_holds_partitions_in_order_and_says_so_in_footer(store: FaultyStore, tmp_path: Path) -> None:
    rng = random.Random(1)
    plans = [Plan(C, some_batches(rng, 2)), Plan(B, some_batches(rng, 3)), Plan(A, some_batches(rng, 1))]
    (written,) = put(store, tmp_path, plans)
    assert written.key == f"data/{WRITE_ID}-3-0-500.batches"
    assert [(each.topic_id, each.partition, each.batches_count) for each in written.runs] == [
        (TOPIC_IDS["orders"], 0, 1),
        (TOPIC_IDS["orders"], 1, 3),
        (TOPIC_IDS["returns"], 0, 2),
    ]
    assert read_footer(store, written.key, written.size_bytes) == written.runs
    assert store.requests["get_range"] == 1
    assert len(store.bucket.body(written.key)) == written.size_bytes


def test_footer_that_is_longer_than_first_request_is_read_whole(store: FaultyStore, tmp_path: Path) -> None:
    plans = [Plan(TopicPartition("orders", number), [[T0]]) for number in range(1300)]
    (written,) = put(store, tmp_path, plans)
    assert read_footer(store, written.key, written.size_bytes) == written.runs
    assert store.requests["get_range"] == 2


def test_small_task_returns_its_bytes(store: FaultyStore, tmp_path: Path) -> None:
    plans = [Plan(A, [[T0, T0 + 1]]), Plan(B, [[T0 + 2]])]
    (written,) = put(store, tmp_path, plans, inline_bytes=1000)
    assert (written.key, written.planned_at, store.requests["put"]) == ("", 500, 0)
    assert written.inline_data is not None
    assert parse_footer(written.inline_data, written.size_bytes, file="inline") == written.runs


def test_task_without_records_puts_nothing(store: FaultyStore, tmp_path: Path) -> None:
    assert put(store, tmp_path, [Plan(A, [])]) == []
    assert not store.calls


@pytest.mark.parametrize("inline_bytes", [10_000, 300])
def test_bytes_of_several_tasks_become_one_object(store: FaultyStore, tmp_path: Path, inline_bytes: int) -> None:
    rng = random.Random(2)
    objects, plans = [], []
    for task in range(4):
        own = [Plan(A, some_batches(rng, 2)), Plan(B, some_batches(rng, 1))]
        objects += put(store, tmp_path / str(task), own, inline_bytes=0 if task == 2 else 1000)
        plans.append(own)
    settled = settle(store, objects, inline_bytes=inline_bytes)
    assert [each.inline_data is None for each in settled] == [True, inline_bytes == 300]
    assert store.requests["put"] == (2 if inline_bytes == 300 else 1)
    assert [each.partition for each in settled[1].runs] == [0, 0, 0, 1, 1, 1]
    committed = Objects(store, settled)
    log = Log(A)
    log.append(committed, [0], plans[2], leader_epoch=0)
    log.append(committed, [1], [*plans[0], *plans[1], *plans[3]], leader_epoch=0)
    assert all_bytes(RunExtent(log.runs, committed, name="A")) == b"".join(log.batches)


def test_runs_get_offsets_and_leader_epoch_of_log(store: FaultyStore, tmp_path: Path) -> None:
    rng = random.Random(3)
    plans = [Plan(A, some_batches(rng, 5)), Plan(B, some_batches(rng, 5)), Plan(A, some_batches(rng, 2))]
    objects, log = log_of(store, tmp_path, plans)
    extent = RunExtent(log.runs, objects, name="A")
    assert (extent.base_offset, extent.end_offset) == (1000, log.end_offset)
    assert all_bytes(extent) == b"".join(log.batches)


@pytest.mark.parametrize("object_bytes", [1, 300, 1000, 5000])
def test_write_larger_than_object_is_cut_between_batches(
    store: FaultyStore, tmp_path: Path, object_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "OBJECT_BYTES", object_bytes)
    rng = random.Random(4)
    plans = [Plan(A, some_batches(rng, 30)), Plan(B, some_batches(rng, 30)), Plan(C, some_batches(rng, 1))]
    objects, log = log_of(store, tmp_path, plans)
    assert len(objects.committed) > 1
    assert [DataKey.parse(each.key).number for each in objects.committed] == list(range(len(objects.committed)))
    for each in objects.committed:
        assert read_footer(store, each.key, each.size_bytes) == each.runs
        batches = sum(run.batches_count for run in each.runs)
        runs_bytes = each.runs[-1].end
        assert runs_bytes <= object_bytes or batches == 1
    assert all_bytes(RunExtent(log.runs, objects, name="A")) == b"".join(log.batches)


def test_offsets_beyond_int32_begin_another_run(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "INT32_MAX", 4)
    objects, _ = log_of(store, tmp_path, [Plan(A, [[T0, T0]] * 5)])
    runs = [run for each in objects.committed for run in each.runs]
    assert [run.offsets_count for run in runs] == [4, 4, 2]


@pytest.mark.parametrize("piece_bytes", [1, 200, 1000, 10_000])
def test_large_run_is_read_in_pieces(
    store: FaultyStore, tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_source, "PIECE_BYTES", piece_bytes)
    rng = random.Random(5)
    plans = [Plan(A, some_batches(rng, 2)), Plan(A, some_batches(rng, 40), value_bytes=60), Plan(B, [[T0]])]
    objects, log = log_of(store, tmp_path, [*plans, Plan(A, some_batches(rng, 3))])
    extent = RunExtent(log.runs, objects, name="A")
    expected = b"".join(log.batches)
    assert all_bytes(extent) == expected
    source = extent.open()
    for _ in range(300):
        start = rng.randrange(len(expected) + 10)
        size = rng.randrange(500)
        assert bytes(source.read(start, size)) == expected[start : start + size]
        buffer = bytearray(size)
        count = source.read_into(start, memoryview(buffer))
        assert bytes(buffer[:count]) == expected[start : start + size]
    source.close()


def test_neighbouring_runs_of_one_object_are_one_request(store: FaultyStore, tmp_path: Path) -> None:
    plans = [Plan(A, [[T0]]), Plan(A, [[T0]]), Plan(A, [[T0]])]
    tasks = [
        each for task, plan in enumerate(plans) for each in put(store, tmp_path / str(task), [plan], inline_bytes=500)
    ]
    objects, log = Objects(store, settle(store, tasks, inline_bytes=0)), Log(A)
    log.append(objects, [0], plans, leader_epoch=0)
    assert len(log.rows) == 3
    assert all_bytes(RunExtent(log.runs, objects, name="A")) == b"".join(log.batches)
    assert store.requests["get_range"] == 1


def test_reading_on_requests_pieces_ahead_but_a_header_does_not(store: FaultyStore, tmp_path: Path) -> None:
    objects, log = Objects(store), Log(A)
    for number in range(50):
        plans = [Plan(A, [[T0 + number]])]
        objects.committed += put(store, tmp_path / str(number), plans)
        log.append(objects, [number], plans, leader_epoch=0)
    with SegmentReader(RunExtent(log.runs, objects, name="A")) as reader:
        assert reader.header_at(0).base_offset == 0
        assert store.requests["get_range"] == 1
        runs = reader.runs(0, start_offset=0, end_offset=50, limit_offset=50)
        assert sum(len(run.batches) for run in runs) == 50
    assert store.requests["get_range"] == 50


def test_index_lookups_find_batch_exactly(store: FaultyStore, tmp_path: Path) -> None:
    rng = random.Random(6)
    plans = [Plan(A, some_batches(rng, 5)) for _ in range(6)]
    objects, log = log_of(store, tmp_path, plans)
    with SegmentReader(RunExtent(log.runs, objects, name="A")) as reader:
        headers = list(reader.headers(0))
        for offset in range(1000, log.end_offset):
            expected = next(at for at, header in headers if header.last_offset >= offset)
            assert reader.position_for_offset(offset) == expected
        for timestamp_ms in {header.max_timestamp_ms + step for _, header in headers for step in (-1, 0)}:
            expected = next(at for at, header in headers if header.max_timestamp_ms >= timestamp_ms)
            assert reader.position_for_timestamp(timestamp_ms) == expected
        largest = max(header.max_timestamp_ms for _, header in headers)
        found = reader.last_indexed_timestamp()
        assert found == next(each for each in headers if each[1].max_timestamp_ms == largest)


def test_many_runs_become_few_extents(store: FaultyStore) -> None:
    log = Log(A)
    for number in range(10_000):
        log.rows.append((number, number + 1, number, 0, T0, 100, 1, 1, 0))
    extents = list(run_extents(log.runs, Objects(store), name="A"))
    assert [len(each.runs) for each in extents] == [4096, 4096, 1808]
    assert [each.base_offset for each in extents] == [0, 4096, 8192]
    assert list(run_extents(log.runs[:0], Objects(store), name="A")) == []


def test_extent_ends_before_offsets_leave_int32(store: FaultyStore) -> None:
    log = Log(A)
    for number in range(5):
        log.rows.append((number << 30, (number + 1) << 30, number, 0, T0, 100, 1, 1, 0))
    assert [len(each.runs) for each in run_extents(log.runs, Objects(store), name="A")] == [1, 1, 1, 1, 1]


def test_transactional_batches_are_refused(store: FaultyStore, tmp_path: Path) -> None:
    (staged,) = stage(tmp_path, Plan(A, [[T0]]))
    staged.batches["attributes"] |= TRANSACTIONAL_MASK
    with pytest.raises(InvalidRecordError, match="transactional or control batches"):
        upload(store, TASK, [staged], TOPIC_IDS, directory=tmp_path)


def test_shortened_staged_file_is_reported(store: FaultyStore, tmp_path: Path) -> None:
    (staged,) = stage(tmp_path, Plan(A, [[T0]]))
    path = staged.path(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError, match=r"expected a staged file of \d+ bytes, found"):
        upload(store, TASK, [staged], TOPIC_IDS, directory=tmp_path)


@pytest.mark.parametrize("fault", [Fault.FAILS_BEFORE, Fault.TIMEOUT, Fault.UNAVAILABLE, Fault.DENIED])
def test_fault_of_store_is_raised_by_read(store: FaultyStore, tmp_path: Path, fault: Fault) -> None:
    objects, log = log_of(store, tmp_path, [Plan(A, [[T0]])])
    store.faults = lambda call: fault if call.kind == "get_range" else None
    source = RunExtent(log.runs, objects, name="A").open()
    with pytest.raises(ObjectStoreError):
        source.read(0, 10)


def test_read_after_fault_asks_again(store: FaultyStore, tmp_path: Path) -> None:
    objects, log = log_of(store, tmp_path, [Plan(A, [[T0]])])
    store.faults = {len(store.calls): Fault.UNAVAILABLE}
    extent = RunExtent(log.runs, objects, name="A")
    with pytest.raises(ObjectStoreError):
        all_bytes(extent)
    assert all_bytes(extent) == b"".join(log.batches)


def test_deleted_object_is_file_not_found(store: FaultyStore, tmp_path: Path) -> None:
    objects, log = log_of(store, tmp_path, [Plan(A, [[T0]])])
    store.delete([objects.committed[0].key])
    with pytest.raises(ObjectNotFoundError):
        all_bytes(RunExtent(log.runs, objects, name="A"))


# Bad input


@pytest.fixture
def body(store: FaultyStore, tmp_path: Path) -> Iterator[tuple[str, bytearray, tuple[ObjectRun, ...]]]:
    rng = random.Random(7)
    (written,) = put(store, tmp_path, [Plan(A, some_batches(rng, 3)), Plan(B, some_batches(rng, 2))])
    return written.key, bytearray(store.bucket.body(written.key)), written.runs


def with_footer(body: bytearray, runs: int, at: int, value: int, size: int) -> bytes:
    """The body with one number of its footer changed and a CRC that fits."""
    footer_at = len(body) - 24 - 56 * runs
    body[footer_at + at : footer_at + at + size] = value.to_bytes(size, "big", signed=True)
    trailer_at = len(body) - 24
    body[trailer_at + 8 : trailer_at + 12] = struct.pack(">I", crc32c(bytes(body[footer_at : trailer_at + 8])))
    return bytes(body)


@pytest.mark.parametrize(
    ("at", "value", "size"),
    [
        (16, -1, 4),
        (20, 0, 4),
        (20, 4, 4),
        (24, 1, 8),
        (24, -1, 8),
        (32, -5, 4),
        (32, 2**31 - 1, 4),
        (36, -1, 4),
        (36, 10_000, 4),
        (40, 0, 8),
        (40, 2**40, 8),
        (56 + 24, 0, 8),
        (56 + 32, 1000, 4),
    ],
)
def test_wrong_number_in_footer_is_refused_with_its_place(
    store: FaultyStore, body: tuple[str, bytearray, tuple[ObjectRun, ...]], at: int, value: int, size: int
) -> None:
    key, data, _ = body
    changed = with_footer(data, 2, at, value, size)
    store.bucket.write(key, changed)
    with pytest.raises(CorruptRecordError) as caught:
        read_footer(store, key, len(changed))
    assert caught.value.file == f"memory://bucket/{key}"
    footer_at = len(data) - 24 - 112
    assert caught.value.position in (footer_at, footer_at + 56)


def test_any_flipped_bit_of_footer_is_found(body: tuple[str, bytearray, tuple[ObjectRun, ...]]) -> None:
    _, data, _ = body
    for at in range(len(data) - 24 - 112, len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            is_padding = len(data) - 12 <= at < len(data) - 8
            if is_padding:
                continue
            with pytest.raises(DiskFormatError):
                parse_footer(bytes(changed), len(changed), file="x")


def test_later_version_is_unsupported(body: tuple[str, bytearray, tuple[ObjectRun, ...]]) -> None:
    _, data, _ = body
    data[-17] = 2
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        parse_footer(data, len(data), file="x")


@pytest.mark.parametrize("size", [0, 1, 23, 24, 100])
def test_object_that_ends_early_is_refused(
    store: FaultyStore, body: tuple[str, bytearray, tuple[ObjectRun, ...]], size: int
) -> None:
    key, data, _ = body
    store.bucket.write(key, bytes(data[:size]))
    for claimed in {size, len(data)}:
        with pytest.raises(CorruptRecordError, match=key):
            read_footer(store, key, claimed)


def test_number_of_runs_that_cannot_be_is_refused_without_reading_it(store: FaultyStore) -> None:
    data = bytes(100) + struct.pack(">iiI4x8s", 2**31 - 1, 1, 0, b"KLOGDATA")
    store.bucket.write("data/x", data)
    with pytest.raises(CorruptRecordError, match="a number of runs that fits the object"):
        read_footer(store, "data/x", len(data))
    assert store.requests["get_range"] == 1


@pytest.mark.parametrize("is_large", [False, True])
def test_changed_byte_of_runs_is_found_with_object_and_position(
    store: FaultyStore,
    body: tuple[str, bytearray, tuple[ObjectRun, ...]],
    is_large: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever byte of a run or its table is changed: the reader finds it, except in fields that the log assigns."""
    if is_large:
        monkeypatch.setattr(run_source, "PIECE_BYTES", 100)
    key, data, runs = body
    run = runs[0]
    row = (0, run.offsets_count, 0, 0, run.max_timestamp_ms, run.size_bytes, run.records_count, run.batches_count, 0)
    log = Log(A, rows=[row])
    objects = Objects(store, [WrittenObject(WRITE_ID, key, len(data), 0, frozenset(), runs)])
    with SegmentReader(RunExtent(log.runs, objects, name="A")) as reader:
        starts = [at for at, _ in reader.headers(0)]
    assigned = {start + at for start in starts for at in range(12, 16)}
    missed, named = set(), set()
    for at in range(run.end):
        changed = bytearray(data)
        changed[at] ^= 0x41
        store.bucket.write(key, bytes(changed))
        try:
            with SegmentReader(RunExtent(log.runs, objects, name="A")) as reader:
                list(reader.runs(0, start_offset=0, end_offset=run.offsets_count, limit_offset=run.offsets_count))
            missed.add(at)
        except DiskFormatError as error:
            named.add(error.file)
    timestamps = {
        run.size_bytes + TABLE_ENTRY_BYTES * number + at for number in range(len(starts)) for at in range(8, 16)
    }
    assert named == {f"memory://bucket/{key}", reader.file}
    assert missed == assigned | timestamps, "a timestamp of the table is a hint, as an index is"


@pytest.mark.parametrize("by", [-1, 1])
def test_store_that_lies_about_range_is_not_believed(store: FaultyStore, tmp_path: Path, by: int) -> None:
    objects, log = log_of(store, tmp_path, [Plan(A, [[T0], [T0]])])
    honest = objects.read
    objects.read = lambda object_id, start, size: bytes(honest(object_id, start, size + 1))[: size + by]
    with pytest.raises(CorruptRecordError, match=r"expected \d+ bytes, as the commit says, found \d+ bytes"):
        all_bytes(RunExtent(log.runs, objects, name="A"))


def test_table_of_other_run_is_refused(store: FaultyStore, tmp_path: Path) -> None:
    rng = random.Random(8)
    objects, log = log_of(store, tmp_path, [Plan(A, some_batches(rng, 3))])
    row = list(log.rows[0])
    for at, value in ((1, row[1] - 1), (5, row[5] - 1), (7, 2)):
        wrong = [*row[:at], value, *row[at + 1 :]]
        extent = RunExtent(Log(A, rows=[tuple(wrong)]).runs, objects, name="A")
        with pytest.raises(CorruptRecordError) as caught:
            all_bytes(extent)
        assert caught.value.file == f"memory://bucket/{objects.committed[0].key}"


def test_batch_above_limit_is_refused_before_it_is_read(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_source, "PIECE_BYTES", 100)
    monkeypatch.setattr(run_source, "BATCH_BYTES_MAX", 1000)
    objects, log = log_of(store, tmp_path, [Plan(A, [[T0]]), Plan(A, [[T0]], value_bytes=2000)])
    with pytest.raises(CorruptRecordError, match="a batch of at most 1000 bytes"):
        all_bytes(RunExtent(log.runs, objects, name="A"))


def test_reading_holds_few_pieces_in_memory(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_source, "PIECE_BYTES", 1000)
    monkeypatch.setattr(run_source, "AHEAD_BYTES", 3000)
    rng = random.Random(9)
    objects, log = log_of(store, tmp_path, [Plan(A, some_batches(rng, 300), value_bytes=50)])
    source = RunExtent(log.runs, objects, name="A").open()
    held = []
    for start in range(0, source.size_bytes(), 500):
        source.read_into(start, memoryview(bytearray(500)))
        held.append(sum(end - begin for begin, (end, _) in source._requested.items()))
    assert max(held) <= 3000 + 500 + 2 * 1000
    assert source.size_bytes() > 40_000


def test_calls_are_only_range_requests(store: FaultyStore, tmp_path: Path) -> None:
    objects, log = log_of(store, tmp_path, [Plan(A, [[T0]])])
    seen: list[Call] = []
    store.before = seen.append
    all_bytes(RunExtent(log.runs, objects, name="A"))
    assert [call.kind for call in seen] == ["get_range"]
