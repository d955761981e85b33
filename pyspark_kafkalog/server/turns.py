"""Loops over what a request names, in turns with other requests.

A request may name a hundred thousand partitions. What a handler does for each takes microseconds, and the event loop
serves no other client meanwhile. So a handler of such a request lets others come first after some milliseconds: between
two steps anything may happen, and what a step needs of the state that others change is looked up in that step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TURN_S: Final = 0.005
#: So many coroutines are awaited at the same time.
_TOGETHER_MAX: Final = 200


class Turn:
    """The time that a request takes in the event loop: others come first when it has had some milliseconds.

    With `is_whole` it has all the time: the request is so short that other clients do not wait for it.
    """

    __slots__ = ("_end_s", "_is_whole")

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._end_s = time.perf_counter() + _TURN_S

    async def step(self) -> None:
        if not self._is_whole and time.perf_counter() > self._end_s:
            await asyncio.sleep(0)
            self._end_s = time.perf_counter() + _TURN_S


async def in_turns(elements: Iterable[T]) -> AsyncIterator[T]:
    """The elements, after each of which others may come first."""
    turn = Turn()
    for each in elements:
        yield each
        await turn.step()


async def gather_in_turns(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of the coroutines, as of asyncio.gather; a limited number of them runs at the same time.

    `coroutines` is read as they begin. The first error is raised, and the coroutines after it do not begin.
    """
    remaining = iter(coroutines)
    results: list[T] = []
    while some := list(islice(remaining, _TOGETHER_MAX)):
        results += await asyncio.gather(*some)
    return results


async def results_in_turns(futures: Sequence[asyncio.Future[T]]) -> list[T | BaseException]:
    """The results of the futures, in order, or their errors. If this is cancelled, the futures are too.

    Most of them are done at the same time, and one after the other costs less than gathering them.
    """
    results: list[T | BaseException] = []
    try:
        for at, each in enumerate(futures, 1):
            try:
                results.append(await each)
            except Exception as error:
                results.append(error)
            if at % _TOGETHER_MAX == 0:
                await asyncio.sleep(0)
    except asyncio.CancelledError:
        for each in futures:
            if not each.cancel() and not each.cancelled():
                each.exception()  # it has been seen
        raise
    return results
