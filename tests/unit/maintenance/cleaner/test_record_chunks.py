"""`work_ahead` returns results in order, loses none, limits what it reads ahead, and reuses only free memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pyspark_kafkalog.maintenance.cleaner.record_chunks import QUEUE_ITEMS, BufferPool, Turns, work_ahead


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_results_are_in_order_of_items(threads: int) -> None:
    def work(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert list(work_ahead(iter(range(30)), work, threads=threads)) == [item * item for item in range(30)]


@pytest.mark.parametrize("threads", [0, 2])
def test_results_before_failed_item_are_returned(threads: int) -> None:
    def work(item: int) -> int:
        if item == 5:
            raise ValueError("five")
        return item

    found: list[int] = []
    with pytest.raises(ValueError, match="five"):
        found.extend(work_ahead(iter(range(20)), work, threads=threads))
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("threads", [0, 2])
def test_items_requested_ahead_are_limited(threads: int) -> None:
    asked = 0

    def items() -> Iterator[int]:
        nonlocal asked
        for item in range(50):
            asked += 1
            yield item

    for done, _ in enumerate(work_ahead(items(), int, threads=threads)):
        assert asked <= done + 1 + (threads + QUEUE_ITEMS if threads else 0)


def test_work_ends_when_caller_closes() -> None:
    running = threading.Semaphore(0)
    ended = 0

    def work(item: int) -> int:
        nonlocal ended
        running.release()
        time.sleep(0.02)
        ended += 1
        return item

    results = work_ahead(iter(range(50)), work, threads=2)
    next(results)
    results.close()
    ended_then = ended
    time.sleep(0.05)
    assert ended == ended_then <= 4


def test_part_in_turn_is_done_in_turn() -> None:
    turns = Turns()
    order: list[int] = []

    def work(item: int) -> int:
        time.sleep(0.003 * (item % 3))
        turns.wait(item)
        order.append(item)
        turns.done(item)
        return item

    assert list(work_ahead(iter(range(20)), work, threads=3)) == list(range(20)) == order


def test_item_that_fails_before_its_turn_does_not_block_others() -> None:
    turns = Turns()

    def work(item: int) -> int:
        try:
            if item == 1:
                raise ValueError("one")
            turns.wait(item)
        finally:
            turns.done(item)
        return item

    with pytest.raises(ValueError, match="one"):
        list(work_ahead(iter(range(10)), work, threads=3))


def test_pool_shares_no_memory_and_keeps_only_buffers_of_its_size() -> None:
    pool = BufferPool(100)
    first, second = pool.take(10), pool.take(100)
    assert len(first) == len(second) == 100
    assert not np.shares_memory(first, second)
    pool.give(first[:7])
    assert pool.take(50) is first
    large = pool.take(101)
    pool.give(large)
    assert pool.take(0) is not large
