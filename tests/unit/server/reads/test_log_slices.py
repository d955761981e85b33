"""Slices of logs on all kinds of roots: whole batches, each once, however small the limits and whatever changes."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders.root_places import RootPlace, forget, is_object_place, memory_root, store_of
from builders.tiered_roots import SMALL_SEGMENTS, TOPIC, append_rounds, log_bytes, tiered_root

from pyspark_kafkalog.errors import CorruptRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server import sending
from pyspark_kafkalog.server.reads import log_slices
from pyspark_kafkalog.server.reads.log_slices import LogSlices, OpenSegments, RecentlyUsed, Slice, SliceLimits
from pyspark_kafkalog.server.sending import FileSlice
from pyspark_kafkalog.storage.artefacts import partition_listing
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment import stored

ORDERS = TopicPartition(TOPIC, 0)
ROUNDS = 12
RECORDS = 20


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """Twelve commits of twenty records: on files some ten segments."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic(TOPIC, partitions=1, configs={} if is_object_place(root_place) else SMALL_SEGMENTS)
    append_rounds(log_dir, ROUNDS, records=RECORDS)
    return log_dir


def snapshot(log_dir: LogDir) -> PartitionSnapshot:
    log_dir.refresh()
    return log_dir.partition(TOPIC, 0)


def content(found: Slice) -> bytes:
    return found.records.read() if isinstance(found.records, FileSlice) else bytes(found.records)


def either(slices: LogSlices, of: PartitionSnapshot, offset: int, limits: SliceLimits) -> Slice:
    """As a fetch gets it."""
    try:
        return slices.cached(of, offset, limits)
    except BlockingIOError:
        return slices.waiting(of, offset, limits)


def consume(
    slices: LogSlices, of: Callable[[], PartitionSnapshot], offset: int, max_bytes: int, end_offset: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Offset and content of one slice after the other."""
    while True:
        found_in = of()
        end = found_in.high_watermark if end_offset is None else end_offset
        if offset >= end:
            return
        found = either(slices, found_in, offset, SliceLimits(end_offset=end, max_bytes=max_bytes, may_exceed=True))
        assert found.size_bytes > 0
        assert found.next_offset > offset
        yield offset, content(found)
        offset = found.next_offset


def batches_of(data: bytes) -> list[tuple[int, int]]:
    """The offsets of the batches, which are whole, with right CRCs."""
    scan = scan_batches(data, file="slice")
    assert scan.fault is None
    assert scan.consumed_bytes == len(data)
    verify_crcs(data, scan.batches, data_position=0, file="slice")
    return list(zip(scan.batches["base_offset"].tolist(), scan.batches["last_offset"].tolist(), strict=True))


@pytest.mark.parametrize("max_bytes", [1, 700, 1500, 1 << 20])
def test_slices_give_every_batch_once_in_order(log_dir: LogDir, max_bytes: int) -> None:
    taken = list(consume(LogSlices(), lambda: snapshot(log_dir), 0, max_bytes))
    data = b"".join(each for _, each in taken)
    assert batches_of(data) == [(at, at + RECORDS - 1) for at in range(0, ROUNDS * RECORDS, RECORDS)]
    if max_bytes > 1:
        assert all(len(each) <= max_bytes for _, each in taken if len(batches_of(each)) > 1)
    if snapshot(log_dir).local_directory is not None:
        assert data == log_bytes(log_dir, ORDERS, 1 << 60)


def test_slice_begins_with_the_batch_that_holds_the_offset(log_dir: LogDir) -> None:
    slices, of = LogSlices(), snapshot(log_dir)
    for offset in range(0, ROUNDS * RECORDS, 7):
        found = slices.waiting(of, offset, SliceLimits(end_offset=of.high_watermark, max_bytes=900))
        base, last = batches_of(content(found))[0]
        assert base <= offset <= last
        assert found.next_offset == batches_of(content(found))[-1][1] + 1


def test_slice_ends_below_the_end_offset_at_a_batch_boundary(log_dir: LogDir) -> None:
    slices, of = LogSlices(), snapshot(log_dir)
    for end_offset in (RECORDS - 1, RECORDS, RECORDS + 1, 5 * RECORDS, 5 * RECORDS + 3):
        taken = [each for _, each in consume_until(slices, of, end_offset)]
        assert batches_of(b"".join(taken)) == [(at * RECORDS, at * RECORDS + 19) for at in range(end_offset // RECORDS)]


def consume_until(slices: LogSlices, of: PartitionSnapshot, end_offset: int) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while True:
        found = either(slices, of, offset, SliceLimits(end_offset=end_offset, max_bytes=1 << 20))
        if not found.size_bytes:
            assert found.next_offset == offset
            assert not found.is_cut
            return
        yield offset, content(found)
        offset = found.next_offset


def test_first_batch_larger_than_the_limit_comes_only_if_it_may(log_dir: LogDir) -> None:
    slices, of = LogSlices(), snapshot(log_dir)
    for _ in range(2):  # when the position is known, too
        refused = either(slices, of, 0, SliceLimits(end_offset=of.high_watermark, max_bytes=100))
        assert (refused.size_bytes, refused.is_cut, refused.next_offset) == (0, True, 0)
        taken = either(slices, of, 0, SliceLimits(end_offset=of.high_watermark, max_bytes=100, may_exceed=True))
        assert batches_of(content(taken)) == [(0, RECORDS - 1)]


@pytest.mark.file_roots
def test_sequential_consumer_needs_a_thread_only_for_each_next_segment(log_dir: LogDir) -> None:
    slices, of = LogSlices(), snapshot(log_dir)
    offset = waited = fetches = 0
    while offset < of.high_watermark:
        limits = SliceLimits(end_offset=of.high_watermark, max_bytes=1, may_exceed=True)
        try:
            found = slices.cached(of, offset, limits)
        except BlockingIOError:
            waited += 1
            found = slices.waiting(of, offset, limits)
        offset = found.next_offset
        fetches += 1
    segments = len(list(of.directory.glob("*.log")))
    assert (fetches, waited) == (ROUNDS, segments)


@pytest.mark.file_roots
def test_large_slices_are_of_the_file_and_end_where_batches_end(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_segments(log_dir.root)
    monkeypatch.setattr(log_slices, "SMALL_BYTES", 300)
    monkeypatch.setattr(log_slices, "_WALK_BYTES", 61)
    expected = log_bytes(log_dir, ORDERS, 1 << 60)
    for with_index, max_bytes in itertools.product((True, False), (1400, 5000)):
        if not with_index:
            for each in snapshot(log_dir).directory.glob("*.index"):
                each.unlink()
        slices, taken, offset, of = LogSlices(), [], 0, snapshot(log_dir)
        while offset < of.high_watermark:
            found = either(slices, of, offset, SliceLimits(end_offset=of.high_watermark, max_bytes=max_bytes))
            assert isinstance(found.records, FileSlice)
            assert 0 < found.size_bytes <= max_bytes
            taken.append(content(found))
            offset = found.next_offset
        assert b"".join(taken) == expected


@pytest.mark.file_roots
@pytest.mark.parametrize("damage", [b"\xff" * 64, b"\x00\x00\x00\x05\x00\x00\x00\x07" * 8], ids=["ones", "same"])
def test_wrong_offset_index_changes_no_slice(log_dir: LogDir, damage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_slices, "SMALL_BYTES", 300)
    for each in snapshot(log_dir).directory.glob("*" + INDEX_SUFFIX):
        each.write_bytes(damage)
    taken = b"".join(each for _, each in consume(LogSlices(), lambda: snapshot(log_dir), 0, 1500))
    assert taken == log_bytes(log_dir, ORDERS, 1 << 60)


@pytest.mark.file_roots
def test_bytes_behind_the_committed_end_are_never_part_of_a_slice(log_dir: LogDir) -> None:
    of = snapshot(log_dir)
    active = segment_file(of.directory, of.active_base_offset, LOG_SUFFIX)
    with active.open("ab") as file:
        file.write(b"\x00" * 40)  # what a killed writer leaves
    slices = LogSlices()
    list(consume(slices, lambda: snapshot(log_dir), 0, 1 << 20))
    append_rounds(log_dir, 1, records=RECORDS)
    taken = b"".join(each for _, each in consume(slices, lambda: snapshot(log_dir), of.high_watermark, 1 << 20))
    assert batches_of(taken) == [(of.high_watermark, of.high_watermark + RECORDS - 1)]


@pytest.mark.file_roots
def test_consumer_goes_on_beside_merges_retention_and_appends(log_dir: LogDir) -> None:
    slices, taken = LogSlices(), []
    steps: Iterator[Callable[[], object]] = iter(
        [
            lambda: merge_segments(log_dir.root),
            lambda: append_rounds(log_dir, 3, records=RECORDS),
            lambda: delete_records(log_dir.root, {ORDERS: 3 * RECORDS}),
            lambda: merge_segments(log_dir.root),
        ]
    )
    for number, (_, data) in enumerate(consume(slices, lambda: snapshot(log_dir), 0, 1)):
        taken.append(data)
        if number % 3 == 2:
            next(steps, lambda: None)()
    end = snapshot(log_dir).high_watermark
    assert batches_of(b"".join(taken)) == [(at, at + RECORDS - 1) for at in range(0, end, RECORDS)]


@pytest.mark.file_roots
def test_fetches_at_any_offset_list_a_long_directory_once(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = itertools.count(0.0, 10.0)
    monkeypatch.setattr(stored, "monotonic", lambda: next(now_s))
    monkeypatch.setattr(stored, "_KEPT_SEGMENTS_MIN", 2)
    list_names, listed = partition_listing.list_names, list[str]()

    def listing(directory: str | Path) -> list[tuple[str, int]]:
        listed.append(str(directory))
        return list_names(directory)

    monkeypatch.setattr(partition_listing, "list_names", listing)
    of = snapshot(log_dir)
    listed.clear()
    for offset in range(0, ROUNDS * RECORDS, 7):
        found = LogSlices().waiting(of, offset, SliceLimits(end_offset=of.high_watermark, max_bytes=900))
        assert batches_of(content(found))[0][0] == offset - offset % RECORDS
    assert len(listed) == 2
    append_rounds(log_dir, 3, records=RECORDS)
    of = snapshot(log_dir)
    listed.clear()
    for offset in range(of.high_watermark - RECORDS, of.high_watermark):
        found = LogSlices().waiting(of, offset, SliceLimits(end_offset=of.high_watermark, max_bytes=900))
        assert batches_of(content(found)) == [(of.high_watermark - RECORDS, of.high_watermark - 1)]
    assert len(listed) == 2


@pytest.mark.file_roots
def test_segment_replaced_by_another_topic_of_that_name_is_opened_again(log_dir: LogDir) -> None:
    slices = LogSlices()
    list(consume(slices, lambda: snapshot(log_dir), 0, 1))
    log_dir.delete_topic(TOPIC)
    log_dir.create_topic(TOPIC, partitions=1)
    log_dir.append(TOPIC, pa.table({"value": ["of the new topic"] * 3}), partition=0)
    taken = [each for _, each in consume(slices, lambda: snapshot(log_dir), 0, 1 << 20)]
    assert batches_of(b"".join(taken)) == [(0, 2)]


@pytest.mark.file_roots
def test_damaged_header_is_an_error_and_its_bytes_are_not_sent(log_dir: LogDir) -> None:
    of = snapshot(log_dir)
    path = segment_file(of.directory, 0, LOG_SUFFIX)
    data = bytearray(path.read_bytes())
    second = int.from_bytes(data[8:12], "big") + 12
    data[second + 16] = 9  # magic
    path.write_bytes(data)
    slices = LogSlices()
    first = slices.waiting(of, 0, SliceLimits(end_offset=of.high_watermark, max_bytes=1 << 20))
    assert batches_of(content(first)) == [(0, RECORDS - 1)]
    for read in (slices.cached, slices.waiting):
        with pytest.raises(CorruptRecordError, match="magic 9"):
            read(of, RECORDS, SliceLimits(end_offset=of.high_watermark, max_bytes=1 << 20))


@pytest.mark.file_roots
def test_position_that_no_longer_fits_its_offset_is_an_error(log_dir: LogDir) -> None:
    of, slices = snapshot(log_dir), LogSlices()
    found = slices.waiting(of, 0, SliceLimits(end_offset=of.high_watermark, max_bytes=1, may_exceed=True))
    segment, _ = slices._files.open(of.directory, 0)
    slices._positions.note(str(of.directory), 5 * RECORDS, segment, found.size_bytes)
    for max_bytes in (1 << 20, log_slices.SMALL_BYTES - 1):
        with pytest.raises(CorruptRecordError, match=f"a batch with offset {5 * RECORDS}"):
            slices.cached(of, 5 * RECORDS, SliceLimits(end_offset=of.high_watermark, max_bytes=max_bytes))


def test_offset_below_the_first_segment_is_out_of_range(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic(TOPIC, partitions=1, configs=SMALL_SEGMENTS)
    append_rounds(log_dir, ROUNDS)
    before = snapshot(log_dir)
    shutil.copytree(before.directory, tmp_path / "copy")
    segment_file(before.directory, 0, LOG_SUFFIX).unlink()
    with pytest.raises(OffsetOutOfRangeError, match="offset 0"):
        LogSlices().waiting(before, 0, SliceLimits(end_offset=before.high_watermark, max_bytes=100))


def test_tiered_partition_is_read_over_the_seam(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "remote", local_retention_bytes="2000")
    append_rounds(log_dir, ROUNDS)
    whole = log_bytes(log_dir, ORDERS, 1 << 60)
    tier_segments(log_dir.root)
    apply_retention(log_dir.root)
    of = snapshot(log_dir)
    taken = list(consume(LogSlices(), lambda: snapshot(log_dir), 0, 1500))
    assert b"".join(each for _, each in taken) == whole
    assert 0 < of.local_log_start_offset <= of.latest_tiered_offset + 1


def test_reader_of_a_remote_extent_is_kept_for_the_next_fetch_and_no_more_than_some() -> None:
    place = memory_root()
    log_dir = LogDir.create(place)
    log_dir.create_topic(TOPIC, partitions=1)
    append_rounds(log_dir, ROUNDS, records=4000)
    slices, of = LogSlices(), snapshot(log_dir)
    requests: list[object] = []
    store_of(place).before = requests.append
    data = b"".join(each for _, each in consume(slices, lambda: of, 0, 50_000))
    assert [base for base, _ in batches_of(data)] == list(range(0, ROUNDS * 4000, 4000))
    assert len(requests) <= ROUNDS
    assert len(slices._remote) <= 1
    forget(place)


def test_recently_used_entries_stay_and_dropped_ones_are_returned() -> None:
    recent: RecentlyUsed[str, int] = RecentlyUsed(2)
    assert recent.put("a", 1) == []
    assert recent.put("b", 2) == []
    assert recent.get("a") == 1
    assert recent.put("c", 3) == [2]
    assert recent.put("a", 4) == [1]
    assert (recent.get("b"), recent.pop("a"), recent.get("a"), len(recent)) == (None, 4, None, 1)


@pytest.mark.file_roots
def test_open_files_are_bounded(log_dir: LogDir) -> None:
    of = snapshot(log_dir)
    if of.local_directory is None:
        return
    files = OpenSegments(2)
    bases = sorted(int(each.stem) for each in of.directory.glob("*.log"))
    descriptors = {files.open(of.directory, base)[0].file.fd for base in bases}
    assert len(bases) > 4
    assert len(descriptors) <= 3  # numbers of closed files are used again


def test_read_of_the_page_cache_gives_the_bytes_or_says_that_it_would_wait(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(np.arange(9000, dtype=np.uint8).tobytes())
    with path.open("rb") as file:
        for size, position in ((100, 50), (9000, 0), (500, 8900), (10, 9500)):
            expected = path.read_bytes()[position : position + size]
            assert log_slices.read_waiting(file.fileno(), size, position) == expected
            with contextlib.suppress(BlockingIOError):  # a file system that cannot tell
                assert log_slices.read_cached(file.fileno(), size, position) == expected


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no tmpfs")
def test_file_in_memory_is_read_without_waiting() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"x" * 9000)
        file.flush()
        assert log_slices.read_cached(file.fileno(), 5000, 5000) == b"x" * 4000
        assert sending.is_cached(file.fileno(), 0)
