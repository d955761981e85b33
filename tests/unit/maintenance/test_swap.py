"""Swapped segments replace the old ones for readers at once, and a killed swap is finished or undone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.stopping_filesystem import Killed, StoppingFileSystem, WatchedFileSystem
from simulations.cleaner_reference import write_segment

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.swap import finish_swaps, has_unfinished, swap_in
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition, offset_file_name

CONFIG = LogConfig(index_interval_bytes=50)
ALL = list(range(50))
SURVIVORS = [0, 1, 5, 12, 13, 14, 27, 29, *range(30, 50)]  # of the group 0, 10, 20; the others are not touched
NOW_MS = 1_700_000_000_000


def batches_of(offsets: list[int]) -> list[bytes]:
    return [
        encode_batch([Record(offset=each, timestamp_ms=each, key=b"%d" % each, value=b"v" * 20)], leader_epoch=0)
        for each in offsets
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Segments 0 to 40 of ten records each, and a cleaned one for the first three."""
    cleaned = tmp_path / "cleaned"
    cleaned.mkdir()
    write_segment(cleaned, 0, batches_of([each for each in SURVIVORS if each < 30]), CONFIG)
    directory = tmp_path / "orders-0"
    directory.mkdir()
    for base_offset in range(0, 50, 10):
        write_segment(directory, base_offset, batches_of(ALL[base_offset : base_offset + 10]), CONFIG)
        (directory / offset_file_name(base_offset, ".snapshot")).write_bytes(b"")
    for path in cleaned.iterdir():
        shutil.copy(path, directory / (path.name + ".cleaned"))
    return directory


def offsets_read(reader: LogReader, start_offset: int = 0) -> Iterator[int]:
    for batch in reader.read(start_offset, 50, schema=KAFKA_SCHEMA):
        yield from batch["offset"].to_pylist()


def new_reader(directory: Path) -> LogReader:
    return LogReader(LocalExtents(directory), TopicPartition("orders", 0))


def check_read(found: list[int]) -> None:
    assert found == sorted(set(found))
    assert set(SURVIVORS) <= set(found) <= set(ALL)


def check_state(directory: Path) -> None:
    """Readers with and without an old look at the directory are served, and so is a starting broker."""
    check_read(list(offsets_read(new_reader(directory))))
    for start in (3, 10, 15, 25, 28, 30):
        assert list(offsets_read(new_reader(directory), start))[-20:] == SURVIVORS[-20:]
    copy = directory.with_name("copy-0")
    shutil.copytree(directory, copy)
    log = UnifiedLog.open(copy, CONFIG, recovery_point=50, clock=lambda: NOW_MS)
    log.close()
    check_read(list(offsets_read(new_reader(copy))))
    assert not has_unfinished(copy)
    shutil.rmtree(copy)


def swap(directory: Path, fs: FileSystem) -> None:
    swap_in(directory, 0, [0, 10, 20], now_ms=NOW_MS, fs=fs)


def calls_of(action: Callable[[FileSystem], Any]) -> int:
    calls = []
    action(WatchedFileSystem(lambda: calls.append(0)))
    return len(calls)


def test_new_segment_replaces_old_segments(directory: Path) -> None:
    swap(directory, LOCAL)
    assert list_base_offsets(directory) == [0, 30, 40]
    assert list(offsets_read(new_reader(directory))) == SURVIVORS
    assert not has_unfinished(directory)
    gone = {path.name for path in directory.iterdir() if path.name.endswith(".deleted")}
    kinds = (".log", ".index", ".timeindex", ".snapshot")
    assert gone == {offset_file_name(base, suffix) + ".deleted" for base in (10, 20) for suffix in kinds}


def test_reader_beside_swap_reads_every_record_once(directory: Path) -> None:
    long_lived = new_reader(directory)
    begun: list[tuple[list[int], Iterator[int]]] = []

    def look() -> None:
        check_read(list(offsets_read(new_reader(directory))))
        check_read(list(offsets_read(long_lived)))
        for taken in (1, 11, 21, 31):
            reading = offsets_read(new_reader(directory))
            begun.append(([next(reading) for _ in range(min(taken, len(SURVIVORS)))], reading))

    look()
    swap(directory, WatchedFileSystem(look))
    look()
    assert len(begun) > 40
    for taken, reading in begun:
        check_read([*taken, *reading])


@pytest.mark.slow
def test_killed_swap_is_finished_or_undone(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "whole" / "orders-0")
    calls = calls_of(lambda fs: swap(tmp_path / "whole" / "orders-0", fs))
    assert calls > 15
    for died_at in range(calls):
        copy = tmp_path / f"{died_at}" / "orders-0"
        shutil.copytree(directory, copy)
        with pytest.raises(Killed):
            swap(copy, StoppingFileSystem(died_at))
        check_state(copy)
        finish_swaps(copy, CONFIG, now_ms=NOW_MS, fs=LOCAL)
        check_state(copy)
        assert not has_unfinished(copy)
        assert list_base_offsets(copy) in ([0, 10, 20, 30, 40], [0, 30, 40])


@pytest.mark.slow
def test_kill_while_finishing_killed_swap_does_no_harm(directory: Path, tmp_path: Path) -> None:
    number = 0
    for died_at in range(0, 24, 2):
        first = tmp_path / f"first-{died_at}" / "orders-0"
        shutil.copytree(directory, first)
        try:
            swap(first, StoppingFileSystem(died_at))
            break
        except Killed:
            pass
        for again_at in range(0, 24, 3):
            number += 1
            copy = tmp_path / f"{number}" / "orders-0"
            shutil.copytree(first, copy)
            try:
                finish_swaps(copy, CONFIG, now_ms=NOW_MS, fs=StoppingFileSystem(again_at))
            except Killed:
                check_read(list(offsets_read(new_reader(copy))))
                finish_swaps(copy, CONFIG, now_ms=NOW_MS, fs=LOCAL)
            check_read(list(offsets_read(new_reader(copy))))
            assert not has_unfinished(copy)
    assert number > 20


def test_undecided_swap_is_undone(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.endswith(".cleaned")}
    (directory / "00000000000000000000.log.cleaned").rename(directory / "00000000000000000000.log.swap")
    finish_swaps(directory, CONFIG, now_ms=NOW_MS, fs=LOCAL)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_transaction_index_that_new_segment_lacks_is_deleted(directory: Path) -> None:
    (directory / "00000000000000000000.txnindex").write_bytes(b"")
    swap(directory, LOCAL)
    assert not (directory / "00000000000000000000.txnindex").exists()
    assert (directory / "00000000000000000000.txnindex.deleted").exists()
