"""Listings of long directories, and the largest timestamps of their segments, are kept while the files are the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.artefacts import partition_listing
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TXN_INDEX_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment import stored
from pyspark_kafkalog.storage.segment.reader import SegmentReader

ORDERS = TopicPartition("orders", 0)
#: More than the clock of any file system is apart.
LONG_S = 10.0


class Clock:
    """A clock that the test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Counts:
    """The listings of directories and the segments that were opened since they were asked for last."""

    listings = 0
    opened = 0

    def taken(self) -> tuple[int, int]:
        found = self.listings, self.opened
        self.listings = self.opened = 0
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(stored, "monotonic", clock)
    stored._kept.clear()
    yield clock
    stored._kept.clear()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    list_names, init = partition_listing.list_names, SegmentReader.__init__

    def listing(directory: str | Path) -> list[tuple[str, int]]:
        counts.listings += 1
        return list_names(directory)

    def opening(self: SegmentReader, *arguments: object) -> None:
        counts.opened += 1
        init(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(partition_listing, "list_names", listing)
    monkeypatch.setattr(SegmentReader, "__init__", opening)
    return counts


def write_segment(directory: Path, base_offset: int, timestamps_ms: Sequence[int]) -> None:
    """A segment of one record a batch, without indexes."""
    data = b"".join(
        bytes(encode_batch([Record(offset=base_offset + at, timestamp_ms=timestamp_ms, key=None, value=b"v")]))
        for at, timestamp_ms in enumerate(timestamps_ms)
    )
    segment_file(directory, base_offset, LOG_SUFFIX).write_bytes(data)


def make_log(directory: Path, segments: int) -> Path:
    """Segments of two records whose timestamps are their offsets, but that of the third segment from the end is old."""
    directory.mkdir()
    for base_offset in range(0, 2 * segments, 2):
        is_old = base_offset == 2 * segments - 6
        write_segment(directory, base_offset, [0, 0] if is_old else [base_offset, base_offset + 1])
    return directory


def settled(directory: Path, clock: Clock) -> None:
    """Have the directory's listing kept."""
    for _ in range(2):
        stored.listed_segments(directory)
        clock.now_s += LONG_S


def bases(directory: Path) -> list[int]:
    return [each.base_offset for each in stored.listed_segments(directory)]


@pytest.mark.parametrize(("fraction_ns", "listings"), [(0, 4), (1, 2)], ids=["whole seconds", "fractions"])
def test_long_listing_is_kept_once_no_later_change_can_have_its_time(
    tmp_path: Path, clock: Clock, counts: Counts, fraction_ns: int, listings: int
) -> None:
    directory = make_log(tmp_path / "orders-0", 200)
    os.utime(directory, ns=(0, 1_700_000_000_000_000_000 + fraction_ns))
    for _ in range(6):
        stored.listed_segments(directory)
        clock.now_s += 1
    assert counts.taken() == (listings, 0)
    segments = stored.listed_segments(directory)
    assert counts.taken() == (0, 0)
    assert [(each.base_offset, each.end_offset) for each in segments[:2]] == [(0, 2), (2, 4)]
    assert (segments[-1].base_offset, segments[-1].end_offset, len(segments)) == (398, None, 200)


def test_short_listing_is_made_each_time(tmp_path: Path, clock: Clock, counts: Counts) -> None:
    directory = make_log(tmp_path / "orders-0", 20)
    for _ in range(5):
        settled(directory, clock)
    assert counts.taken() == (10, 0)


def test_changed_directory_is_listed(tmp_path: Path, clock: Clock) -> None:
    directory = make_log(tmp_path / "orders-0", 200)
    settled(directory, clock)
    before = os.stat(directory)
    write_segment(directory, 400, [400])
    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy does
    assert bases(directory)[-1] == 400
    settled(directory, clock)
    segment_file(directory, 0, LOG_SUFFIX).unlink()
    assert bases(directory)[0] == 2
    settled(directory, clock)
    directory.rename(tmp_path / "gone")
    make_log(directory, 150)
    assert len(bases(directory)) == 150


def test_missing_segment_has_the_directory_listed(tmp_path: Path, clock: Clock, counts: Counts) -> None:
    directory = make_log(tmp_path / "orders-0", 200)
    settled(directory, clock)
    extents = LocalExtents(directory)
    counts.taken()
    extents.after_loss(extents.current()[0])
    assert counts.taken() == (1, 0)


def test_aborted_transactions_of_a_long_log_are_looked_up_without_a_listing(
    tmp_path: Path, clock: Clock, counts: Counts
) -> None:
    directory = make_log(tmp_path / "orders-0", 200)
    for base_offset in (50, 100, 398):
        segment_file(directory, base_offset, TXN_INDEX_SUFFIX).touch()
    settled(directory, clock)
    counts.taken()
    assert LocalExtents(directory).aborted_transactions(398, 400).transactions == ()
    assert counts.taken()[0] == 0
    segments = stored.listed_segments(directory)
    found = {offset: list(segments.transaction_indexes(offset)) for offset in (0, 51, 52, 101, 398, 500)}
    assert found == {0: [50, 100, 398], 51: [50, 100, 398], 52: [100, 398], 101: [100, 398], 398: [398], 500: [398]}


def test_kept_listings_are_bounded(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_KEPT_SEGMENTS_MAX", 400)
    for number in range(4):
        settled(make_log(tmp_path / f"orders-{number}", 150), clock)
    assert list(stored._kept) == [str(tmp_path / f"orders-{number}") for number in (2, 3)]


def offset_since(directory: Path, timestamp_ms: int, start_offset: int = 0, end_offset: int = 1 << 40) -> int | None:
    found = LogReader(LocalExtents(directory), ORDERS).offset_for_timestamp(timestamp_ms, start_offset, end_offset)
    return None if found is None else found.offset


def test_repeated_search_by_time_opens_the_segment_of_its_answer_alone(
    tmp_path: Path, clock: Clock, counts: Counts
) -> None:
    directory = make_log(tmp_path / "orders-0", 300)
    settled(directory, clock)
    counts.taken()
    assert offset_since(directory, 450) == 450
    assert counts.taken() == (0, 227)  # 226 to find their largest timestamps, and the one that has the record
    for timestamp_ms, opened in ((450, 1), (7, 1), (201, 1)):
        assert offset_since(directory, timestamp_ms) == timestamp_ms
        assert counts.taken() == (0, opened)
    assert offset_since(directory, 1000) is None
    assert counts.taken() == (0, 74)  # the rest, of which the last may grow and is read each time
    assert offset_since(directory, 1000) is None
    assert offset_since(directory, 594) == 596
    assert counts.taken() == (0, 2)


def test_timestamps_count_for_the_same_files_after_the_directory_has_changed(
    tmp_path: Path, clock: Clock, counts: Counts
) -> None:
    directory = make_log(tmp_path / "orders-0", 200)
    settled(directory, clock)
    assert offset_since(directory, 1000) is None
    write_segment(directory, 400, [400])
    other = segment_file(directory, 100, LOG_SUFFIX)
    write_segment(directory, 100, [2000, 0])
    assert other.stat().st_size
    counts.taken()
    assert offset_since(directory, 1000) == 100
    assert counts.taken()[1] == 2
    assert offset_since(directory, 1000, start_offset=101) is None


def test_damaged_segment_hides_no_record(tmp_path: Path, clock: Clock) -> None:
    directory = make_log(tmp_path / "orders-0", 200)
    log = segment_file(directory, 100, LOG_SUFFIX)
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) // 2))
    settled(directory, clock)
    assert offset_since(directory, 100) == 100


Timestamps = st.lists(st.lists(st.integers(-1, 20), min_size=1, max_size=3), min_size=2, max_size=8)


@given(logs=st.lists(Timestamps, min_size=1, max_size=3), data=st.data())
def test_search_by_time_finds_what_a_scan_does(
    logs: list[list[list[int]]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """While segments are replaced, added and deleted; a closed one is never longer than three records."""
    directory = tmp_path_factory.mktemp("log") / "orders-0"
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(stored, "monotonic", clock)
        patch.setattr(stored, "_KEPT_SEGMENTS_MIN", 1)
        patch.setattr(stored, "_BLOCK", 3)
        for segments in logs:
            for log in directory.iterdir():
                log.unlink()
            for at, timestamps in enumerate(segments):
                write_segment(directory, 3 * at, timestamps)
            settled(directory, clock)
            records = [(3 * at + each, ms) for at, one in enumerate(segments) for each, ms in enumerate(one)]
            for _ in range(6):
                timestamp_ms = data.draw(st.integers(-1, 21))
                start_offset = data.draw(st.integers(0, 3 * len(segments) - 1))
                end_offset = data.draw(st.integers(0, 3 * len(segments)))
                expected = next(
                    (at for at, ms in records if ms >= timestamp_ms and start_offset <= at < end_offset), None
                )
                assert offset_since(directory, timestamp_ms, start_offset, end_offset) == expected
