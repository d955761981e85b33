"""Waiting requests are woken by commits to their partitions, of this process and of others."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from patience import PATIENCE_S

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.server.committer import PartitionWaiters, RootWatcher
from pyspark_kafkalog.storage.names import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


async def test_commit_wakes_the_requests_that_wait_for_its_partitions() -> None:
    waiters = PartitionWaiters()
    both, other = waiters.subscribe(frozenset({A0, A1})), waiters.subscribe(frozenset({B0}))
    waiters.notify(frozenset({A1}))
    assert both.is_set()
    assert not other.is_set()
    waiters.notify(None)
    assert other.is_set()


async def test_request_that_has_ended_its_wait_is_forgotten() -> None:
    waiters = PartitionWaiters()
    event = waiters.subscribe(frozenset({A0}))
    waiters.unsubscribe(event)
    waiters.unsubscribe(event)
    waiters.notify(frozenset({A0}))
    assert not event.is_set()
    assert (len(waiters), waiters.topics()) == (0, ())


async def test_root_is_refreshed_only_while_a_request_waits(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("a")
    waiters = PartitionWaiters()
    root = open_root(tmp_path / "log")
    with ThreadPoolExecutor(1) as executor:
        watcher = RootWatcher(root, waiters, executor)
        await watcher.start()
        first = waiters.subscribe(frozenset({A0}))
        await asyncio.wait_for(first.wait(), PATIENCE_S)
        waiters.unsubscribe(first)
        known = root.version
        LogDir.open(tmp_path / "log").append("a", pa.table({"value": ["1"]}))
        await asyncio.sleep(0.03)
        assert root.version == known
        second = waiters.subscribe(frozenset({A0}))
        await asyncio.wait_for(second.wait(), PATIENCE_S)
        assert root.version != known
        await watcher.stop()


async def test_commit_of_another_process_wakes_only_those_who_wait_for_it(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("a")
    log_dir.create_topic("b")
    waiters = PartitionWaiters()
    with ThreadPoolExecutor(1) as executor:
        watcher = RootWatcher(open_root(tmp_path / "log"), waiters, executor)
        await watcher.start()
        on_a, on_b = waiters.subscribe(frozenset({A0})), waiters.subscribe(frozenset({B0}))
        await asyncio.wait_for(
            asyncio.gather(on_a.wait(), on_b.wait()), PATIENCE_S
        )  # the first look knows no states yet
        on_a.clear()
        on_b.clear()
        LogDir.open(tmp_path / "log").append("a", pa.table({"value": ["1"]}))
        await asyncio.wait_for(on_a.wait(), PATIENCE_S)
        assert not on_b.is_set()
        await watcher.stop()
