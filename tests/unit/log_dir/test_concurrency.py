"""Concurrent writers, in processes and threads, lose and repeat nothing and keep order, even when some are killed."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.errors import LogDirError, ProducerFencedError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, root_lock
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, TaskFiles

# Forked, not spawned: starts at once, and tries what a fork does to threads and locks.
FORK = multiprocessing.get_context("fork")
WRITERS = 4
COMMITS = 12
PLACES = [TopicPartition(topic, partition) for topic in ("orders", "payments") for partition in range(2)]
JOIN_S = 120


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    for topic in ("orders", "payments"):
        log_dir.create_topic(topic, partitions=2, configs={"internal.segment.bytes": "3000"})
    return log_dir.path


def stage(root: Path, writer: str, sequence: int, place: TopicPartition, count: int = 3) -> StagedFile:
    """`count` records that say who wrote them, in which commit, and their number in it."""
    task = StagingTask(root=root, write_id=f"{writer}.{sequence}.{os.getpid()}", task=0)
    files = TaskFiles(task, place.topic, flushing_file_system(LOCAL, "os"))
    values = [f"{writer} {sequence} {at}".encode() for at in range(count)]
    data = encode_batch(
        [Record(offset=at, timestamp_ms=sequence, key=None, value=value) for at, value in enumerate(values)]
    )
    files.append(place.partition, data, scan_batches(data, file="staged").batches)
    (staged,) = files.finish()
    return staged


def write_all(root: Path, writer: str, commits: int = COMMITS) -> None:
    """Every commit goes to all partitions of both topics."""
    log_dir = LogDir.open(root)
    for sequence in range(commits):
        staged = [stage(root, writer, sequence, place) for place in PLACES]
        log_dir.commit_staged(staged, transaction=WriteTransaction(writer, sequence, "run") if sequence % 2 else None)


def run_processes(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int | None]:
    """Exit codes of processes that run `target`."""
    processes = [FORK.Process(target=_exit_code, args=(target, each)) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(JOIN_S)
        if process.is_alive():
            process.kill()
    return [process.exitcode for process in processes]


def _exit_code(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        target(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def sequences(root: Path, *, commits: dict[str, int]) -> None:
    """Check that each writer's first `commits` commits are in each partition once, whole and in order."""
    log_dir = LogDir.open(root)
    for place in PLACES:
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        table = log_dir.read(place.topic, partition=place.partition)
        assert table["offset"].to_pylist() == list(range(len(table)))
        for value in table["value"].to_pylist():
            writer, sequence, at = value.decode().split()
            found[writer].append((int(sequence), int(at)))
        expected = {
            writer: [(sequence, at) for sequence in range(count) for at in range(3)]
            for writer, count in commits.items()
            if count
        }
        assert found == expected, place


def test_writers_in_processes_write_each_record_once_in_order(root: Path) -> None:
    writers = [f"writer-{number}" for number in range(WRITERS)]
    assert run_processes(write_all, [(root, writer) for writer in writers]) == [0] * WRITERS
    sequences(root, commits=dict.fromkeys(writers, COMMITS))
    assert not list(root.glob("*/*.staged"))


def test_writers_in_threads_write_each_record_once_in_order(root: Path) -> None:
    log_dir = LogDir.open(root)
    errors: list[BaseException] = []

    def write(writer: str) -> None:
        try:
            for sequence in range(COMMITS):
                log_dir.commit_staged([stage(root, writer, sequence, place) for place in PLACES])
        except BaseException as error:  # for the main thread to raise
            errors.append(error)

    threads = [threading.Thread(target=write, args=(f"writer-{number}",)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert errors == []
    sequences(root, commits={f"writer-{number}": COMMITS for number in range(WRITERS)})


def replay(root: Path, incarnation: str) -> None:
    """The same versions as others commit at the same time; ends when fenced."""
    log_dir = LogDir.open(root)
    for version in range(COMMITS):
        staged = [stage(root, "query", version, place) for place in PLACES]
        try:
            log_dir.commit_staged(staged, transaction=WriteTransaction("query", version, incarnation, "skip"))
        except ProducerFencedError:
            return


@pytest.mark.parametrize("incarnations", [["run"] * 3, ["run-1", "run-2", "run-3"]], ids=["replays", "zombies"])
def test_versions_committed_concurrently_are_written_once(root: Path, incarnations: list[str]) -> None:
    assert run_processes(replay, [(root, each) for each in incarnations]) == [0] * len(incarnations)
    last = LogDir.open(root).last_version("query")
    assert last is not None
    if len(set(incarnations)) == 1:
        assert last == COMMITS - 1
    sequences(root, commits={"query": last + 1})


def test_killed_writers_leave_records_of_others_intact(root: Path) -> None:
    writers = [f"writer-{number}" for number in range(WRITERS)]
    survivors = writers[:2]
    processes = {
        writer: FORK.Process(
            target=_exit_code, args=(write_all, (root, writer, COMMITS if writer in survivors else 10_000))
        )
        for writer in writers
    }
    for process in processes.values():
        process.start()
    for number, writer in enumerate(writers[2:]):
        time.sleep(0.3 + 0.1 * number)
        process = processes[writer]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(JOIN_S)
    for writer in survivors:
        processes[writer].join(JOIN_S)
        assert processes[writer].exitcode == 0
    write_all(root, "after")
    log_dir = LogDir.open(root)
    commits = {**dict.fromkeys(survivors, COMMITS), "after": COMMITS}
    values = [value.decode().split() for value in log_dir.read("orders", partition=0)["value"].to_pylist()]
    for writer in writers[2:]:
        commits[writer] = 1 + max((int(sequence) for name, sequence, _ in values if name == writer), default=-1)
    sequences(root, commits=commits)


def test_forked_child_does_not_keep_lock(root: Path) -> None:
    with root_lock(root):
        child = FORK.Process(target=time.sleep, args=(JOIN_S,))
        child.start()
    try:
        with root_lock(root, timeout_s=JOIN_S / 2):
            pass
    finally:
        child.kill()
        child.join(JOIN_S)


def hold_as_a_broker_does(path: Path, is_held: Any, is_done: Any) -> None:
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held.set()
        is_done.wait(JOIN_S)


def test_write_to_root_locked_by_broker_is_rejected(root: Path) -> None:
    is_held, is_done = FORK.Event(), FORK.Event()
    broker = FORK.Process(target=hold_as_a_broker_does, args=(root / LOCK_FILE, is_held, is_done))
    broker.start()
    try:
        assert is_held.wait(JOIN_S)
        with pytest.raises(LogDirError, match="broker is running"):
            write_all(root, "refused", 1)
        sequences(root, commits={})
    finally:
        is_done.set()
        broker.join(JOIN_S)
    write_all(root, "writer", 1)
    sequences(root, commits={"writer": 1})


def test_waiting_writer_gets_lock_beside_busy_writers(root: Path) -> None:
    """Writers that commit one after the other release the lock in time."""
    busy = [FORK.Process(target=_exit_code, args=(write_all, (root, f"busy-{at}", 10_000))) for at in range(2)]
    for process in busy:
        process.start()
    try:
        log_dir = LogDir.open(root)
        for sequence in range(5):
            log_dir.commit_staged([stage(root, "patient", sequence, place) for place in PLACES])
        assert all(process.is_alive() for process in busy)  # they have most of their commits still before them
    finally:
        for process in busy:
            process.kill()
            process.join(JOIN_S)
