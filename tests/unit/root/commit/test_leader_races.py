"""Two processes of servers and one that commits staged files race for one partition, and some are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.leader_writers import Served, append, batch
from patience import wait_until

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.root.commit.changes import CommitUnit
from pyspark_kafkalog.storage.filesystem import time_ms

FORK = multiprocessing.get_context("fork")
JOIN_S = 60
COMMITS = 25


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.open_or_create(tmp_path / "root")
    log_dir.create_topic("a", 1, {"internal.segment.bytes": "4000", "index.interval.bytes": "200"})
    log_dir.append("a", pa.table({"value": [b"first"]}))  # loads the kernels before the fork
    return log_dir.path


def produce(root: Path, producer_id: int, first: int, commits: int, made: Any = None) -> None:
    """Two batches of an idempotent producer a commit, from the sequence `first` on. `made.value` counts the commits."""
    server = Served(root, now_ms=time_ms())
    for sequence in range(first, first + 2 * commits, 2):
        units = [CommitUnit.of(append(one(producer_id, at, server.now_ms))) for at in (sequence, sequence + 1)]
        for result in server.commit(*units):
            if isinstance(result, KafkalogError):
                raise result
        if made is not None:
            made.value += 1


def one(producer_id: int, sequence: int, now_ms: int) -> bytes:
    value = b"%d %d" % (producer_id, sequence)
    return batch([value], at_ms=now_ms, producer=(producer_id, 0, sequence))


def write(root: Path, commits: int) -> None:
    log_dir = LogDir.open(root)
    for number in range(commits):
        log_dir.append("a", pa.table({"value": [b"spark %d" % number]}))


def start(target: Callable[..., None], *arguments: object) -> multiprocessing.Process:
    process = FORK.Process(target=_run, args=(target, arguments))
    process.start()
    return process


def _run(target: Callable[..., None], arguments: tuple[object, ...]) -> None:
    try:
        target(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def by_writer(root: Path) -> dict[bytes, list[int]]:
    """The numbers that each writer stored, in the order of the log."""
    values = LogDir.open(root).read("a")["value"].to_pylist()
    split = [value.split() for value in values[1:]]
    return {writer: [int(number) for name, number in split if name == writer] for writer in {each[0] for each in split}}


@pytest.mark.slow
def test_servers_and_a_spark_writer_store_each_record_once_in_order(root: Path) -> None:
    running = [start(produce, root, 1, 0, COMMITS), start(produce, root, 2, 0, COMMITS), start(write, root, COMMITS)]
    for process in running:
        process.join(JOIN_S)
        assert process.exitcode == 0
    found = by_writer(root)
    assert found == {b"1": list(range(2 * COMMITS)), b"2": list(range(2 * COMMITS)), b"spark": list(range(COMMITS))}


@pytest.mark.slow
def test_producer_whose_server_is_killed_goes_on_at_another_and_stores_each_record_once(root: Path) -> None:
    """The producer does not know what its last server has stored, so it sends the unanswered batches again."""
    beside = start(produce, root, 2, 0, 4 * COMMITS)
    server = Served(root, now_ms=time_ms())
    sequence = 0
    while sequence < 60:
        made = FORK.RawValue("i", 0)  # without a lock, which the victim might hold when it dies
        victim = start(produce, root, 1, sequence, 1_000, made)
        enough = random.randrange(4)
        wait_until(lambda: made.value >= enough or not victim.is_alive())  # noqa: B023
        time.sleep(random.uniform(0, 0.05))
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join(JOIN_S)
        stored = by_writer(root).get(b"1", [])
        # What was in flight: the last commit that might have been stored, and the one after it.
        for at in range(max(0, len(stored) - 2), len(stored) + 2):
            result = server.append(append(one(1, at, server.now_ms)))
            assert not isinstance(result, KafkalogError), result
            assert result.is_duplicate == (at < len(stored))
        sequence = len(stored) + 2
    beside.join(JOIN_S)
    assert beside.exitcode == 0
    server.writer.close()
    found = by_writer(root)
    assert found[b"1"] == list(range(len(found[b"1"])))
    assert found[b"2"] == list(range(8 * COMMITS))
    assert len(found[b"1"]) >= 60
