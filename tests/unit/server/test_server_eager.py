"""Coroutines that begin at once, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pyspark_kafkalog.server.eager import Eager


async def ends(ended: list[Any], coroutine: Coroutine[Any, Any, str]) -> Eager[str]:
    """The coroutine when it has ended, which must be within some turns of the loop."""
    eager = Eager(coroutine, ended.append)
    for _ in range(10):
        await asyncio.sleep(0)
    assert eager.is_done
    assert ended == [eager]
    return eager


def test_everything_before_the_first_wait_has_happened_when_it_is_made() -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_coroutine_that_does_not_wait_has_ended_when_it_is_made() -> None:
    async def main() -> None:
        async def work() -> str:
            return "result"

        ended: list[Any] = []
        eager = Eager(work(), ended.append)
        assert (eager.result(), ended) == ("result", [eager])

    asyncio.run(main())


def test_turns_given_to_others_and_errors_of_what_is_awaited_reach_the_coroutine() -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_error_is_raised_by_the_result() -> None:
    async def main() -> None:
        async def work() -> str:
            await asyncio.sleep(0)
            raise ValueError("a defect")

        eager = await ends([], work())
        with pytest.raises(ValueError, match="a defect"):
            eager.result()

    asyncio.run(main())
