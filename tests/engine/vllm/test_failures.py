"""A vLLM whose process stops, and whose owner is killed; it computes in bfloat16, as `auto` means on most machines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import PreTrainedModel

from tests.e2e.short_run import ROOT
from tests.engine.vllm.conftest import settings
from tests.runtime.test_contract import gone_soon
from tests.tiny import tiny_model
from trinity.common.errors import EngineError, EnvironmentProblem
from trinity.engine.vllm.core_watch import ProbeTimes
from trinity.engine.vllm.engine import VLLMEngine
from trinity.runtime.scratch import JOB_ENV_VAR, sweep

pytestmark = pytest.mark.slow

OWNER = """
import asyncio, dataclasses, json, sys
from pathlib import Path
from tests.engine.vllm.conftest import settings
from trinity.common.errors import TrinityError
from trinity.common.models.weights import read_tensors
from trinity.engine.vllm.engine import VLLMEngine

def tell(value):
    print(json.dumps(value), flush=True)

async def fate(call):
    try:
        await call
    except TrinityError as error:
        return str(error)

async def main(folder):
    made = VLLMEngine(settings(folder, sync_timeout_s=1.0, dtype="bfloat16"))
    await made.prepare()
    tell([worker["pid"] for worker in made.workers])
    sys.stdin.readline()
    weights = dict(read_tensors(folder))
    calls = [made.update_weights(weights, version=1), made.generate("1+1="), made.logprobs([4, 5]), made.stats()]
    tell([await fate(call) for call in calls] + [made.model_version])
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
"""


def wait_until_gone(pid: int, seconds: float = 10.0) -> None:
    """Wait until a process has ended; a zombie that nobody has reaped yet has."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there after {seconds:g} s")


@pytest.fixture
def owner(tied: tuple[Path, PreTrainedModel], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns an engine; killed at the end."""
    pytest.importorskip("vllm")
    program = tmp_path / "owner.py"
    program.write_text(OWNER)
    process = subprocess.Popen(
        [sys.executable, str(program), str(tied[0])],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", JOB_ENV_VAR: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process
    process.kill()
    process.communicate(timeout=10)


def scratch_of(job: Path) -> Path:
    """Return the folder that a process of a job has for what it leaves on the machine."""
    for lock in itertools.chain(*(Path(base).glob("trinity-*/lock") for base in (tempfile.gettempdir(), "/tmp"))):
        with contextlib.suppress(FileNotFoundError):  # of others, who end meanwhile
            if str(job) in lock.read_text():
                return lock.parent
    raise AssertionError(f"no folder of {job}")


def told(process: subprocess.Popen[str]) -> list[Any]:
    """Return the next list that the owner tells."""
    assert process.stdout is not None
    return json.loads(next(line for line in process.stdout if line.startswith("[") and line.endswith("]\n")))


@pytest.mark.nightly
def test_a_process_that_is_starting_ends_with_its_owner(owner: subprocess.Popen[str]) -> None:
    """It would wait for ever for an answer of the owner."""
    core = None
    while core is None:
        assert owner.poll() is None
        for child in psutil.Process(owner.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # vLLM asks programs about the machine, which end at once
                core = child if "EngineCore" in "".join(child.cmdline()) else core
        time.sleep(0.01)
    owner.kill()
    try:
        wait_until_gone(core.pid, 60)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            core.kill()


@pytest.mark.nightly
def test_a_process_that_stops_in_an_update_makes_the_engine_unusable_and_ends_with_its_owner(
    owner: subprocess.Popen[str], tmp_path: Path
) -> None:
    (worker,) = told(owner)
    assert worker in [child.pid for child in psutil.Process(owner.pid).children(recursive=True)]
    os.kill(worker, signal.SIGSTOP)
    assert owner.stdin is not None
    owner.stdin.write("go\n")
    owner.stdin.flush()
    update, *later, version = told(owner)
    assert "timed out after 1 s" in update and "synchronizer.sync_timeout" in update
    assert len(later) == 3
    for error in later:
        assert error.startswith("[E5661] weights of version 1 could not be loaded") and "started again" in error
    assert version == 0
    scratch = scratch_of(tmp_path)
    sweep()
    assert any(file.is_socket() for file in scratch.iterdir()), "its owner lives"
    owner.kill()
    try:
        wait_until_gone(worker)  # it is stopped and hears of nothing
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    owner.wait(timeout=10)
    sweep()
    assert not scratch.exists()


def test_heads_without_a_kernel_end_the_start_with_what_to_write_instead(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    tiny_model(tmp_path, "llama", head_dim=16)
    made = VLLMEngine(settings(tmp_path))
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(EnvironmentProblem, match=f"vLLM did not start with {tmp_path}") as failure:
        asyncio.run(made.prepare())
    assert failure.value.code == "E3222" and "engine_type=torch" in str(failure.value)
    # Python's own tracker of shared memory lives as long as this process.
    left = [each for each in set(psutil.Process().children(recursive=True)) - before if not is_tracker(each)]
    assert not psutil.wait_procs(left, timeout=20)[1]


def is_tracker(process: psutil.Process) -> bool:
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


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
