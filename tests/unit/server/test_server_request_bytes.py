"""The bytes of requests in memory stay below their limit."""

from __future__ import annotations

import asyncio

from pyspark_kafkalog.server.connections.request_bytes import RequestBytes


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_request_over_the_limit_waits_until_bytes_are_free() -> None:
    async def main() -> None:
        budget = RequestBytes(100)
        await budget.acquire(60)
        waiting = asyncio.create_task(budget.acquire(60))
        await settle()
        assert not waiting.done()
        budget.release(60)
        await waiting
        assert budget.used_bytes == 60

    asyncio.run(main())


def test_small_request_does_not_overtake_a_large_one() -> None:
    async def main() -> None:
        budget = RequestBytes(100)
        await budget.acquire(60)
        large, small = asyncio.create_task(budget.acquire(90)), asyncio.create_task(budget.acquire(1))
        await settle()
        assert not small.done()
        budget.release(60)
        await asyncio.gather(large, small)
        assert budget.used_bytes == 91

    asyncio.run(main())


def test_request_larger_than_the_limit_is_admitted_alone() -> None:
    async def main() -> None:
        budget = RequestBytes(100)
        await budget.acquire(1000)
        other = asyncio.create_task(budget.acquire(1))
        await settle()
        assert not other.done()
        budget.release(1000)
        await other

    asyncio.run(main())


def test_request_that_stops_waiting_takes_nothing() -> None:
    async def main() -> None:
        budget = RequestBytes(100)
        await budget.acquire(100)
        given_up, other = asyncio.create_task(budget.acquire(50)), asyncio.create_task(budget.acquire(100))
        await settle()
        given_up.cancel()
        await settle()
        budget.release(100)
        await other
        assert budget.used_bytes == 100

    asyncio.run(main())


def test_turn_that_comes_as_the_request_is_cancelled_is_passed_on() -> None:
    async def main() -> None:
        budget = RequestBytes(100)
        await budget.acquire(100)
        cancelled, other = asyncio.create_task(budget.acquire(100)), asyncio.create_task(budget.acquire(100))
        await settle()
        budget.release(100)
        cancelled.cancel()
        await other
        assert budget.used_bytes == 100

    asyncio.run(main())
