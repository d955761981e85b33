"""Readers over extents that are not local files, and over sources that return fewer bytes than requested."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from repository import FIXTURES

from pyspark_kafkalog.errors import CorruptRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader

CARS = TopicPartition("cars", 0)
CARS_DIRECTORY = FIXTURES / "cars" / "cars-0"
CARS_END = 400


@dataclass
class BytesInMemory:
    """A ByteSource. `most_bytes`: no read returns more; `is_open` as the reader leaves it."""

    name: str
    data: bytes
    most_bytes: int = 1 << 62
    is_open: bool = True

    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, start: int, size_bytes: int) -> memoryview:
        return memoryview(self.data)[start : start + min(size_bytes, self.most_bytes)]

    def read_into(self, start: int, buffer: memoryview) -> int:
        found = self.read(start, len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def place(self, position: int) -> tuple[str, int]:
        return self.name, position

    def close(self) -> None:
        self.is_open = False


@dataclass(frozen=True)
class ExtentInMemory:
    """An Extent without indexes."""

    base_offset: int
    end_offset: int | None
    data: bytes
    most_bytes: int = 1 << 62
    known_size_bytes: int | None = None
    known_max_timestamp_ms: int | None = None
    opened: list[BytesInMemory] = field(default_factory=list, compare=False)

    def open(self) -> BytesInMemory:
        self.opened.append(BytesInMemory(f"memory:{self.base_offset}", self.data, self.most_bytes))
        return self.opened[-1]

    def offset_index(self) -> None:
        return None

    def time_index(self) -> None:
        return None


@dataclass
class ExtentsInMemory:
    """A PartitionExtents."""

    extents: list[ExtentInMemory]
    listings: int = 0
    name: str = "memory"

    @classmethod
    def copied(cls, directory: Path) -> ExtentsInMemory:
        return cls(
            [
                ExtentInMemory(each.base_offset, each.end_offset, _log(each).read_bytes())
                for each in LocalExtents(directory).current()
            ]
        )

    def current(self) -> list[ExtentInMemory]:
        self.listings += 1
        return list(self.extents)

    def after_loss(self, extent: ExtentInMemory) -> list[ExtentInMemory]:
        return self.current()

    def is_being_replaced(self, base_offset: int) -> bool:
        return False

    def widen(self) -> None:
        pass

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        return AbortedTransactions(())


def _log(extent: LocalExtent) -> Path:
    return extent.directory / f"{extent.base_offset:020d}.log"


def _read(reader: LogReader, start: int, end: int, **options: int) -> pa.Table:
    return pa.Table.from_batches(reader.read(start, end, schema=KAFKA_SCHEMA, **options), KAFKA_SCHEMA)


@pytest.fixture
def stored() -> LogReader:
    return LogReader(LocalExtents(CARS_DIRECTORY), CARS)


@pytest.fixture
def in_memory() -> ExtentsInMemory:
    return ExtentsInMemory.copied(CARS_DIRECTORY)


@pytest.mark.parametrize(("start", "end"), [(0, CARS_END), (0, 1), (57, 311), (399, CARS_END), (200, 200)])
def test_reader_over_bytes_in_memory_returns_the_records_of_the_files(
    stored: LogReader, in_memory: ExtentsInMemory, start: int, end: int
) -> None:
    found = _read(LogReader(in_memory, CARS), start, end)
    assert found.num_rows == end - start
    assert found.equals(_read(stored, start, end))


def test_lookups_over_bytes_in_memory_find_the_offsets_of_the_files(
    stored: LogReader, in_memory: ExtentsInMemory
) -> None:
    reader = LogReader(in_memory, CARS)
    timestamps = _read(stored, 0, CARS_END)["timestamp"].cast("int64").to_pylist()
    for timestamp_us in timestamps[::50]:
        late_ms = timestamp_us // 1000
        assert reader.offset_for_timestamp(late_ms, 0, CARS_END) == stored.offset_for_timestamp(late_ms, 0, CARS_END)
        late = _read(reader, 0, CARS_END, min_timestamp_ms=late_ms)
        assert late.equals(_read(stored, 0, CARS_END, min_timestamp_ms=late_ms))
    assert reader.offset_of_max_timestamp(0, CARS_END) == stored.offset_of_max_timestamp(0, CARS_END)
    reader.check_end(CARS_END)
    assert reader.first_offset_from(0, default=-1) == 0


def test_splits_over_extents_without_indexes_cover_the_range(in_memory: ExtentsInMemory) -> None:
    splits = LogReader(in_memory, CARS).split(10, CARS_END, 1)
    assert [splits[0].start_offset, splits[-1].end_offset] == [10, CARS_END]
    assert all(before.end_offset == after.start_offset for before, after in itertools.pairwise(splits))
    assert sum(each.size_bytes for each in splits) == sum(len(each.data) for each in in_memory.extents)


def test_extents_are_listed_by_the_first_read_and_every_source_is_closed(in_memory: ExtentsInMemory) -> None:
    reader = LogReader(in_memory, CARS)
    assert in_memory.listings == 0
    _read(reader, 0, in_memory.extents[1].base_offset)
    assert in_memory.listings == 1
    _read(reader, 0, CARS_END)
    sources = [source for extent in in_memory.extents for source in extent.opened]
    assert len(sources) == len(in_memory.extents) + 1
    assert not any(source.is_open for source in sources)


def test_extent_that_is_gone_is_looked_up_in_a_new_listing(stored: LogReader) -> None:
    """The cleaner has combined all segments since the extents were listed."""

    class Gone(ExtentInMemory):
        def open(self) -> BytesInMemory:
            raise FileNotFoundError(self.base_offset)

    parts = ExtentsInMemory.copied(CARS_DIRECTORY).extents
    combined = ExtentInMemory(0, None, b"".join(each.data for each in parts))
    listings = [[Gone(each.base_offset, each.end_offset, b"") for each in parts], [combined], [combined]]

    class Replaced(ExtentsInMemory):
        def current(self) -> list[ExtentInMemory]:
            return listings.pop(0) if len(listings) > 1 else listings[0]

    assert _read(LogReader(Replaced([]), CARS), 0, CARS_END).equals(_read(stored, 0, CARS_END))


def test_offset_below_the_first_extent_is_out_of_range(in_memory: ExtentsInMemory) -> None:
    del in_memory.extents[0]
    with pytest.raises(OffsetOutOfRangeError, match="offset 5 of cars-0 is below"):
        _read(LogReader(in_memory, CARS), 5, CARS_END)


def test_missing_extents_are_an_error_that_names_the_partition() -> None:
    with pytest.raises(CorruptRecordError, match=r"memory.*a segment with offset 0"):
        _read(LogReader(ExtentsInMemory([]), CARS), 0, CARS_END)


def test_source_that_returns_less_than_a_batch_is_an_error_with_name_and_position(in_memory: ExtentsInMemory) -> None:
    first = in_memory.extents[0]
    with SegmentReader(first) as segment:
        (_, header), (position, second), *_ = segment.headers(0)
    assert second.size_bytes > 100
    for most_bytes in (0, 10, 61, header.size_bytes - 1):
        in_memory.extents[0] = replace(first, most_bytes=most_bytes)
        with pytest.raises(CorruptRecordError) as raised:
            _read(LogReader(in_memory, CARS), 0, CARS_END)
        assert (raised.value.file, raised.value.position) == ("memory:0", 0)
    in_memory.extents[0] = replace(first, data=first.data[: position + 100])  # ends inside the second batch
    with pytest.raises(CorruptRecordError) as raised:
        _read(LogReader(in_memory, CARS), 0, CARS_END)
    assert (raised.value.file, raised.value.position) == ("memory:0", position)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda reader: reader.offset_for_timestamp(0, 0, CARS_END),
        lambda reader: reader.offset_of_max_timestamp(0, CARS_END),
        lambda reader: reader.check_end(CARS_END),
    ],
)
def test_lookup_in_a_source_of_short_reads_is_an_error_with_its_name(
    in_memory: ExtentsInMemory, look_up: Callable[[LogReader], object]
) -> None:
    in_memory.extents = [replace(each, most_bytes=30) for each in in_memory.extents]
    with pytest.raises(CorruptRecordError) as raised:
        look_up(LogReader(in_memory, CARS))
    assert raised.value.file.startswith("memory:")


def test_short_reads_of_whole_batches_are_continued(stored: LogReader, in_memory: ExtentsInMemory) -> None:
    """A source may end a read early, as preadv does on a signal, if each read makes progress."""
    in_memory.extents = [replace(each, most_bytes=3000) for each in in_memory.extents]
    assert _read(LogReader(in_memory, CARS), 0, CARS_END).equals(_read(stored, 0, CARS_END))


def test_local_extents_end_where_the_next_one_begins(tmp_path: Path) -> None:
    for base_offset in (0, 7, 30):
        (tmp_path / f"{base_offset:020d}.log").touch()
    found = LocalExtents(tmp_path).current()
    assert [(each.base_offset, each.end_offset) for each in found] == [(0, 7), (7, 30), (30, None)]
