"""Readers and writers beside merges, retention and delete-records see every record once and never stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.tiered_roots import tiered_root

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.root.file_root import on_file_system
from pyspark_kafkalog.storage.names import TopicPartition

SECONDS_MAX = 600.0
ORDERS = TopicPartition("orders", 0)
CONFIGS = {"internal.segment.bytes": "3000", "index.interval.bytes": "200", "file.delete.delay.ms": "0"}


def beside(path: Path, *works: Callable[[LogDir], None], until: Callable[[], bool]) -> None:
    """Do each work again and again, each in a thread with a LogDir of its own; the first error is raised."""
    errors: list[BaseException] = []
    deadline = time.monotonic() + SECONDS_MAX

    def go_on(work: Callable[[LogDir], None]) -> None:
        try:
            log_dir = LogDir.open(path)
            while time.monotonic() < deadline and not errors and not until():
                work(log_dir)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go_on, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert until(), "too little has happened"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1, configs=CONFIGS)
    return log_dir.path


def write(log_dir: LogDir) -> None:
    """Records that tell their offset, about a third of a segment."""
    log_dir.refresh()
    first = log_dir.partition("orders", 0).high_watermark
    values = [b"%08d" % offset for offset in range(first, first + 40)]
    log_dir.append("orders", pa.table({"value": values}), partition=0, flush="os")


class Retention:
    """Retention and reads beside it: of each, how much has happened."""

    def __init__(self) -> None:
        self.dropped = 0
        self.read_whole = 0

    def apply(self, log_dir: LogDir) -> None:
        [report] = apply_retention(log_dir.root)
        assert report.error is None
        self.dropped += report.segments_dropped

    def read(self, log_dir: LogDir) -> None:
        log_dir.refresh()
        found = log_dir.partition("orders", 0)
        try:
            rows = log_dir.read("orders")
        except OffsetOutOfRangeError:
            log_dir.refresh()
            assert log_dir.partition("orders", 0).log_start_offset > found.log_start_offset
        else:
            check(log_dir, rows, found.log_start_offset, found.high_watermark)
            self.read_whole += 1


def check(log_dir: LogDir, rows: pa.Table, start: int, end: int) -> None:
    assert rows["offset"].to_pylist() == list(range(start, end))
    assert rows["value"].to_pylist() == [b"%08d" % offset for offset in range(start, end)]


@pytest.mark.slow
def test_reads_beside_merges_return_every_record_once(path: Path) -> None:
    merged = []
    read_whole = []

    def merge(log_dir: LogDir) -> None:
        [report] = merge_segments(log_dir.root)
        assert report.error is None
        merged.append(report.segments_dropped)

    def read(log_dir: LogDir) -> None:
        log_dir.refresh()
        rows = log_dir.read("orders")
        check(log_dir, rows, 0, log_dir.partition("orders", 0).high_watermark)
        read_whole.append(rows.num_rows)

    # Segments roll three times as often as merging allows, so that there is something to merge.
    LogDir.open(path).alter_topic("orders", add={"internal.segment.bytes": "1000"})

    def widen(log_dir: LogDir) -> None:
        for segment_bytes in ("1000", "9000"):
            log_dir.alter_topic("orders", add={"internal.segment.bytes": segment_bytes})
            time.sleep(0.05)

    beside(path, write, merge, read, read, widen, until=lambda: sum(merged) > 40 and len(read_whole) > 40)


@pytest.mark.slow
def test_reads_and_writes_beside_retention_lose_no_retained_record(path: Path) -> None:
    LogDir.open(path).alter_topic("orders", add={"retention.bytes": "9000"})
    retention = Retention()

    def delete(log_dir: LogDir) -> None:
        log_dir.refresh()
        found = log_dir.partition("orders", 0)
        offset = (found.log_start_offset + found.high_watermark) // 2 + 1
        [report] = delete_records(log_dir.root, {ORDERS: min(offset, found.high_watermark)})
        assert report.error is None
        time.sleep(0.01)

    works = (write, retention.apply, delete, retention.read, retention.read)
    beside(path, *works, until=lambda: retention.dropped > 20 and retention.read_whole > 20)


@pytest.fixture
def tiered_path(tmp_path: Path) -> Path:
    """A root whose topic is tiered, and of which one segment and a little more stays local."""
    (tmp_path / "remote").mkdir()
    configs = {**{name.replace(".", "_"): value for name, value in CONFIGS.items()}, "local_retention_bytes": "4000"}
    log_dir = tiered_root(tmp_path / "log", tmp_path / "remote", layout="local", **configs)
    return on_file_system(log_dir.root).path


def tier(log_dir: LogDir) -> None:
    [report] = tier_segments(log_dir.root)
    assert report.error is None


@pytest.mark.full
def test_reads_beside_copies_and_local_retention_return_every_record_once(tiered_path: Path) -> None:
    dropped = []
    read_whole = []

    def retain(log_dir: LogDir) -> None:
        [report] = apply_retention(log_dir.root)
        assert report.error is None
        dropped.append(report.local_segments_dropped or 0)

    def read(log_dir: LogDir) -> None:
        log_dir.refresh()
        check(log_dir, log_dir.read("orders"), 0, log_dir.partition("orders", 0).high_watermark)
        read_whole.append(True)

    def read_slowly(log_dir: LogDir) -> None:
        """What was local when the read was planned is remote when it comes to it."""
        log_dir.refresh()
        end = log_dir.partition("orders", 0).high_watermark
        offsets: list[int] = []
        for batch in log_dir.reader("orders", 0).read(max(end - 400, 0), end, schema=KAFKA_SCHEMA):
            offsets += batch.column("offset").to_pylist()
            time.sleep(0.02)
        assert offsets == list(range(max(end - 400, 0), end))

    def merge(log_dir: LogDir) -> None:
        [report] = merge_segments(log_dir.root)
        assert report.error is None
        time.sleep(0.05)

    works = (write, tier, retain, merge, read, read_slowly, read_slowly)
    beside(tiered_path, *works, until=lambda: sum(dropped) > 60 and len(read_whole) > 30)


@pytest.mark.full
def test_reads_beside_total_retention_of_tiered_log_lose_no_retained_record(tiered_path: Path) -> None:
    log_dir = LogDir.open(tiered_path)
    log_dir.alter_topic("orders", add={"retention.bytes": "20000"})
    log_dir.alter_broker_configs(add={"log.segment.delete.delay.ms": "0"})
    retention = Retention()
    works = (write, tier, retention.apply, retention.apply, retention.read, retention.read)
    beside(tiered_path, *works, until=lambda: retention.dropped > 40 and retention.read_whole > 30)
