"""The reader returns the same rows for every state of the indexes, and reports missing records."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, OffsetOutOfRangeError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader

CARS = TopicPartition("cars", 0)
CARS_END = 400


@pytest.fixture
def cars(tmp_path: Path) -> Path:
    """A copy of the partition of `cars`: 400 records in four segments."""
    directory = tmp_path / "cars-0"
    shutil.copytree(FIXTURES / "cars" / "cars-0", directory)
    return directory


def _read(directory: Path, start: int, end: int, **options: int) -> pa.Table:
    reader = LogReader(LocalExtents(directory), CARS)
    return pa.Table.from_batches(reader.read(start, end, schema=KAFKA_SCHEMA, **options), KAFKA_SCHEMA)


def _remove(path: Path) -> None:
    path.unlink()


def _cut_in_an_entry(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _keep_first_entry(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 8 if path.suffix == ".index" else 12])


def _fill_with_noise(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(path.stat().st_size))


def _preallocated(path: Path) -> None:
    path.write_bytes(path.read_bytes().ljust(12 * 8 * 1000, b"\0"))


def _point_past_the_end(path: Path) -> None:
    path.write_bytes(b"".join((i).to_bytes(4, "big") + (0x7FFFFF00 + i).to_bytes(4, "big") for i in range(20)))


@pytest.mark.parametrize(
    "damage", [_remove, _cut_in_an_entry, _keep_first_entry, _fill_with_noise, _preallocated, _point_past_the_end]
)
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_damaged_index_does_not_change_rows(cars: Path, damage: Callable[[Path], None], suffix: str) -> None:
    whole = _read(cars, 0, CARS_END)
    timestamps = whole["timestamp"].cast("int64").to_pylist()
    for path in cars.glob(f"*.{suffix}"):
        damage(path)
    for start in range(0, CARS_END, 37):
        assert _read(cars, start, CARS_END).equals(whole.slice(start))
        late_ms = timestamps[start] // 1000
        expected = whole.filter(pc.greater_equal(whole["timestamp"].cast("int64"), late_ms * 1000))
        assert _read(cars, 0, CARS_END, min_timestamp_ms=late_ms).equals(expected)


def test_any_range_is_slice_of_whole_log(cars: Path) -> None:
    whole = _read(cars, 0, CARS_END)
    rng = random.Random(3)
    for _ in range(60):
        start, end = sorted(rng.choices(range(CARS_END + 1), k=2))
        assert _read(cars, start, end).equals(whole.slice(start, end - start)), (start, end)


@pytest.mark.parametrize("topic", ["out-of-order", "time-rolled"])
def test_time_range_includes_out_of_order_records(topic: str) -> None:
    root = FIXTURES / "out-of-order-timestamps"
    for directory in sorted(root.glob(f"{topic}-[0-9]*")):
        end = SegmentReaderEnd.of(directory)
        whole = _read(directory, 0, end)
        milliseconds = pc.divide(whole["timestamp"].cast("int64"), 1000)
        for low in sorted(set(milliseconds.to_pylist()))[::7]:
            for until in (low + 1, low + 5000, low + 10_000_000):
                inside = pc.and_(pc.greater_equal(milliseconds, low), pc.less(milliseconds, until))
                found = _read(directory, 0, end, min_timestamp_ms=low, until_timestamp_ms=until)
                assert found.drop_columns(["topic", "partition"]).equals(
                    whole.filter(inside).drop_columns(["topic", "partition"])
                )


class SegmentReaderEnd:
    """The offset after the last batch of a partition."""

    @staticmethod
    def of(directory: Path) -> int:
        base_offset = max(int(path.stem) for path in directory.glob("*.log"))
        with SegmentReader(LocalExtent(directory, base_offset)) as segment:
            for _ in segment.runs(0, start_offset=base_offset, end_offset=1 << 62):
                pass
            return segment.reached_offset


@pytest.mark.parametrize("target_bytes", [1, 500, 2000, 1 << 30])
def test_splits_cover_range_without_overlap(cars: Path, target_bytes: int) -> None:
    reader = LogReader(LocalExtents(cars), CARS)
    for start, end in ((0, CARS_END), (10, 390), (107, 108), (333, CARS_END)):
        splits = reader.split(start, end, target_bytes)
        assert splits[0].start_offset == start
        assert splits[-1].end_offset == end
        for before, after in itertools.pairwise(splits):
            assert before.start_offset < before.end_offset == after.start_offset
    assert len(reader.split(0, CARS_END, 1)) > 30
    assert len(reader.split(0, CARS_END, 1 << 30)) == 1
    total = sum(path.stat().st_size for path in cars.glob("*.log"))
    assert abs(sum(split.size_bytes for split in reader.split(0, CARS_END, 500)) - total) <= 4 * 400


def test_split_of_log_without_segments_fails_on_read(tmp_path: Path) -> None:
    (tmp_path / "cars-0").mkdir()
    reader = LogReader(LocalExtents(tmp_path / "cars-0"), CARS)
    (split,) = reader.split(0, 5, 1)
    with pytest.raises(CorruptRecordError, match=r"found no \.log file"):
        list(reader.read(split.start_offset, split.end_offset, schema=KAFKA_SCHEMA))


def test_splits_are_of_even_size() -> None:
    directory = FIXTURES / "cars" / "cars-0"
    sizes = [split.size_bytes for split in LogReader(LocalExtents(directory), CARS).split(0, CARS_END, 2000)]
    assert max(sizes) <= 2000 + 500
    assert min(sizes[:-1]) >= 2000


def test_torn_tail_is_not_read_as_records(cars: Path) -> None:
    last = max(cars.glob("*.log"))
    last.write_bytes(last.read_bytes() + last.read_bytes()[:100])
    assert _read(cars, 0, CARS_END).num_rows == CARS_END
    with pytest.raises(CorruptRecordError, match=r"whole batch|base offset"):
        _read(cars, 0, CARS_END + 10)


@pytest.mark.parametrize("tail", [b"\0" * 12, b"\0" * 16, b"\xff" * 15, b"\0" * 17, b"\0" * 300])
def test_noise_after_last_batch_ends_read(cars: Path, tail: bytes) -> None:
    last = max(cars.glob("*.log"))
    last.write_bytes(last.read_bytes() + tail)
    assert _read(cars, 0, CARS_END).num_rows == CARS_END
    with pytest.raises(CorruptRecordError, match=r"whole batch|magic|length"):
        _read(cars, 0, CARS_END + 10)


@pytest.mark.parametrize("keep_bytes", [0, 1, 11, 16, 60, 61, 1000, 2509])
def test_truncated_committed_records_are_reported(cars: Path, keep_bytes: int) -> None:
    last = max(cars.glob("*.log"))
    last.write_bytes(last.read_bytes()[:keep_bytes])
    with pytest.raises(CorruptRecordError) as caught:
        _read(cars, 0, CARS_END)
    assert caught.value.file == str(last)


@pytest.mark.slow
@pytest.mark.parametrize("segment", ["00000000000000000106.log", "00000000000000000333.log"])
def test_flipped_byte_is_reported_or_changes_no_row(tmp_path: Path, segment: str) -> None:
    """Base offset and leader epoch are outside the CRC; the epoch is no column."""
    root = tmp_path / "cars"
    shutil.copytree(FIXTURES / "cars", root, ignore=shutil.ignore_patterns("expected"))
    log = root / "cars-0" / segment
    intact = LogDir.open(root).read("cars")
    data = bytearray(log.read_bytes())
    errors = 0
    for at in [*range(160), *range(len(data) - 160, len(data))]:
        for flip in (0x01, 0x80):
            data[at] ^= flip
            log.write_bytes(data)
            try:
                found = LogDir.open(root).read("cars")
            except DiskFormatError as error:
                errors += str(log) in str(error)
            else:
                assert found.equals(intact), (at, flip)
            data[at] ^= flip
    assert errors > 600


def _each_batch(directory: Path, start: int, end: int) -> tuple[list[bytes], DiskFormatError | None]:
    """Those of `LogReader.runs`, and its error."""
    found: list[bytes] = []
    try:
        for run in LogReader(LocalExtents(directory), CARS).runs(start, end):
            places = zip(
                (run.batches["position"] - run.position).tolist(), run.batches["size_bytes"].tolist(), strict=True
            )
            found += [run.data[at : at + size].tobytes() for at, size in places]
    except DiskFormatError as error:
        return found, error
    return found, None


def _one_by_one(directory: Path, start: int, end: int) -> tuple[list[bytes], DiskFormatError | None]:
    """Those of `LogReader.batches`, and its error."""
    found: list[bytes] = []
    try:
        for _, _, data in LogReader(LocalExtents(directory), CARS).batches(start, end):
            found.append(bytes(data))
    except DiskFormatError as error:
        return found, error
    return found, None


def test_batches_one_by_one_are_those_of_runs(cars: Path) -> None:
    rng = random.Random(5)
    for start, end in ((0, CARS_END), *(sorted(rng.sample(range(CARS_END + 1), k=2)) for _ in range(40))):
        assert _one_by_one(cars, start, end) == _each_batch(cars, start, end), (start, end)


def test_damage_is_reported_by_batches_one_by_one_as_by_runs(cars: Path) -> None:
    rng = random.Random(6)
    logs = sorted(cars.glob("*.log"))
    kinds = set()
    for _ in range(150):
        path = rng.choice(logs)
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] if rng.random() < 0.2 else data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        batches, error = _one_by_one(cars, 0, CARS_END)
        whole_runs, error_of_runs = _each_batch(cars, 0, CARS_END)
        assert (type(error), getattr(error, "file", None)) == (
            type(error_of_runs),
            getattr(error_of_runs, "file", None),
        ), (path, at)
        assert batches[: len(whole_runs)] == whole_runs
        kinds.add(type(error))
        path.write_bytes(data)
    assert CorruptRecordError in kinds


def test_read_of_range_deleted_by_retention_is_rejected(cars: Path) -> None:
    (cars / "00000000000000000000.log").unlink()
    with pytest.raises(OffsetOutOfRangeError, match="106"):
        _read(cars, 50, CARS_END)
    assert _read(cars, 106, CARS_END).num_rows == CARS_END - 106


def test_read_of_deleted_partition_directory_fails(cars: Path) -> None:
    shutil.rmtree(cars)
    with pytest.raises(FileNotFoundError):
        _read(cars, 0, 1)
    cars.mkdir()
    with pytest.raises(CorruptRecordError, match=r"no \.log file"):
        _read(cars, 0, 1)


def test_locate_finds_same_batch_as_scan(cars: Path) -> None:
    base_offset = 106
    with SegmentReader(LocalExtent(cars, base_offset)) as segment:
        table = [
            (int(batch["last_offset"]), int(batch["position"]))
            for run in segment.runs(0, start_offset=0, end_offset=1 << 62)
            for batch in run.batches
        ]
        for offset in range(base_offset, 214):
            found = segment.locate(offset)
            assert found is not None
            assert found[0] == next(position for last, position in table if last >= offset)
        assert segment.locate(214) is None
