"""A vLLM whose process is killed; the last tests of the folder, as the engine must be started again after them."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.common.models.engines import run
from trinity.common.errors import EngineError
from trinity.common.models.vllm_engine import VLLMEngine

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
