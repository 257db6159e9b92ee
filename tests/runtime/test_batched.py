"""Calls that travel together: results, failures, cancellations and deaths reach those whose calls they are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from trinity.common.errors import CheckpointError
from trinity.runtime.base import ActorDiedError, Resources
from trinity.runtime.batched import BatchedCalls, BatchedHost, Call, Result
from trinity.runtime.process import ProcessRuntime


class Desk:
    """Answers, and counts the messages that it took to ask."""

    def __init__(self) -> None:
        self._batched = BatchedHost(self, "desk")
        self.messages: list[int] = []
        self.cancelled = 0

    async def post(self, caller: str, calls: Sequence[Call]) -> None:
        self.messages.append(len(calls))
        await self._batched.post(caller, calls)

    async def collect(self, caller: str, timeout_s: float) -> list[Result]:
        return await self._batched.collect(caller, timeout_s)

    async def double(self, value: Any, seconds: float = 0.0) -> Any:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return value * 2

    def fail(self, what: str) -> None:
        if what == "exit":
            os._exit(7)
        raise CheckpointError("nothing to load", code="E7001")

    async def hidden(self) -> Any:
        return lambda: None

    async def counts(self) -> tuple[list[int], int]:
        return self.messages, self.cancelled


def run(scenario: Any) -> Any:
    async def main() -> Any:
        runtime = ProcessRuntime()
        try:
            handle = await runtime.start(Desk, resources=Resources(own_process=True))
            return await scenario(handle, BatchedCalls(handle))
        finally:
            await runtime.close(grace_s=5.0)

    return asyncio.run(main())


def test_calls_of_one_turn_travel_in_one_message() -> None:
    async def scenario(handle: Any, calls: BatchedCalls) -> tuple[list[Any], Any]:
        answers = await asyncio.gather(*(calls.call("double", torch.tensor([float(i)])) for i in range(50)))
        again = await calls.call("double", 4, seconds=0.01)
        return [float(answer) for answer in answers] + [again], await handle.counts()

    answers, (messages, _) = run(scenario)
    assert answers == [2.0 * i for i in range(50)] + [8]
    assert messages == [50, 1]


def test_each_failure_is_that_of_its_own_call() -> None:
    async def scenario(handle: Any, calls: BatchedCalls) -> list[Any]:
        wanted = [calls.call("double", 1), calls.call("fail", "gently"), calls.call("hidden"), calls.call("nothing")]
        wanted.append(calls.call("double", lambda: None))  # arguments that cannot travel
        return await asyncio.gather(*wanted, return_exceptions=True)

    right, failed, hidden, missing, unsent = run(scenario)
    assert right == 2
    assert isinstance(failed, CheckpointError) and failed.code == "E7001"
    assert "lambda" in str(hidden) and isinstance(missing, AttributeError) and "lambda" in str(unsent)


def test_a_cancelled_wait_cancels_the_call_there_and_no_other() -> None:
    async def scenario(handle: Any, calls: BatchedCalls) -> tuple[Any, Any]:
        slow = asyncio.ensure_future(calls.call("double", 1, seconds=600.0))
        other = asyncio.ensure_future(calls.call("double", 3, seconds=1.0))
        await calls.call("double", 1)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        answer = await other
        return answer, await handle.counts()

    answer, (_, cancelled) = run(scenario)
    assert answer == 6 and cancelled == 1


@pytest.mark.parametrize("way", ["exit", "kill", "close"])
def test_all_who_wait_hear_that_the_component_is_gone(way: str) -> None:
    async def scenario(handle: Any, calls: BatchedCalls) -> list[Any]:
        waiting = [asyncio.ensure_future(calls.call("double", 1, seconds=600.0)) for _ in range(3)]
        await calls.call("double", 1)
        if way == "exit":
            waiting.append(asyncio.ensure_future(calls.call("fail", "exit")))
        elif way == "kill":
            await handle.kill()
        else:
            calls.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        if way != "close":
            ends += await asyncio.gather(calls.call("double", 1), return_exceptions=True)
        return ends

    ends = run(scenario)
    assert len(ends) >= 3 and all(isinstance(end, ActorDiedError) for end in ends)
