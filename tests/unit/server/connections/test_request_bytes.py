"""The bytes of requests in memory stay below their limit, and nobody keeps them from others."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest
from fakes.loop_clock import LoopClock

from pyspark_kafkalog.server.connections.request_bytes import HeldRequest, RequestBytes, ResponseBytes


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def taken(budget: RequestBytes, size_bytes: int) -> HeldRequest:
    """A request of so many bytes that has arrived."""
    held = budget.whole(size_bytes)
    await held.take(size_bytes)
    return held


class Arriving:
    """A request that arrives for `owner`."""

    def __init__(self, budget: RequestBytes, size_bytes: int, owner: str = "host") -> None:
        self.is_aborted = False
        self.held = budget.arriving((owner,), size_bytes, self._abort)
        self.arrived_bytes = 0
        self.waiting: asyncio.Task[None] | None = None

    def _abort(self) -> None:
        self.is_aborted = True

    async def receive(self, size_bytes: int) -> bool:
        """Whether there is room for so many more bytes at once."""
        self.waiting = asyncio.create_task(self.held.take(size_bytes))
        await settle()
        if not self.waiting.done():
            return False
        await self.waiting
        self.arrived_bytes += size_bytes
        self.held.arrived(self.arrived_bytes)
        return True


async def test_request_over_the_limit_waits_until_bytes_are_free() -> None:
    budget = RequestBytes(100)
    first = await taken(budget, 60)
    waiting = asyncio.create_task(taken(budget, 60))
    await settle()
    assert not waiting.done()
    first.release()
    await waiting
    assert budget.used_bytes == 60


async def test_small_request_does_not_overtake_a_large_one() -> None:
    budget = RequestBytes(100)
    first = await taken(budget, 60)
    large, small = asyncio.create_task(taken(budget, 90)), asyncio.create_task(taken(budget, 1))
    await settle()
    assert not small.done()
    first.release()
    await asyncio.gather(large, small)
    assert budget.used_bytes == 91


async def test_request_larger_than_the_limit_is_admitted_alone() -> None:
    budget = RequestBytes(100)
    large = await taken(budget, 1000)
    other = asyncio.create_task(taken(budget, 1))
    await settle()
    assert not other.done()
    large.release()
    await other


@pytest.mark.parametrize("is_granted", [False, True])
async def test_request_that_stops_waiting_takes_nothing(is_granted: bool) -> None:
    budget = RequestBytes(100)
    first, given_up = await taken(budget, 100), budget.whole(50)
    waiting = asyncio.create_task(given_up.take(50))
    await settle()
    other = asyncio.create_task(taken(budget, 100))
    await settle()
    if is_granted:  # its turn comes at the same moment
        first.release()
    waiting.cancel()
    await settle()
    given_up.release()
    if not is_granted:
        first.release()
    await other
    assert budget.used_bytes == 100


async def test_requests_of_one_owner_leave_the_half_to_others() -> None:
    budget = RequestBytes(100)
    many = [Arriving(budget, 100) for _ in range(3)]
    assert await many[0].receive(25)
    assert await many[1].receive(25)
    assert not await many[2].receive(1)
    other = Arriving(budget, 40, owner="another host")
    assert await other.receive(40)
    for each in (*many, other):
        each.held.release()
    assert budget.used_bytes == 0


async def test_oldest_of_requests_that_wait_for_each_other_arrives() -> None:
    budget = RequestBytes(100)
    first, second = Arriving(budget, 80), Arriving(budget, 80)
    assert await first.receive(25)
    assert await second.receive(25)
    assert not await second.receive(5)
    assert await first.receive(55)
    first.held.complete()
    await settle()
    assert second.waiting is not None
    assert not second.waiting.done()  # the first one is handled, and gives its bytes back then
    first.held.release()
    await second.waiting
    second.held.release()
    assert budget.used_bytes == 0


async def test_request_that_arrives_the_slowest_ends_when_another_waits() -> None:
    clock = LoopClock()
    budget = RequestBytes(200)
    slow, slower, fast = Arriving(budget, 1000), Arriving(budget, 1000), Arriving(budget, 30)
    for request in (slow, slower, fast):
        assert await request.receive(20)
    for _ in range(3):
        await clock.advance(1)
        assert await slow.receive(5)
        assert await slower.receive(2)
        assert await fast.receive(3)
    waiting = Arriving(budget, 30)
    assert not await waiting.receive(30)
    assert [each.is_aborted for each in (slow, slower, fast)] == [False, True, False]
    slower.held.release()
    await settle()
    assert waiting.waiting is not None
    assert waiting.waiting.done()


async def test_request_that_is_paused_is_not_slow() -> None:
    clock = LoopClock()
    budget = RequestBytes(100)
    handled = await taken(budget, 90)
    paused = Arriving(budget, 40)
    assert await paused.receive(10)
    assert not await paused.receive(30)
    await clock.advance(20)
    assert not paused.is_aborted
    handled.release()
    await settle()
    assert paused.waiting is not None
    assert paused.waiting.done()


async def test_records_of_one_owner_leave_half_of_the_memory_to_others() -> None:
    memory = ResponseBytes(100, lambda: 0)
    assert await memory.take(40, ("a", "User:ann"))
    waiting = asyncio.create_task(memory.take(20, ("a", "User:bob")))
    other = asyncio.create_task(memory.take(20, ("b", "User:ann")))
    await settle()
    assert not waiting.done()
    assert not other.done()
    assert await asyncio.wait_for(memory.take(50, ("b", "User:cid")), 5)
    memory.give_back(40, ("a", "User:ann"))
    assert await waiting
    memory.give_back(50, ("b", "User:cid"))
    assert await other
    memory.give_back(20, ("a", "User:bob"))
    memory.give_back(20, ("b", "User:ann"))
    assert memory.read_bytes == 0
    assert not memory.is_short


async def test_answer_that_its_client_does_not_take_ends_when_another_needs_memory() -> None:
    clock = LoopClock()
    memory = ResponseBytes(100, lambda: int(asyncio.get_running_loop().time() * 1000))
    ended: list[str] = []

    def end(host: str, size_bytes: int) -> None:
        ended.append(host)
        memory.give_back(size_bytes, (host,))

    with contextlib.ExitStack() as sending:
        for host, size_bytes in (("a", 10), ("b", 45), ("c", 45)):
            assert await memory.take(size_bytes, (host,))
            ending = functools.partial(end, host, size_bytes)
            sending.enter_context(memory.sending(size_bytes, ending, (host,)))
        waiting = asyncio.create_task(memory.take(40, ("d",)))
        await clock.advance(1)
        assert (ended, waiting.done()) == ([], False)
        await clock.advance(5)
        assert await waiting
        assert ended in (["b"], ["c"])


async def test_fetch_that_finds_no_room_in_time_reads_nothing() -> None:
    clock = LoopClock()
    memory = ResponseBytes(100, lambda: int(asyncio.get_running_loop().time() * 1000))
    assert await memory.take(90, ("a",))
    waiting = asyncio.create_task(memory.take(40, ("b",)))
    cancelled = asyncio.create_task(memory.take(40, ("b",)))
    await settle()
    cancelled.cancel()
    await clock.advance(11)
    assert await waiting is False
    assert memory.read_bytes == 90
    assert not memory.is_short
