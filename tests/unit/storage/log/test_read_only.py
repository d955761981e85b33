"""Read-only state of a partition that another process writes or left in any state: right offsets or an error."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from builders.engine_fixtures import LATE_MS, FixturePartition

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.storage.log import read_only
from pyspark_kafkalog.storage.log.read_only import last_stable_offset, load_read_only
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.names import TopicPartition

CARS = FixturePartition("cars", "cars", 0)
TRANSACTIONS = FixturePartition("transactions", "transactions", 0)
LAST_LOG = "00000000000000000333.log"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    result = tmp_path / "cars-0"
    shutil.copytree(CARS.directory, result)
    return result


def test_log_of_any_length_ends_at_a_whole_batch(directory: Path) -> None:
    path = directory / LAST_LOG
    size = path.stat().st_size
    ends = []
    for length in range(size, -1, -23):
        os.truncate(path, length)
        ends.append(load_read_only(directory).log_end_offset)
    assert (ends[0], ends[-1]) == (400, 333)
    assert ends == sorted(ends, reverse=True)
    assert len(set(ends)) > 10


@pytest.mark.parametrize("base", [0, 333])
def test_records_only_in_swap_file_are_reported(directory: Path, base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state after a broker was killed between the removal of the old segments and the rename of the cleaned one."""
    monkeypatch.setattr("pyspark_kafkalog.storage.artefacts.partition_listing.time.sleep", lambda _: None)
    log = directory / f"{base:020d}.log"
    log.rename(f"{log}.swap")
    with pytest.raises(DiskFormatError, match=rf"{log}\.swap at byte 0: .* adopt"):
        load_read_only(directory)
    with pytest.raises(DiskFormatError, match=rf"{log}\.swap at byte 0: .* adopt"):
        list(LogReader(LocalExtents(directory), TopicPartition("cars", 0)).runs(base, 400))


def test_swap_under_way_is_retried_until_segment_exists(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = directory / LAST_LOG
    swap = log.rename(f"{log}.swap")
    monkeypatch.setattr("pyspark_kafkalog.storage.artefacts.partition_listing.time.sleep", lambda _: swap.rename(log))
    assert load_read_only(directory).log_end_offset == 400


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\xff" * 100, b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 4 + b"\2"])
def test_garbage_tail_ends_log_at_last_batch(directory: Path, tail: bytes) -> None:
    with (directory / LAST_LOG).open("ab") as file:
        file.write(tail)
    assert load_read_only(directory).log_end_offset == 400


def test_damaged_batch_after_last_index_entry_ends_log_before_it(directory: Path) -> None:
    path = directory / LAST_LOG
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert 333 < load_read_only(directory).log_end_offset < 400


@pytest.mark.parametrize("index", [None, b"", b"\0" * 800, b"\x01" * 77, b"\x00\x00\x00\x05\x00\x00\x00\x07"])
def test_missing_or_damaged_index_leaves_log_end_right(directory: Path, index: bytes | None) -> None:
    path = directory / "00000000000000000333.index"
    path.unlink()
    if index is not None:
        path.write_bytes(index)
    assert load_read_only(directory).log_end_offset == 400


def test_damaged_magic_makes_no_message_of_an_older_format(directory: Path) -> None:
    path = directory / LAST_LOG
    data = bytearray(path.read_bytes())
    data[16] = 1
    path.write_bytes(data)
    (directory / "00000000000000000333.index").unlink()
    assert load_read_only(directory).log_end_offset == 333


def test_partition_without_segments_is_empty(tmp_path: Path) -> None:
    state = load_read_only(tmp_path, log_start_offset=7)
    assert (state.base_offsets, state.local_log_start_offset, state.log_end_offset) == ((), 7, 7)


def test_segment_deleted_during_read_is_retried_with_new_listing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = iter([[0, 106, 999], [106, 214, 333]])
    monkeypatch.setattr(read_only, "list_base_offsets", lambda _: next(listings))
    state = load_read_only(directory)
    assert (state.local_log_start_offset, state.log_end_offset) == (106, 400)


def test_last_stable_offset_rises_with_high_watermark_with_or_without_snapshots(tmp_path: Path) -> None:
    directory = tmp_path / "transactions-0"
    shutil.copytree(TRANSACTIONS.directory, directory)

    def stable(high_watermark: int) -> int:
        return last_stable_offset(directory, log_start_offset=0, high_watermark=high_watermark, now_ms=LATE_MS)

    with_snapshots = [stable(end) for end in range(0, 166, 5)]
    for path in directory.glob("*.snapshot"):
        path.write_bytes(b"\0")
    assert [stable(end) for end in range(0, 166, 5)] == with_snapshots
    assert with_snapshots == sorted(with_snapshots)
    assert stable(165) == TRANSACTIONS.offsets["last_stable"]


def test_damage_that_hides_open_transactions_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "transactions-0"
    shutil.copytree(TRANSACTIONS.directory, directory)
    for path in directory.glob("*.snapshot"):
        path.unlink()
    path = directory / "00000000000000000085.log"
    data = bytearray(path.read_bytes())
    data[8:12] = b"\xff" * 4
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=path.name):
        last_stable_offset(directory, log_start_offset=0, high_watermark=165, now_ms=LATE_MS)
