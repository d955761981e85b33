"""The cost of a stream on the driver, measured without Spark.

    python benchmarks/bench_stream_driver.py plan DIRECTORY PARTITIONS ROUNDS
    python benchmarks/bench_stream_driver.py commit DIRECTORY PARTITIONS ROUNDS

`plan`: latestOffset and partitions() of a micro-batch in which each partition of a topic has new records, including the
JSON and the pickles that Spark's worker produces. `commit`: commits of a micro-batch that writes to all partitions of a
topic, each compared with the bare fsyncs of as many files and a directory. Works in a new directory in DIRECTORY.

Prints notes, then one line of JSON: milliseconds by name, each a list with one figure per round.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask
from pyspark_kafkalog.storage.stager import stage_table

TOPIC = "orders"
ROWS_A_PARTITION = 20
COMMIT_ROWS_A_PARTITION = 100
VALUE = b"v" * 100
WARM_UP_ROUNDS = 10


def rows(count: int) -> pa.Table:
    keys = [b"customer-%05d" % number for number in range(count)]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array([VALUE] * count, pa.binary())})


def timed_ms(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return (time.perf_counter() - start) * 1000, result


def plan(directory: Path, partitions: int, rounds: int) -> dict[str, list[float]]:
    log_dir = LogDir.create(directory / "plan")
    log_dir.create_topic(TOPIC, partitions=partitions)
    news = rows(partitions * ROWS_A_PARTITION)
    options = {"path": str(log_dir.path), "subscribe": TOPIC, "startingoffsets": "earliest"}
    source = KafkalogDataSource(options)
    reader = source.streamReader(source.schema())
    first_ms, start = timed_ms(reader.initialOffset)
    limit = reader.getDefaultReadLimit()
    print(f"initialOffset of a new query over {partitions} partitions: {first_ms:.1f} ms")

    found: dict[str, list[float]] = {"latestOffset": [], "partitions": [], "together": [], "without news": []}
    for number in range(rounds + 1):
        log_dir.append(TOPIC, news, flush="os")
        latest_ms, end = timed_ms(lambda: _through_json(reader.latestOffset(_through_json(start), limit)))  # noqa: B023
        plan_ms, tasks = timed_ms(lambda: [pickle.dumps(each) for each in reader.partitions(start, end)])  # noqa: B023
        counts = [len(pickle.loads(each).ranges) for each in tasks]  # small partitions share a task
        assert sum(counts) == partitions, f"{sum(counts)} of {partitions} partitions have news"
        idle_ms, still = timed_ms(lambda: _through_json(reader.latestOffset(_through_json(end), limit)))  # noqa: B023
        assert still == end
        start = end
        if number:
            for name, took_ms in zip(found, (latest_ms, plan_ms, latest_ms + plan_ms, idle_ms), strict=True):
                found[name].append(took_ms)
    return found


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def commit(directory: Path, partitions: int, rounds: int) -> dict[str, list[float]]:
    log_dir = LogDir.create(directory / "commit")
    log_dir.create_topic(TOPIC, partitions=partitions)
    bare = BareFiles(directory / "bare", partitions)
    news = rows(partitions * COMMIT_ROWS_A_PARTITION)
    query_id, run_id = str(uuid.uuid4()), str(uuid.uuid4())
    found: dict[str, list[float]] = {"commit": [], "bare fsyncs": [], "stage": []}
    for version in range(rounds + WARM_UP_ROUNDS):
        stage_ms, staged = timed_ms(lambda: _stage(log_dir, news, partitions))
        assert len(staged) == partitions
        sizes = [each.path(log_dir.path).stat().st_size for each in staged]
        transaction = WriteTransaction(query_id, version, run_id)
        # As KafkalogStreamWriter.commit does in its worker: the root is opened by path each time.
        commit_ms, _ = timed_ms(
            lambda: LogDir.open(log_dir.path).commit_staged(staged, transaction=transaction)  # noqa: B023
        )
        bare_ms, _ = timed_ms(lambda: bare.append_and_sync(sizes))  # noqa: B023
        if version >= WARM_UP_ROUNDS:
            for name, took_ms in zip(found, (commit_ms, bare_ms, stage_ms), strict=True):
                found[name].append(took_ms)
    bare.close()
    print(f"{sum(sizes) / len(sizes):,.0f} bytes a partition and commit")
    return found


def _stage(log_dir: LogDir, news: pa.Table, partitions: int) -> list[StagedFile]:
    return stage_table(
        StagingTask(root=log_dir.path, write_id=uuid.uuid4().hex, task=0),
        TOPIC,
        news,
        partitions_count=partitions,
        partition=None,
        config=log_dir.log_config(TOPIC),
        asked_compression=None,
        batch_size_bytes=256 << 10,
        clock_ms=lambda: time.time_ns() // 1_000_000,
        fs=LOCAL,
    )


class BareFiles:
    """The least that a durable append to several files takes: write, fsync each, fsync a directory."""

    def __init__(self, directory: Path, count: int) -> None:
        directory.mkdir()
        self._directory = os.open(directory, os.O_RDONLY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._files = [os.open(directory / f"{number}.log", flags, 0o644) for number in range(count)]

    def append_and_sync(self, sizes: list[int]) -> None:
        for file, size in zip(self._files, sizes, strict=True):
            os.write(file, bytes(size))
        for file in self._files:
            os.fsync(file)
        os.fsync(self._directory)

    def close(self) -> None:
        for file in (*self._files, self._directory):
            os.close(file)


def main() -> None:
    action, directory, partitions, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    with tempfile.TemporaryDirectory(prefix=f"{action}-", dir=directory) as scratch:
        found = {"plan": plan, "commit": commit}[action](Path(scratch), partitions, rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
