"""A reader and a writer beside 200 swaps of segments: no record is missed, and each is read as it was written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from builders.controlled import open_log_dir

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.storage.filesystem import FileSystem

_SWAPS = 200
_KEYS = 25
_ROWS = 40
_CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "index.interval.bytes": "300",
    "min.cleanable.dirty.ratio": "0",
    "file.delete.delay.ms": "0",
}


class _Swaps(FileSystem):
    """Counts segments that have been swapped in, and does not wait for the disk, which would be most of the time."""

    count = 0

    def fsync(self, fd: int) -> None:
        pass

    def fsync_dir(self, directory: Path) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.count += target.name.endswith(".log.swap")


def _key(offset: int) -> bytes:
    return b"%d" % (offset * 31 // 7 % _KEYS)


def _value(offset: int) -> bytes:
    return b"%d" % offset + b"." * (offset % 50)


def _append(log_dir: LogDir, first_offset: int) -> None:
    offsets = range(first_offset, first_offset + _ROWS)
    keys, values = [_key(each) for each in offsets], [_value(each) for each in offsets]
    log_dir.append("orders", pa.table({"key": keys, "value": values}), partition=0, flush="os")


def _read(log_dir: LogDir, start_offset: int, end_offset: int) -> list[int]:
    """The offsets read, after a look at what was read."""
    found: list[int] = []
    for batch in log_dir.reader("orders", 0).read(start_offset, end_offset, schema=KAFKA_SCHEMA):
        offsets = batch["offset"].to_pylist()
        assert batch["key"].to_pylist() == [_key(each) for each in offsets]
        assert batch["value"].to_pylist() == [_value(each) for each in offsets]
        found += offsets
    assert (np.diff(found) > 0).all()
    return found


def test_reader_and_writer_beside_swaps_miss_no_record(tmp_path: Path) -> None:
    LogDir.create(tmp_path / "log").create_topic("orders", partitions=1, configs=_CONFIGS)
    swaps = _Swaps()
    done = threading.Event()
    failures: list[BaseException] = []
    reads = [0]

    def until_done(step: Callable[[LogDir, int], None]) -> Callable[[], None]:
        def run() -> None:
            log_dir = LogDir.open(tmp_path / "log")
            turn = 0
            try:
                while not done.is_set():
                    step(log_dir, turn)
                    turn += 1
            except BaseException as error:
                failures.append(error)
                done.set()

        return run

    def write(log_dir: LogDir, turn: int) -> None:
        _append(log_dir, turn * _ROWS)

    def read(log_dir: LogDir, turn: int) -> None:
        log_dir.refresh()
        end_offset = log_dir.partition("orders", 0).high_watermark
        start_offset = turn * 997 % (end_offset + 1) if turn % 2 else 0
        found = _read(log_dir, start_offset, end_offset)
        assert set(_read(log_dir, start_offset, end_offset)) <= set(found)  # what is still there has been seen
        reads[0] += 1

    threads = [threading.Thread(target=until_done(step)) for step in (write, read, read)]
    for thread in threads:
        thread.start()
    log_dir = open_log_dir(tmp_path / "log", fs=swaps)
    while swaps.count < _SWAPS and not done.is_set():
        report = clean_partition(log_dir.root, "orders", 0, force=True)
        assert report.error is None, report.error
    done.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert reads[0] > 50
    end_offset = LogDir.open(tmp_path / "log").partition("orders", 0).high_watermark
    latest = {_key(offset): offset for offset in range(end_offset)}
    assert set(latest.values()) <= set(_read(LogDir.open(tmp_path / "log"), 0, end_offset))
