"""The torch engine, the way of the weights to it, and a whole run on the strict device."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.e2e.conftest import plugins  # noqa: F401 - a fixture
from tests.e2e.test_algorithms import check
from tests.engine.conftest import gpt2, llama  # noqa: F401 - fixtures
from tests.engine.engines import engine, recomputed, response, run
from tests.strict_device.device import use_deterministic_algorithms
from trinity.common.experience import Experience
from trinity.common.models.generate_params import GenerateParams
from trinity.common.weights import update_from
from trinity.engine.torch.engine import TorchEngine
from trinity.synchronizer.transport import CheckpointTransport, MemoryTransport
from trinity.trainer.verl.random_state import random_state
from trinity.utils.device import available_accelerators, peak_memory_bytes, select_device, total_memory_bytes

Made = tuple[Path, PreTrainedModel]
DRAWN = [
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 0.0},
    {"top_k": 4, "top_p": 0.9, "min_tokens": 6},
]


@pytest.fixture(autouse=True)
def process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads = torch.get_num_threads()
    yield
    use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


async def rollouts(made: TorchEngine, *, num_prompts: int = 4) -> list[Experience]:
    """Return groups of three whose rows join and leave a batch of four slots at different tokens."""
    calls = [
        made.generate(
            f"{n}+1=",
            n=3,
            sample_ids=[f"{n}/{i}" for i in "abc"],
            **{"max_tokens": 4 + 5 * n} | DRAWN[n % len(DRAWN)],
        )
        for n in range(num_prompts)
    ]
    return [exp for group in await asyncio.gather(*calls) for exp in group]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_samples_and_scores_are_those_of_the_cpu(
    request: pytest.FixtureRequest, family: str, is_deterministic: bool
) -> None:
    path, model = request.getfixturevalue(family)
    use_deterministic_algorithms(is_deterministic)

    async def call(device: str) -> tuple[str, list[Experience], list[Tensor]]:
        async with engine(path, device=device, is_deterministic=is_deterministic, max_num_seqs=4) as made:
            found = await rollouts(made)
            scores = [await made.logprobs(exp.tokens.tolist()) for exp in found[::4]]
            return made._ready()[0].kind, found, scores

    kind, here, of_host = run(call("cpu"))
    assert kind == {"llama": "fast", "gpt2": "hf"}[family]
    _, there, of_device = run(call("strict"))
    assert [response(exp) for exp in there] == [response(exp) for exp in here]
    for a, b in zip(here, there, strict=True):
        assert a.logprobs is not None and b.logprobs is not None and b.logprobs.device.type == "cpu"
        assert torch.allclose(a.logprobs, b.logprobs, atol=1e-5)
    for a, b in zip(of_host, of_device, strict=True):
        assert b.device.type == "cpu" and torch.allclose(a, b, atol=1e-5)
    plain = there[9:12]  # drawn at temperature 1
    assert all((exp.logprobs - recomputed(model, exp)).abs().max() <= 1e-4 for exp in plain)


@pytest.mark.parametrize("kind", ["memory", "checkpoint", "delta"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_weights_of_the_device_reach_an_engine_to_the_bit(
    request: pytest.FixtureRequest, tmp_path: Path, family: str, kind: str
) -> None:
    path, model = request.getfixturevalue(family)
    live = {name: parameter.detach().to("strict") for name, parameter in model.named_parameters()}
    transport = MemoryTransport() if kind == "memory" else CheckpointTransport(tmp_path, is_delta=kind == "delta")

    async def call(device: str) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        found = []
        async with engine(path, device=device) as made:
            for version in (1, 2):
                for tensor in live.values():
                    tensor.mul_(1.25).add_(0.001 * version)
                wanted = {name: tensor.cpu().clone() for name, tensor in live.items()}
                ticket = transport.put(version, live, copy=True)
                for tensor in live.values():
                    tensor.add_(1.0)  # training continues
                await update_from(ticket, made, timeout_s=30.0)
                assert made.model_version == version
                targets = made._ready()[0].targets()
                assert {tensor.device.type for tensor in targets.values()} == {device}
                found.append((wanted, {name: tensor.cpu().clone() for name, tensor in targets.items()}))
        return found

    for device in ("strict", "cpu"):
        for wanted, held in run(call(device)):
            assert held.keys() <= wanted.keys() | {"lm_head.weight"} and len(held) > 5
            assert all(torch.equal(held[name], tensor) for name, tensor in wanted.items() if name in held)
    transport.close()


def test_a_token_costs_the_host_few_waits(llama: Made) -> None:  # noqa: F811
    """A wait for the device at each token is dear; their number does not grow with the rows of the batch."""
    from tests.strict_device.device import synchronizations

    async def call() -> list[int]:
        async with engine(llama[0], device="strict", params=GenerateParams(logprobs=0)) as made:
            found = []
            for n in (1, 8):
                before = synchronizations()
                await made.generate("1+1=", n=n, max_tokens=20, min_tokens=20)
                found.append(synchronizations() - before)
            return found

    one, eight = run(call())
    assert one > 0 and eight <= one + 7 * 3, "beyond what each row costs at its end"


def test_auto_takes_an_accelerator_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    device = select_device("auto")
    assert device == select_device("strict") == torch.device("strict", 0)
    assert total_memory_bytes(device) == 2**32 and peak_memory_bytes(device) == 2**20
    assert available_accelerators() == ["strict"] and "strict" in random_state()
    assert select_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="device must be one of auto, cpu, strict, got 'cuda'"):
        select_device("cuda")
    monkeypatch.setattr("trinity.utils.device.ACCELERATORS", ("cuda", "strict"))
    assert select_device("auto") == device, "CUDA comes first, and is not there"
    with pytest.raises(ValueError, match="device cuda was asked for, but PyTorch sees no CUDA device"):
        select_device("cuda")


def test_a_whole_run_continues_to_the_bit(tmp_path: Path, plugins: Path, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    """Rollouts, critic, steps, synchronisation and checkpoints, once at a stretch and once in two parts."""
    check(tmp_path, {"algorithm_type": "ppo"}, plugins)
    text = caplog.text
    assert "trainer on strict:0" in text and "on strict:0, " in text
