"""An engine in a process of its own answers bit for bit as one in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import response, run
from tests.engine.test_create import config
from tests.runtime.test_contract import gone_soon
from trinity.common.errors import EngineError, SyncError
from trinity.common.models.inference_model import InferenceModel
from trinity.engine.router.remote import RemoteEngine, RuntimeEngines
from trinity.engine.settings import EngineSettings, engine_settings
from trinity.engine.torch.engine import TorchEngine
from trinity.runtime.base import ActorDiedError, Resources
from trinity.runtime.process import ProcessRuntime
from trinity.synchronizer.transport import MemoryTransport

Made = tuple[Path, PreTrainedModel]
QUESTION = [{"role": "user", "content": "12+34="}]


def settings(path: Path) -> EngineSettings:
    return engine_settings(config(path, deterministic=True))


@asynccontextmanager
async def remote(path: Path) -> AsyncIterator[RemoteEngine]:
    runtime = ProcessRuntime()
    place = {"name": "engine", "resources": Resources(), "timeout_s": 30.0, "sync_timeout_s": 30.0}
    engines = RuntimeEngines(runtime, TorchEngine, settings(path), **place)
    try:
        made = await engines.start(0)
        await made.prepare()
        yield made
        await engines.end(made)
    finally:
        await runtime.close()


async def answers(made: InferenceModel) -> list[tuple[list[int], torch.Tensor]]:
    """Return tokens and logprobs of what two participants ask in a round, and of a conversation."""
    for name in ("a", "b"):
        await made.join_round(name)
    ids = [f"1/2/{index}/0" for index in range(3)]
    asked = [
        made.chat(QUESTION, n=3, sample_ids=ids, participant="a"),
        made.generate("7*8=", n=1, sample_ids=["1/3/0/0"], participant="b", temperature=0.0),
    ]
    found = [experience for group in await asyncio.gather(*asked) for experience in group]
    for name in ("a", "b"):
        await made.leave_round(name)
    assert not await made.waits_in_round("nobody")
    talk = [*QUESTION, {"role": "assistant", "content": "46"}]
    found.append(await made.convert_messages_to_experience(talk))
    return [(response(experience), experience.logprobs) for experience in found]


def test_a_remote_engine_gives_the_bits_of_a_local_one_before_and_after_new_weights(llama: Made) -> None:
    path, model = llama
    weights = {name: tensor * 1.25 for name, tensor in model.state_dict().items()}

    async def call() -> None:
        local = TorchEngine(settings(path))
        await local.prepare()
        async with remote(path) as made:
            assert made.vocabulary() == local.vocabulary() and made.model_version == 0
            assert await made.get_message_token_len(QUESTION) == await local.get_message_token_len(QUESTION)
            assert torch.equal(await made.logprobs([5, 6, 7]), await local.logprobs([5, 6, 7]))
            before = await answers(local)
            assert same(before, await answers(made))
            transport = MemoryTransport()
            ticket = transport.put(4, weights, copy=True)
            await made.pull(ticket)
            await local.update_weights(weights, version=4)
            assert made.model_version == 4 and (await made.stats())["samples"] > 0
            after = await answers(local)
            assert same(after, await answers(made)) and not same(before, after)
            await made.update_weights(dict(model.state_dict()), version=5)
            assert same(before, await answers(made)) and made.model_version == 5
            with pytest.raises(EngineError, match="E5602"):
                await made.logprobs([5])
            transport.drop_before(5)
            with pytest.raises(SyncError):
                await made.pull(ticket)
            assert made.model_version == 5
        await local.shutdown()

    run(call())


def test_a_dead_engine_is_named_and_its_end_leaves_nothing(llama: Made) -> None:
    async def call() -> None:
        async with remote(llama[0]) as made:
            pid = made.handle.pid
            asking = asyncio.ensure_future(made.chat(QUESTION, n=8, max_tokens=40, participant="a"))
            await made.handle.kill()
            with pytest.raises(ActorDiedError, match=r"E5701.*engine_0 \(process \d+\).*SIGKILL"):
                await asking
            with pytest.raises(ActorDiedError):
                await made.stats()
        assert gone_soon(pid)

    run(call())


def same(left: list[tuple[list[int], torch.Tensor]], right: list[tuple[list[int], torch.Tensor]]) -> bool:
    pairs = list(zip(left, right, strict=True))
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)
