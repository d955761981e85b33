"""Coroutines that begin at once, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from pyspark_kafkalog.server.event_loop import Eager, PromptFuture


async def ends(ended: list[Any], coroutine: Coroutine[Any, Any, str]) -> Eager[str]:
    """The coroutine when it has ended, which must be within some turns of the loop."""
    eager = Eager(coroutine, ended.append)
    for _ in range(10):
        await asyncio.sleep(0)
    assert eager.is_done
    assert ended == [eager]
    return eager


async def test_everything_before_the_first_wait_has_happened_when_it_is_made() -> None:
    steps: list[str] = []
    gate = asyncio.get_running_loop().create_future()

    async def work() -> str:
        steps.append("begun")
        return str(await gate)

    ended: list[Any] = []
    eager = Eager(work(), ended.append)
    assert (steps, eager.is_done, ended) == (["begun"], False, [])
    gate.set_result("result")
    await asyncio.sleep(0)
    assert (eager.result(), ended) == ("result", [eager])


async def test_coroutine_that_does_not_wait_has_ended_when_it_is_made() -> None:
    async def work() -> str:
        return "result"

    ended: list[Any] = []
    eager = Eager(work(), ended.append)
    assert (eager.result(), ended) == ("result", [eager])


async def test_turns_given_to_others_and_errors_of_what_is_awaited_reach_the_coroutine() -> None:
    failing = asyncio.get_running_loop().create_future()

    async def work() -> str:
        await asyncio.sleep(0)
        try:
            await failing
        except ValueError as error:
            await asyncio.sleep(0)
            return str(error)
        return "no error"

    asyncio.get_running_loop().call_soon(failing.set_exception, ValueError("refused"))
    assert (await ends([], work())).result() == "refused"


async def test_error_is_raised_by_the_result() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        raise ValueError("a defect")

    eager = await ends([], work())
    with pytest.raises(ValueError, match="a defect"):
        eager.result()


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda gate: gate.set_result("result"), "result"),
        (lambda gate: gate.set_exception(KeyError("failed")), "failed"),
        (lambda gate: gate.cancel(), "cancelled"),
    ],
    ids=["result", "error", "cancelled"],
)
async def test_coroutine_goes_on_in_the_call_that_ends_a_prompt_future(
    end: Callable[[PromptFuture[str]], None], outcome: str
) -> None:
    gate: PromptFuture[str] = PromptFuture()
    request: ContextVar[str] = ContextVar("request")

    async def work() -> tuple[str, str]:
        request.set("its own")
        try:
            return await gate, request.get()
        except KeyError as error:
            return error.args[0], request.get()
        except asyncio.CancelledError:
            return "cancelled", request.get()

    ended: list[Any] = []
    eager = Eager(work(), ended.append)
    request.set("of who ends it")
    assert not eager.is_done
    end(gate)
    assert eager.result() == (outcome, "its own")
    assert ended == [eager]
    assert request.get() == "of who ends it"


async def test_tasks_wait_for_a_prompt_future_as_for_any_other() -> None:
    gate: PromptFuture[int] = PromptFuture()

    async def work() -> int:
        return await gate

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set_result(7)
    assert not any(each.done() for each in tasks)
    assert await asyncio.gather(*tasks) == [7, 7, 7]
