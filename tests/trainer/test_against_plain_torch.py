"""One whole optimizer step against a plain one: Hugging Face's forward in float64, row by row, and autograd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.tiny import tiny_model
from tests.trainer.conftest import make_experiences, moved
from trinity.algorithm.advantage_fn.grpo import GRPOGroupedAdvantage
from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
TEMPERATURE, KL, ENTROPY, CLIP, LR = 0.7, 0.3, 0.05, 0.5, 1e-3


def plain_rows(model: nn.Module, exp: Experience, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of every response token, from the full logits of one row."""
    logits = model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1] / temperature
    logp = torch.log_softmax(logits, -1)
    return logp.gather(1, exp.tokens[exp.prompt_length :, None])[:, 0], -(logp.exp() * logp).sum(1)


def plain_advantages(experiences: list[Experience]) -> list[float]:
    """Return (reward - mean) / (std + 1e-6) within each task, the standard deviation with n - 1."""
    result = []
    for exp in experiences:
        group = [e.reward for e in experiences if e.eid.task == exp.eid.task]
        mean = sum(group) / len(group)
        std = (sum((r - mean) ** 2 for r in group) / (len(group) - 1)) ** 0.5
        result.append((exp.reward - mean) / (std + 1e-6))
    return result


def plain_grpo_loss(model: nn.Module, reference: nn.Module, experiences: list[Experience], kl: str) -> Tensor:
    """Return clipped surrogate + KL - entropy, each the mean over all counted tokens of the batch."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for exp, advantage in zip(experiences, plain_advantages(experiences), strict=True):
        logp, entropy = plain_rows(model, exp, TEMPERATURE)
        with torch.no_grad():
            ref, _ = plain_rows(reference, exp, TEMPERATURE)
        ratio = torch.exp(logp - exp.logprobs.double())
        policy = -torch.minimum(advantage * ratio, advantage * ratio.clamp(0.8, 1.2))
        if advantage < 0:
            policy = torch.minimum(policy, torch.full_like(policy, -3.0 * advantage))
        d = logp - ref
        divergence = 0.5 * d**2 if kl == "k2" else torch.exp(-d) - 1 + d
        total = total + (policy + KL * divergence - ENTROPY * entropy)[exp.action_mask].sum()
        count += int(exp.action_mask.sum())
    return total / count


def plain_sft_loss(model: nn.Module, experiences: list[Experience]) -> Tensor:
    """Return the mean negative log-likelihood of all counted tokens of the batch."""
    chosen = [plain_rows(model, exp, 1.0)[0][exp.action_mask] for exp in experiences]
    return -torch.cat(chosen).mean()


def plain_step(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Take one clipped step; return the gradients as clipped."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    clipped = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    return clipped


def make_worker(make_config: Maker, path: Path, algorithm: dict[str, Any]) -> ActorWorker:
    """Return a worker with float32 products, small micro-batches, and weights moved away from the reference."""
    actor = {"fsdp_config": {"dtype": "float32"}, "ppo_micro_batch_size_per_gpu": 3}
    config = make_config(
        model={"model_path": str(path), "temperature": TEMPERATURE},
        algorithm=algorithm,
        trainer={
            "grad_clip": CLIP,
            "use_dynamic_bsz": False,
            "trainer_config": {"actor_rollout_ref": {"actor": actor}},
        },
    )
    return moved(ActorWorker(config, tokenizer=None, total_steps=6), share=0.02, seed=5)


def plain_copy(made: ActorWorker, path: Path) -> nn.Module:
    """Return Hugging Face's own model with the weights of `made`."""
    plain = AutoModelForCausalLM.from_pretrained(path)
    plain.load_state_dict(made.model.state_dict())
    return plain


def optimizer_args(kind: str) -> dict[str, Any]:
    return {"optimizer_type": kind, "lr": LR if kind == "adamw" else 0.5, "weight_decay": 0.1}


def plain_optimizer(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    args = optimizer_args(kind)
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=args["lr"], weight_decay=args["weight_decay"])
    return torch.optim.AdamW(model.parameters(), lr=args["lr"], weight_decay=args["weight_decay"], foreach=False)


def assert_same_step(made: ActorWorker, plain: nn.Module, gradients: dict[str, Tensor], kind: str) -> None:
    """Compare the weights; AdamW's first step has the size lr whatever the gradient, so tiny ones are left out."""
    expected = dict(plain.named_parameters())
    compared = nonzero = 0
    for name, weight in made.weights().items():
        is_clear = gradients[name].abs() > (1e-4 if kind == "adamw" else -1.0)
        difference = (weight.double() - expected[name].detach()).abs()
        assert not bool((difference[is_clear] > 1e-6).any()), f"{name}: {float(difference[is_clear].max())}"
        compared += int(is_clear.sum())
        nonzero += int((gradients[name] != 0).sum())
    assert compared > 0.5 * nonzero > 1000


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("family", "kl"), [("llama", "k2"), ("qwen3", "k3"), ("gpt2", "k3")])
def test_a_grpo_step_is_that_of_plain_torch(
    make_config: Maker, tmp_path: Path, family: str, kl: str, optimizer: str
) -> None:
    tiny_model(tmp_path / "model", family, seed=1, scale=3.0)
    algorithm = {
        "kl_loss_fn": kl,
        "kl_loss_fn_args": {"kl_coef": KL},
        "entropy_loss_fn_args": {"entropy_coef": ENTROPY},
        "optimizer": optimizer_args(optimizer),
    }
    made = make_worker(make_config, tmp_path / "model", algorithm)
    plain = plain_copy(made, tmp_path / "model")
    experiences = make_experiences(1, tasks=3)
    for number, exp in enumerate(experiences):
        exp.reward = [0.0, 1.0, 0.25, 0.5, 2.0][number % 5]
        shift = 0.3 * torch.sin(exp.tokens[-1:].float())
        exp.logprobs = plain_rows(plain, exp, TEMPERATURE)[0].detach() + shift
    experiences, _ = GRPOGroupedAdvantage().process(experiences)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "model").double()
    plain = plain.double()
    loss = plain_grpo_loss(plain, reference, experiences, kl)
    gradients = plain_step(plain, loss, plain_optimizer(plain, optimizer))
    metrics = made.train_step(experiences, 1)
    assert metrics["actor/final_loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["actor/kl_loss"] > 1e-3 and metrics["actor/pg_clipfrac"] > 0 and metrics["actor/grad_norm"] > CLIP
    assert_same_step(made, plain, gradients, optimizer)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_an_sft_step_is_that_of_plain_torch(make_config: Maker, tmp_path: Path, family: str, optimizer: str) -> None:
    tiny_model(tmp_path / "model", family, seed=2, scale=3.0)
    algorithm = {"algorithm_type": "sft", "kl_loss_fn": None, "optimizer": optimizer_args(optimizer)}
    made = make_worker(make_config, tmp_path / "model", algorithm)
    experiences = make_experiences(1, tasks=3)
    for exp in experiences:
        exp.logprobs, exp.advantages, exp.reward = None, None, None
    plain = plain_copy(made, tmp_path / "model").double()
    loss = plain_sft_loss(plain, experiences)
    gradients = plain_step(plain, loss, plain_optimizer(plain, optimizer))
    metrics = made.train_step(experiences, 1)
    assert metrics["actor/final_loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert_same_step(made, plain, gradients, optimizer)
