"""An engine in a real process that is stopped while it answers; `tests/e2e/test_engines.py` kills them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import tiny_model
from trinity.common.config.model import ModelConfig
from trinity.engine.router.engine_pool import EnginePoolSettings
from trinity.engine.router.remote import RemoteEngine, RuntimeEngines
from trinity.engine.router.router import EngineRouter
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine
from trinity.runtime.base import Resources
from trinity.runtime.local import LocalRuntime

pytestmark = pytest.mark.slow

PROBES = {"probe_first_wait_s": 0.3, "probe_interval_s": 0.3, "probe_timeout_s": 1.0}


@asynccontextmanager
async def engines(folder: Path) -> AsyncIterator[tuple[EngineRouter, dict[str, torch.Tensor]]]:
    """Yield a router over two engine processes, and weights for them."""
    model = tiny_model(folder / "model")
    config = ModelConfig.model_validate({"model_path": str(folder / "model"), "max_model_len": 256})
    settings = EngineSettings(model=config, dtype="float32", device="cpu", timeout_s=60.0, max_num_seqs=16)
    runtime = LocalRuntime()
    source = RuntimeEngines(
        runtime,
        TorchEngine,
        settings,
        name="engine",
        resources=Resources(own_process=True),
        timeout_s=60.0,
        sync_timeout_s=60.0,
    )
    router = EngineRouter(source, EnginePoolSettings(2, recovery_timeout_s=60.0, **PROBES), timeout_s=60.0)
    await router.prepare()
    try:
        yield router, {name: tensor * 0.5 for name, tensor in model.state_dict().items()}
    finally:
        await router.shutdown()
        await runtime.close()


def pid_of(router: EngineRouter, index: int) -> int:
    engine = router._pool.slots[index].engine
    assert isinstance(engine, RemoteEngine)
    return engine.handle.pid


async def until_both_serve(router: EngineRouter) -> None:
    while len(router._pool.serving()) < 2:
        await asyncio.sleep(0.02)


async def answers_while(router: EngineRouter, number: int, *, what: signal.Signals, engine: int) -> tuple[Any, float]:
    """Return the answers of sixteen requests, during which an engine gets a signal, and the seconds they took."""
    started = time.monotonic()
    calls = [
        asyncio.ensure_future(
            router.generate(f"{task}+", max_tokens=240, ignore_eos=True, sample_ids=[f"{number}/{task}/0/0"])
        )
        for task in range(16)
    ]
    await asyncio.sleep(0.05)
    os.kill(pid_of(router, engine), what)
    answers = await asyncio.gather(*calls)
    return [(e.info["model_version"], e.tokens.tolist()) for (e,) in answers], time.monotonic() - started


def test_requests_survive_an_engine_that_hangs_and_it_comes_back_with_the_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> dict[str, Any]:
        async with engines(tmp_path) as (router, weights):
            seen: dict[str, Any] = {}
            await router.update_weights(weights, version=4)
            seen["whole"], _ = await answers_while(router, 1, what=signal.SIGCONT, engine=0)
            seen["stopped"], seen["seconds"] = await answers_while(router, 1, what=signal.SIGSTOP, engine=1)
            seen["without"] = await router.stats()
            await until_both_serve(router)
            seen["again"], _ = await answers_while(router, 2, what=signal.SIGCONT, engine=0)
            return seen | {"end": await router.stats()}

    seen = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert re.search(r"engine 1 is away for \d+ s; the others answer", caplog.text), "what is waited for is told"
    whole = seen["whole"]
    assert len(whole) == 16 and {version for version, _ in whole + seen["again"]} == {4}
    assert seen["stopped"] == whole, "each request is answered once, as if nothing had happened"
    assert seen["without"]["rerouted_requests"] > 0 and seen["without"]["engines_serving"] == 1
    assert seen["seconds"] < 50, "the other engine answered, and nobody waited for the one that hangs"
    assert seen["end"]["engine_restarts"] == 1 and seen["end"]["engines_serving"] == 2
    assert min(seen["end"][f"{index}/answered_requests"] for index in range(2)) > 0, "both serve after it came back"
