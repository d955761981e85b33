"""Readers of a tiered log beside its writer, two copying runs, retention and merges: each record once, in order."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.tiered_roots import TOPIC, append_rounds, tiered_root

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.root.protocol import Root

PARTITIONS = 2
ROUNDS = 25


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_readers_beside_writer_and_all_jobs_get_each_record_once_in_order(tmp_path: Path, layout: str) -> None:
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(
        tmp_path / "log", tmp_path / "store", layout=layout, partitions=PARTITIONS, local_retention_bytes="6000"
    )
    log_dir.alter_broker_configs(add={"log.segment.delete.delay.ms": "0"})
    is_over = threading.Event()
    failures: list[BaseException] = []
    done = {"copied": 0, "deleted": 0, "merged": 0, "read": 0}

    def again_and_again(act: Callable[[LogDir], None]) -> threading.Thread:
        def work() -> None:
            own = LogDir.open(tmp_path / "log")
            try:
                while not is_over.is_set():
                    act(own)
            except BaseException as error:
                failures.append(error)
                is_over.set()

        return threading.Thread(target=work)

    def run(job: Callable[[Root], list[PartitionReport]], name: str, counter: str) -> Callable[[LogDir], None]:
        def act(own: LogDir) -> None:
            for report in job(own.root):
                assert report.error is None
                done[name] += getattr(report, counter) or 0

        return act

    drawn = random.Random(7)

    def read(own: LogDir) -> None:
        own.refresh()
        number = drawn.randrange(PARTITIONS)
        end = own.partition(TOPIC, number).high_watermark
        if not end:
            return
        start = drawn.randrange(end)
        end = min(end, start + drawn.randint(1, 500))
        isolation = drawn.choice(["read_committed", "read_uncommitted"])
        table = own.read(TOPIC, partition=number, start_offset=start, end_offset=end, isolation=isolation)  # type: ignore[arg-type]
        assert table["offset"].to_pylist() == list(range(start, end))
        expected = [f"record {offset} of partition {number}".encode() for offset in range(start, end)]
        assert table["value"].to_pylist() == expected
        done["read"] += 1

    jobs = [
        run(tier_segments, "copied", "segments_copied"),
        run(tier_segments, "copied", "segments_copied"),
        run(apply_retention, "deleted", "local_segments_dropped"),
        run(merge_segments, "merged", "segments_dropped"),
        read,
        read,
    ]
    threads = [again_and_again(each) for each in jobs]
    for thread in threads:
        thread.start()
    for count in range(ROUNDS):
        if is_over.is_set():
            break
        if count % 10 == 0:  # so that there is something to merge
            log_dir.alter_topic(TOPIC, add={"internal.segment.bytes": "20000" if count % 20 else "1500"})
        for number in range(PARTITIONS):
            append_rounds(log_dir, 1, partition=number, records=1 + 7 * count % 30)
    is_over.set()
    for thread in threads:
        thread.join()

    assert failures == []
    assert all(each.error is None for job in (tier_segments, apply_retention) for each in job(log_dir.root))
    log_dir.refresh()
    assert done["copied"] > 3
    assert done["read"] > 3
    for number in range(PARTITIONS):
        snapshot = log_dir.partition(TOPIC, number)
        assert snapshot.log_start_offset == 0
        assert snapshot.local_log_start_offset > 0
        values = log_dir.read(TOPIC, partition=number)["value"].to_pylist()
        assert values == [
            f"record {offset} of partition {number}".encode() for offset in range(snapshot.high_watermark)
        ]
