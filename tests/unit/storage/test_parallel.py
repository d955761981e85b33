"""Work in threads: results in order, errors raised after all tasks end, forked children with threads of their own."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest
from patience import PATIENCE_S

from pyspark_kafkalog.storage.filesystem import in_parallel


def test_results_are_in_order_of_tasks() -> None:
    def late(number: int) -> int:
        time.sleep(0.002 * (20 - number) / 20)
        return number

    assert in_parallel([partial(late, number) for number in range(20)]) == list(range(20))
    assert in_parallel([]) == []


@pytest.mark.parametrize("failing", [0, 3])
def test_error_is_raised_after_all_other_tasks_end(failing: int) -> None:
    ended: list[int] = []

    def work(number: int) -> None:
        if number == failing:
            raise OSError(number)
        time.sleep(0.02)
        ended.append(number)

    with pytest.raises(OSError, match=str(failing)):
        in_parallel([partial(work, number) for number in range(6)])
    assert len(ended) == 5


def test_forked_child_runs_tasks_in_threads_of_its_own() -> None:
    in_parallel([threading.get_ident] * 4)
    child = os.fork()
    if child == 0:
        os._exit(0 if in_parallel([os.getpid] * 4) == [os.getpid()] * 4 else 1)
    deadline = time.monotonic() + PATIENCE_S
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    assert ended == (child, 0)
