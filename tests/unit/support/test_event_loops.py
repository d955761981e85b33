"""Tests of the event loops of simulations (tests/support/simulations/event_loops.py)."""

from __future__ import annotations

import asyncio
import random

from simulations.event_loops import SimulatedTime


def test_task_of_a_killed_process_ends_before_its_loop_is_closed() -> None:
    ends = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(loop.is_closed())
            loop.call_soon(ends.clear)  # no step of a killed process runs any more

    time = SimulatedTime(random.Random(1))
    loop = time.new_loop()
    task = loop.create_task(waits())
    loop.step()
    time.kill(loop)
    time.close()
    assert ends == [False]
    assert not task.done()
