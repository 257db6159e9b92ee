"""One worker of the trainer on the strict device, beside the same on the CPU; always in deterministic mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.algorithm.test_losses import make, make_tensors, value_and_gradient
from tests.strict_device.device import use_deterministic_algorithms
from tests.tiny import tiny_model
from tests.trainer.conftest import FLOAT32, make_config, make_experiences, model_path  # noqa: F401 - fixtures
from tests.trainer.test_critic import PPO
from tests.trainer.test_lora import LORA
from tests.trainer.test_offload import tree
from tests.trainer.test_update import TERMS
from trinity.algorithm import POLICY_LOSS_FN
from trinity.common.config import Config
from trinity.trainer.prefixes import NOTHING
from trinity.trainer.verl import attention, logprob
from trinity.trainer.verl.decoder import FastPackedDecoder, HFPackedDecoder
from trinity.trainer.verl.random_state import random_state, restore_random_state
from trinity.trainer.verl.scorer import Scorer
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
RECOMPUTE = {"actor_rollout_ref": {"actor": FLOAT32, "model": {"enable_gradient_checkpointing": True}}}
BFLOAT16 = {"actor_rollout_ref": {"actor": {"fsdp_config": {"dtype": "bfloat16"}}}}
SPLIT = {"actor_rollout_ref": {"actor": FLOAT32 | {"ppo_micro_batch_size_per_gpu": 2, "ppo_mini_batch_size": 3}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "KL and entropy": {"algorithm": TERMS, "trainer": {"trainer_config": SPLIT}},
    "recomputed": {"trainer": {"trainer_config": RECOMPUTE}},
    "adapter": {"algorithm": TERMS, "model": LORA},
    "critic": {"algorithm": PPO},
    "offload": {"algorithm": TERMS, "trainer": tree(True)},
    "full KL": {"algorithm": {"kl_loss_fn": "full", "kl_loss_fn_args": {"kl_coef": 0.1}}},
}
FAMILIES = {"llama": FastPackedDecoder, "gpt2": HFPackedDecoder}


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    use_deterministic_algorithms(True)
    yield
    use_deterministic_algorithms(False)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A family of the fast forward and one of Hugging Face's, with the folder of a model."""
    path = tmp_path_factory.mktemp(request.param)
    tiny_model(path, request.param, seed=1, scale=1.5)
    return request.param, path


def sections_of(variant: str, path: Path, **more: Any) -> dict[str, Any]:
    found = VARIANTS[variant]
    return found | {"model": found.get("model", {}) | {"model_path": str(path)}} | more


def worker(config: Config, device: str) -> ActorWorker:
    return ActorWorker(config, tokenizer=None, total_steps=6, device=device)


def step(made: ActorWorker, number: int) -> dict[str, float]:
    """Train and return the metrics that neither time nor memory decides."""
    metrics = made.train_step(make_experiences(number), number)
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", "perf/"))}


def held(made: ActorWorker) -> list[Tensor]:
    """Return weights and optimizer states of policy and critic, on the host."""
    pairs = [(made.model, made.optimizer)]
    if made.critic is not None:
        pairs.append((made.critic.model, made.critic.optimizer))
    found: list[Tensor] = []
    for model, optimizer in pairs:
        found += [p.detach() for p in model.parameters()]
        found += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return [tensor.cpu() for tensor in found]


def use_sgd(made: ActorWorker) -> ActorWorker:
    """Let weights move with the gradient: Adam divides by its size, and blows rounding up where that is small."""
    for group in made.optimizer.param_groups:
        group["betas"], group["eps"] = (0.0, 0.0), 1.0
    return made


@pytest.mark.parametrize("variant", ["adapter", "offload", "full KL"])
def test_steps_are_those_of_the_cpu(make_config: Maker, family: tuple[str, Path], variant: str) -> None:  # noqa: F811
    here, there = (worker(make_config(**sections_of(variant, family[1])), device) for device in ("cpu", "strict"))
    assert isinstance(there.actor.decoder, FAMILIES[family[0]])
    for number in (1, 2):
        wanted = step(use_sgd(here), number)
        assert step(use_sgd(there), number) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    at_rest = "cpu" if variant == "offload" else "strict"
    assert {p.device.type for p in there.model.parameters()} == {at_rest}
    for a, b in zip(held(here), held(there), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["KL and entropy", "recomputed", "critic"])
def test_steps_have_the_bits_of_the_cpu_where_the_kernels_are_the_same(
    make_config: Maker,  # noqa: F811
    family: tuple[str, Path],
    variant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CPU is made to take the ways of an accelerator; what is left are kernels, optimizer and order of sums."""
    there = worker(make_config(**sections_of(variant, family[1])), "strict")
    of_device = [step(there, number) for number in (1, 2)]
    monkeypatch.setattr(attention, "is_blockwise", lambda device, longest: False)
    monkeypatch.setattr(Scorer, "sharing", NOTHING)
    monkeypatch.setattr("trinity.utils.products.prefers_onednn", lambda: False)
    monkeypatch.setitem(logprob.CHUNK_BYTES, "cpu", logprob.CHUNK_BYTES["cuda"])
    with sdpa_kernel(SDPBackend.MATH):
        here = worker(make_config(**sections_of(variant, family[1])), "cpu")
        for model in (here.model, *([here.critic.model] if here.critic else [])):
            for parameter in model.parameters():  # out of the mapped file, whose alignment a product's rounding follows
                parameter.data = parameter.data.clone()
        here.actor.stepper.refresh()
        assert [step(here, number) for number in (1, 2)] == of_device
    assert all(torch.equal(a, b) for a, b in zip(held(here), held(there), strict=True))


@pytest.mark.parametrize("variant", ["critic", "offload"])
def test_a_resumed_worker_continues_to_the_bit(
    make_config: Maker,  # noqa: F811
    family: tuple[str, Path],
    tmp_path: Path,
    variant: str,
) -> None:
    config = make_config(**sections_of(variant, family[1]))
    whole = worker(config, "strict")
    step(whole, 1)
    (tmp_path / "saved").mkdir()
    whole.save(tmp_path / "saved", hf=True)
    wanted = step(whole, 2)
    resumed = worker(config, "strict")
    resumed.load(tmp_path / "saved")
    assert step(resumed, 2) == wanted
    assert all(torch.equal(a, b) for a, b in zip(held(whole), held(resumed), strict=True))


def test_a_checkpoint_does_not_depend_on_the_device_that_wrote_it(
    make_config: Maker,  # noqa: F811
    tmp_path: Path,
) -> None:
    config = make_config(algorithm=TERMS)
    for first, second in (("cpu", "strict"), ("strict", "cpu")):
        saving, loading = worker(config, first), worker(config, second)
        step(saving, 1)
        folder = tmp_path / first
        folder.mkdir()
        saving.save(folder, hf=False)
        loading.load(folder)
        assert all(torch.equal(a, b) for a, b in zip(held(saving), held(loading), strict=True))
        assert step(loading, 2) == pytest.approx(step(saving, 2), rel=1e-3, abs=1e-4)


def test_products_in_bfloat16_leave_the_weights_in_float32(make_config: Maker, family: tuple[str, Path]) -> None:  # noqa: F811
    plain = sections_of("KL and entropy", family[1])
    narrow = plain | {"trainer": {"trainer_config": BFLOAT16}}
    wanted = step(worker(make_config(**plain | {"trainer": {}}), "strict"), 1)
    made = worker(make_config(**narrow), "strict")
    assert made.dtype == torch.bfloat16
    got = step(made, 1)
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in made.model.parameters())
    assert got["actor/grad_norm"] == pytest.approx(wanted["actor/grad_norm"], rel=0.1)
    assert got["actor/entropy_loss"] == pytest.approx(wanted["actor/entropy_loss"], rel=0.02)


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
def test_losses_compute_on_the_device(name: str) -> None:
    tensors = make_tensors()
    there = {key: value.to("strict") for key, value in tensors.items()}
    select = make(name).select_tokens
    if select is not None:
        chosen = select(**there)
        assert chosen.device.type == "strict" and torch.equal(chosen.cpu(), select(**tensors))
    if name == "dpo":  # its rows are pairs
        tensors, there = ({k: v[:4] for k, v in given.items()} for given in (tensors, there))
    loss, gradient = value_and_gradient(make(name), tensors)
    got, of_device = value_and_gradient(make(name), there)
    assert got.device.type == "strict"
    assert torch.allclose(got.cpu(), loss, rtol=1e-12) and torch.allclose(of_device.cpu(), gradient, rtol=1e-12)


def test_the_random_stream_of_the_device_is_in_the_checkpoint() -> None:
    state = random_state()
    drawn = torch.rand(5, device="strict")
    torch.rand(5, device="strict")
    restore_random_state(state)
    assert torch.equal(torch.rand(5, device="strict").cpu(), drawn.cpu())


def test_a_new_adapter_leaves_the_random_streams_alone(make_config: Maker, family: tuple[str, Path]) -> None:  # noqa: F811
    streams = torch.get_rng_state, torch.get_device_module("strict").get_rng_state
    before = [stream() for stream in streams]
    made = worker(make_config(**sections_of("adapter", family[1])), "strict")
    assert all(torch.equal(stream(), old) for stream, old in zip(streams, before, strict=True))
    again = worker(make_config(**sections_of("adapter", family[1])), "strict")
    assert all(torch.equal(a, b) for a, b in zip(held(made), held(again), strict=True))
