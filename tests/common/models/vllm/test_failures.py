"""A vLLM that dies, hangs or loses its owner."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from transformers import PreTrainedModel

from tests.common.models.engines import run
from tests.common.models.vllm.conftest import settings
from tests.e2e.short_run import ROOT
from trinity.common.errors import DeadlineError, EngineError
from trinity.common.models.vllm_engine import VLLMEngine

pytestmark = pytest.mark.slow

OWNER = """
import asyncio, json, sys
from pathlib import Path
from tests.common.models.vllm.conftest import settings
from trinity.common.models.vllm_engine import VLLMEngine

async def main():
    made = VLLMEngine(settings(Path(sys.argv[1])))
    await made.prepare()
    print(json.dumps([worker["pid"] for worker in made.workers]), flush=True)
    await made.generate("1+1=", n=400, max_tokens=120, ignore_eos=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


def wait_until_gone(pid: int, seconds: float = 10.0) -> None:
    """Wait until a process has ended; a zombie that nobody has reaped yet has."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there after {seconds:g} s")


def test_an_update_that_breaks_off_leaves_an_engine_that_says_so_and_then_one_that_died(
    tied: tuple[Path, PreTrainedModel],
) -> None:
    pytest.importorskip("vllm")
    made = VLLMEngine(settings(tied[0], sync_timeout_s=1.0))

    async def stopped() -> int:
        await made.prepare()
        (pid,) = (worker["pid"] for worker in made.workers)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineError, match="synchronizer.sync_timeout"):
                await made.update_weights(dict(tied[1].named_parameters()), version=1)
        finally:
            os.kill(pid, signal.SIGCONT)
        for call in (made.generate("1+1="), made.logprobs([4, 5]), made.stats()):
            with pytest.raises(EngineError, match="version 1 could not be loaded.*started again") as caught:
                await call
            assert caught.value.code == "E5661"
        assert made.model_version == 0
        await made.shutdown()
        return pid

    wait_until_gone(run(stopped()))


def test_what_is_under_way_fails_at_once_when_the_process_is_killed(tied: tuple[Path, PreTrainedModel]) -> None:
    pytest.importorskip("vllm")
    made = VLLMEngine(dataclasses.replace(settings(tied[0])))

    async def killed() -> float:
        await made.prepare()
        tasks = [asyncio.ensure_future(made.generate("1+1=", n=60, max_tokens=120, ignore_eos=True)) for _ in range(2)]
        await asyncio.sleep(0.3)
        os.kill(made.workers[0]["pid"], signal.SIGKILL)
        started = time.monotonic()
        for task in tasks:
            with pytest.raises(EngineError) as caught:
                await task
            assert caught.value.code == "E5660"
        with pytest.raises(EngineError, match="started again"):
            await made.generate("1+1=")
        took = time.monotonic() - started
        await made.shutdown()
        return took

    assert run(killed()) < 10


def test_vllm_ends_with_the_process_that_started_it(tied: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    program = tmp_path / "owner.py"
    program.write_text(OWNER)
    owner = subprocess.Popen(
        [sys.executable, str(program), str(tied[0])],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    try:
        lines = (line for line in owner.stdout if line.startswith("["))
        pids = json.loads(next(lines))
        children = psutil.Process(owner.pid).children(recursive=True)
        assert pids[0] in [child.pid for child in children]
    finally:
        owner.kill()
        owner.wait(10)
    wait_until_gone(pids[0])
