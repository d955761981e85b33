"""Event loops as the processes of a simulation: one runs at a time, for one step, and none of them waits in real time.

    time = SimulatedTime(random.Random(seed))
    server, client = time.new_loop(), time.new_loop()
    client.create_task(...)
    time.run(until=lambda: ..., seconds_max=600)

A step runs what is ready in one loop, as an iteration of asyncio does. Which loop steps next is drawn. When no loop has
anything to do, the time moves on to the next timer. A loop that is frozen (SIGSTOP) takes no steps until it continues;
what was sent to it waits. One that is killed takes none any more.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """One process. What fails in it without being awaited is in `failures` of its time."""

    def __init__(self, time: SimulatedTime) -> None:
        self._time = time
        self._due_s: list[float] = []
        self.has_work = False
        self.frozen_until_s = 0.0
        super().__init__()
        self.set_exception_handler(lambda _, context: time.failures.append(context))

    def time(self) -> float:
        return self._time.now_s

    def call_soon(self, *arguments: Any, **options: Any) -> asyncio.Handle:
        self.has_work = True
        return super().call_soon(*arguments, **options)

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> asyncio.Handle:
        self.has_work = True
        return super().call_soon_threadsafe(*arguments, **options)

    def call_at(self, when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        heapq.heappush(self._due_s, when)
        return super().call_at(when, *arguments, **options)

    def next_step_s(self) -> float:
        """When it has something to do; infinity if never."""
        due_s = self._due_s[0] if self._due_s else float("inf")
        return max(self.frozen_until_s, self._time.now_s if self.has_work else due_s)

    def step(self) -> None:
        while self._due_s and self._due_s[0] <= self._time.now_s:
            heapq.heappop(self._due_s)
        self.has_work = False
        super().call_soon(self.stop)
        self.run_forever()


class SimulatedTime:
    """The time of all loops, in seconds, and their turns."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_s = 1000.0
        self.loops: list[SimulatedLoop] = []
        self.failures: list[dict[str, Any]] = []
        self._killed: list[SimulatedLoop] = []

    def new_loop(self) -> SimulatedLoop:
        self.loops.append(SimulatedLoop(self))
        return self.loops[-1]

    def kill(self, loop: SimulatedLoop) -> None:
        self.loops.remove(loop)
        self._killed.append(loop)

    def run(self, *, until: Callable[[], bool], seconds_max: float) -> None:
        """Let the loops take steps until it is so. Raises AssertionError if it takes too long, or something failed."""
        end_s = self.now_s + seconds_max
        while not until():
            assert not self.failures, self.failures[0]
            due = [(each.next_step_s(), each) for each in self.loops]
            next_s = min(when for when, _ in due)
            assert next_s <= end_s, f"not within {seconds_max:g} s"
            self.now_s = max(self.now_s, next_s)
            self.rng.choice([each for when, each in due if when <= self.now_s]).step()

    def close(self) -> None:
        """End all loops with the tasks in them.

        A task that has not ended is closed while its loop is open: garbage collection would do it later, and what the
        task does at its end would fail in a closed loop.
        """
        for loop in (*self.loops, *self._killed):
            loop.set_exception_handler(lambda *_: None)
            for task in asyncio.all_tasks(loop):
                setattr(task, "_log_destroy_pending", False)  # noqa: B010
                coroutine = task.get_coro()
                assert inspect.iscoroutine(coroutine)
                coroutine.close()
            loop.close()


class LateExecutor(Executor):
    """Runs work in the loop itself, a little later, as a thread would."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, *, seconds_max: float) -> None:
        self._loop = loop
        self._rng = rng
        self._seconds_max = seconds_max

    def submit(self, work: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        self._loop.call_later(self._rng.uniform(0, self._seconds_max), run)
        return future
