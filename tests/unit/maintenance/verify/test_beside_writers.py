"""Verification beside writers, readers and maintenance reports no damage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.verify.findings import Severity
from pyspark_kafkalog.maintenance.verify.verify import verify

#: How often verify is to run, and segments to be replaced beside it.
ROUNDS, SWAPS = 10, 20
SECONDS_MAX = 120.0
SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "100", "file.delete.delay.ms": "0"}


@pytest.mark.slow
def test_concurrent_writes_and_maintenance_are_not_reported_as_damage(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("aged", partitions=1, configs=SMALL | {"retention.bytes": "12000"})
    log_dir.create_topic("cleaned", partitions=1, configs=SMALL | {"cleanup.policy": "compact"})
    log_dir.create_topic("merged", partitions=1, configs=SMALL | {"internal.segment.bytes": "1000"})
    stop = threading.Event()
    failures: list[Exception] = []
    swaps = [0]

    def until_stopped(work: Callable[[LogDir, int], None]) -> threading.Thread:
        def loop() -> None:
            own = LogDir.open(tmp_path / "log")
            number = 0
            while not stop.is_set() and not failures:
                try:
                    work(own, number)
                except Exception as error:
                    failures.append(error)
                number += 1

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    def write(own: LogDir, number: int) -> None:
        values = [b"%d" % at + b"." * 50 for at in range(12)]
        keys = [b"%d" % (at % 5) for at in range(12)]
        for topic in ("aged", "cleaned", "merged"):
            own.append(topic, pa.table({"key": keys, "value": values}), partition=0, flush="os")

    def maintain(own: LogDir, number: int) -> None:
        reports = apply_retention(own.root, topics=["aged"])
        reports.append(clean_partition(own.root, "cleaned", 0, force=True))
        own.alter_topic("merged", add={"internal.segment.bytes": "1000" if number % 2 else "20000"})
        reports += merge_segments(own.root, topics=["merged"])
        swaps[0] += sum(each.segments_dropped for each in reports)
        assert [each.error for each in reports] == [None] * len(reports)

    threads = [until_stopped(write), until_stopped(maintain)]
    rounds = 0
    try:
        own = LogDir.open(tmp_path / "log")
        deadline = time.monotonic() + SECONDS_MAX
        while not failures and time.monotonic() < deadline and (rounds <= ROUNDS or swaps[0] <= SWAPS):
            result = verify(own.root)
            assert [each for each in result.findings if each.severity is not Severity.INFO] == []
            rounds += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert rounds > ROUNDS
    assert swaps[0] > SWAPS
    assert verify(own.root).is_sound
