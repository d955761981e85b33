"""The time that a request keeps the server busy, and the quota for it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from patience import PATIENCE_S

from pyspark_kafkalog.metadata.users import REQUEST_PERCENTAGE, USER, quota_entity
from pyspark_kafkalog.server import event_loop
from pyspark_kafkalog.server.context import Session
from pyspark_kafkalog.server.event_loop import RequestTime, Timed, timed_work
from pyspark_kafkalog.server.security.quotas import ClientQuotas


def test_steps_and_work_in_threads_are_counted_and_waiting_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, has_ended = 100.0, threading.Event()
    monkeypatch.setattr(event_loop.time, "perf_counter", lambda: now_s)

    def pass_time(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def work() -> None:
        assert has_ended.wait(PATIENCE_S)
        pass_time(3)

    async def handler() -> str:
        pass_time(1)
        loop = asyncio.get_running_loop()
        loop.call_soon(pass_time, 20)
        await asyncio.sleep(0)
        loop.call_soon(has_ended.set)  # the step, whose time would else be counted with that of the work
        await loop.run_in_executor(None, timed_work(work))
        pass_time(5)
        return "done"

    spent = RequestTime()

    async def main() -> str:
        return await Timed(handler(), spent)

    assert asyncio.run(main()) == "done"
    assert spent.seconds == 1 + 3 + 5


def test_error_of_a_handler_and_cancellation_pass_through() -> None:
    seen = []

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("wrong")

    async def waiting() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def timed_wait() -> None:
        await Timed(waiting(), RequestTime())

    async def main() -> None:
        with pytest.raises(ValueError, match="wrong"):
            await Timed(failing(), RequestTime())
        task = asyncio.create_task(timed_wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_time_beyond_the_quota_throttles_for_a_second_at_most_and_the_next_request_again() -> None:
    quotas = {quota_entity([(USER, None)]): {REQUEST_PERCENTAGE: 10.0}}
    rates = ClientQuotas(lambda: quotas, monotonic_ms=lambda: 0)
    client = Session("10.0.0.1", 1, principal="User:ann")
    assert rates.throttle(client, "app", REQUEST_PERCENTAGE, 100) == 0  # a tenth of ten seconds
    assert rates.throttle(client, "app", REQUEST_PERCENTAGE, 5) == 500
    assert rates.throttle(client, "app", REQUEST_PERCENTAGE, 500) == 1_000
    assert rates.throttle(client, "app", REQUEST_PERCENTAGE, 0) == 1_000
    assert client.mute_until_ms == 1_000
