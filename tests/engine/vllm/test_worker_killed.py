"""A vLLM whose process is killed or stopped; the last tests of the folder, as the engine does not outlive them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.engine.engines import run
from tests.engine.vllm.conftest import settings
from tests.runtime.test_contract import gone_soon
from trinity.common.errors import EngineError
from trinity.engine.vllm.core_watch import ProbeTimes
from trinity.engine.vllm.engine import VLLMEngine

pytestmark = pytest.mark.slow


def test_what_is_under_way_fails_at_once_when_the_process_is_killed(served: VLLMEngine) -> None:
    async def killed() -> float:
        tasks = [asyncio.ensure_future(served.generate("1+1=", n=60, max_tokens=120, ignore_eos=True)) for _ in "ab"]
        await asyncio.sleep(0.3)
        os.kill(served.workers[0]["pid"], signal.SIGKILL)
        started = time.monotonic()
        for task in tasks:
            with pytest.raises(EngineError) as caught:
                await task
            assert caught.value.code == "E5660"
        with pytest.raises(EngineError, match="started again"):
            await served.generate("1+1=")
        return time.monotonic() - started

    assert run(killed()) < 10


def test_a_process_that_is_stopped_ends_what_waits_for_it_and_the_engine(tied: tuple[Path, PreTrainedModel]) -> None:
    """Samples under way, and an update whose own deadline is far away."""

    made = VLLMEngine(settings(tied[0], sync_timeout_s=3600.0, timeout_s=1800.0, probes=ProbeTimes(0.2, 3.0, 600)))
    asyncio.run(made.prepare())

    async def stopped() -> list[str | None]:
        (pid,) = (worker["pid"] for worker in made.workers)
        assert len(await made.generate("1+1=", n=2, max_tokens=8)) == 2, "probes disturb nothing"
        calls: list[Awaitable[Any]] = [made.generate("1+1=", n=60, max_tokens=120, ignore_eos=True) for _ in "ab"]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.3)
        os.kill(pid, signal.SIGSTOP)
        tasks.append(asyncio.ensure_future(made.update_weights(dict(tied[1].named_parameters()), version=1)))
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(f"process {pid} stands still" in str(error) for error in errors), errors
        with pytest.raises(EngineError) as probed:
            await made.stats()
        await made.shutdown()
        assert gone_soon(pid)
        return [getattr(error, "code", None) for error in (*errors, probed.value)]

    assert asyncio.run(asyncio.wait_for(stopped(), 240)) == ["E5663"] * 4
