"""The KL term over whole distributions: its value, its gradient, and that pieces and splits change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.trainer import rank_calls
from tests.trainer.conftest import make_experiences, moved
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_update import assert_same, gradients, worker
from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.trainer.batch import collate
from trinity.trainer.verl.divergence import Output, full_divergence
from trinity.trainer.verl.logprob import CHUNK_BYTES
from trinity.trainer.verl.output_layer import LogitRule, OutputLayer
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
FULL = {"kl_loss_fn": "full", "kl_loss_fn_args": {"kl_coef": 0.5}}


def _moved(made: ActorWorker) -> ActorWorker:
    return moved(made, share=0.05, seed=0)


def _random(bias: bool, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
    hidden, weight = (torch.randn(n, 5, generator=generator) for n in (7, 11))
    return hidden, weight, torch.randn(11, generator=generator) if bias else None


@pytest.mark.difference("`kl_loss_fn: full`")
@pytest.mark.parametrize("rule", [LogitRule(), LogitRule(0.5, 1.5)])
@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradient_in_pieces_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch, bias: bool, rule: LogitRule
) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * 11 * 3)  # three rows a piece
    generator = torch.Generator().manual_seed(1)
    policy, reference = _random(bias, generator), _random(bias, generator)
    tensors = [t.clone().requires_grad_() for t in policy if t is not None]
    again = [t.clone().requires_grad_() for t in policy if t is not None]
    factors = torch.randn(7, generator=generator)

    def logp(hidden: Tensor, weight: Tensor, of_bias: Tensor | None = None) -> Tensor:
        logits = rule.scale * (hidden @ weight.t() + (0 if of_bias is None else of_bias))
        logits = logits if rule.softcap is None else rule.softcap * torch.tanh(logits / rule.softcap)
        return (logits / 0.7).log_softmax(-1)

    known = [t for t in reference if t is not None]
    plain = (logp(*tensors).exp() * (logp(*tensors) - logp(*known))).sum(-1)
    (plain * factors).sum().backward()
    found = full_divergence(
        Output(again[0], OutputLayer(again[1].detach(), again[2] if bias else None, again[1], rule)),
        Output(reference[0], OutputLayer(reference[1], reference[2], reference[1], rule)),
        temperature=0.7,
    )
    (found * factors).sum().backward()
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    for left, right in zip(tensors, again, strict=True):
        torch.testing.assert_close(right.grad, left.grad, atol=1e-5, rtol=1e-4)


def _plain(model_path: Path, weights: Mapping[str, Tensor], experiences: list[Experience]) -> tuple[nn.Module, Tensor]:
    """Return a policy with `weights` in float64, and its mean divergence from the model of the folder."""
    reference = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    policy = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    policy.load_state_dict({name: tensor.double() for name, tensor in weights.items()}, strict=False)

    def logp(model: nn.Module, tokens: Tensor, start: int) -> Tensor:
        return model(tokens[None]).logits[0, start - 1 : -1].log_softmax(-1)

    total, count = torch.zeros((), dtype=torch.float64), 0
    for exp in experiences:
        own = logp(policy, exp.tokens, exp.prompt_length)
        with torch.no_grad():
            other = logp(reference, exp.tokens, exp.prompt_length)
        total = total + (own.exp() * (own - other)).sum(-1)[exp.action_mask].sum()
        count += int(exp.action_mask.sum())
    return policy, total / count


def test_the_term_is_that_of_plain_torch(make_config: Maker, model_path: Path) -> None:
    experiences = make_experiences(1)
    for exp in experiences:
        exp.advantages = torch.zeros_like(exp.advantages)
    made = _moved(worker(make_config(algorithm=FULL), max_rows=3, max_tokens=None))
    found = gradients(made, experiences)
    policy, total = _plain(model_path, dict(made.model.state_dict()), experiences)
    (0.5 * total).backward()
    wanted = {name: parameter.grad.float() for name, parameter in policy.named_parameters()}
    assert_same(wanted, found, tolerance=1e-5)
    metrics = _moved(worker(make_config(algorithm=FULL))).train_step(experiences, 1)
    assert metrics["actor/kl_loss"] == pytest.approx(float(total.detach()), rel=1e-4)


def test_the_reference_is_passed_once_for_what_is_read(make_config: Maker) -> None:
    batch = collate(make_experiences(1))
    for algorithm, is_read in ((FULL, False), ({"kl_loss_fn": "k2"}, True)):
        made = worker(make_config(algorithm=algorithm))
        assert made.reference is not None
        assert ("ref_logprob" in made._with_logprobs(batch).columns) is is_read


def test_an_adapter_is_compared_with_the_model_without_it(make_config: Maker, model_path: Path) -> None:
    experiences = make_experiences(1)
    made = worker(make_config(algorithm=FULL, model={"lora_configs": [{"lora_rank": 4, "lora_alpha": 8}]}))
    assert made.train_step(experiences, 1)["actor/kl_loss"] == pytest.approx(0.0, abs=1e-7)
    _, divergence = _plain(model_path, made.weights(), experiences)
    found = made.train_step(experiences, 2)["actor/kl_loss"]
    assert found == pytest.approx(float(divergence.detach()), rel=1e-3) and found > 1e-5


def test_the_split_does_not_change_the_gradient(make_config: Maker) -> None:
    config, experiences = make_config(algorithm=FULL), make_experiences(1, tasks=3)
    whole = gradients(_moved(worker(config, max_tokens=None, max_rows=None)), experiences)
    for split in ({"max_rows": 1, "max_tokens": None}, {"max_tokens": 40}):
        assert_same(whole, gradients(_moved(worker(config, **split)), experiences))


@pytest.mark.difference("`kl_penalty: full`")
def test_a_reward_is_lowered_by_whole_distributions(make_config: Maker, pool: RankPool) -> None:
    algorithm = {"advantage_fn": "grpo_verl", "repeat_times": 4, "kl_penalty_fn": "full", "kl_loss_fn": "none"}
    config = make_config(algorithm=algorithm | {"kl_penalty_fn_args": {"kl_coef": 0.5}})
    experiences = make_experiences(1)
    made = rank_calls.moved_worker(ALONE, config.model_dump(exclude_unset=True))
    metrics = made._with_advantages(made._with_logprobs(collate(experiences)), experiences)[1]
    lowered = [e.reward - 0.5 * float(d.sum()) for e, d in zip(experiences, _per_row(made, experiences), strict=True)]
    assert metrics["critic/rewards/mean"] == pytest.approx(sum(lowered) / len(lowered), rel=1e-5)
    rows = zip(experiences, _per_row(made, experiences), strict=True)
    expected = [float(d.sum() / e.action_mask.sum()) for e, d in rows]
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(sum(expected) / len(expected), rel=1e-5) != 0.0
    for found in pool.run(2, rank_calls.reward_metrics, config.model_dump(exclude_unset=True), experiences):
        assert found == {name: pytest.approx(value, rel=1e-5) for name, value in metrics.items()}


def _per_row(made: ActorWorker, experiences: list[Experience]) -> list[Tensor]:
    """Return the sum of p (ln p - ln q) at the counted tokens of every row, in float64, 0 elsewhere."""
    assert made.reference is not None and made.reference.model is not None
    policy, reference = (copy.deepcopy(m).double() for m in (made.model, made.reference.model))
    result = []
    with torch.no_grad():
        for exp in experiences:
            logp, logq = (
                torch.log_softmax(m(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1], -1)
                for m in (policy, reference)
            )
            result.append((logp.exp() * (logp - logq)).sum(-1) * exp.action_mask)
    return result
