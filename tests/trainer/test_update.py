"""The policy's update: what must not change the gradient, what is skipped, what is reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.conftest import make_experiences
from trinity.common.config import Config
from trinity.common.errors import DataError, NumericError, OutOfMemoryError
from trinity.common.experience import Experience
from trinity.trainer.batch import collate
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]


def worker(config: Config, **settings: Any) -> ActorWorker:
    """Return a worker; `settings` replace how its actor splits a batch."""
    made = ActorWorker(config, tokenizer=None, total_steps=6)
    made.actor.settings = dataclasses.replace(made.actor.settings, **settings)
    made.actor.scorer.settings = made.actor.settings
    return made


def gradients(made: ActorWorker, experiences: list[Experience], step: int = 1) -> dict[str, Tensor]:
    """Return the gradients of one mini-batch of `experiences`, before clipping."""
    from trinity.trainer.verl.loss import Metrics

    batch = made._with_logprobs(collate(experiences))
    made.optimizer.zero_grad()
    made.actor._accumulate(batch, Metrics(), None)
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in made.model.named_parameters()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    """Assert that gradients agree relative to the largest of them."""
    scale = max(float(g.abs().max()) for g in first.values())
    assert scale > 1e-4
    for name, gradient in first.items():
        assert float((gradient - second[name]).abs().max()) <= tolerance * max(scale, 1.0), name


TERMS = {"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}, "entropy_loss_fn_args": {"entropy_coef": 0.05}}
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.mark.parametrize("mode", MODES)
def test_micro_batch_split_does_not_change_the_gradient(make_config: Maker, mode: str) -> None:
    config = make_config(algorithm={"loss_agg_mode": mode, **TERMS})
    experiences = make_experiences(1, tasks=3)
    whole = gradients(worker(config, max_tokens=None, max_rows=None), experiences)
    for split in ({"max_rows": 1, "max_tokens": None}, {"max_rows": 5, "max_tokens": None}, {"max_tokens": 40}):
        assert_same(whole, gradients(worker(config, **split), experiences))


def test_order_of_rows_does_not_change_the_gradient(make_config: Maker) -> None:
    made = worker(make_config(algorithm=TERMS))
    experiences = make_experiences(1, tasks=3)
    shuffled = [experiences[i] for i in torch.randperm(12, generator=torch.Generator().manual_seed(3)).tolist()]
    assert_same(gradients(made, experiences), gradients(made, shuffled))


def test_padding_does_not_change_the_gradient(make_config: Maker) -> None:
    config = make_config(algorithm=TERMS)
    experiences = make_experiences(1)
    longer = make_experiences(7, tasks=1, repeats=1)[0]
    longer.action_mask[:] = False
    longer.tokens = torch.cat([longer.tokens, torch.full((20,), 5)])
    for name in ("logprobs", "advantages", "action_mask"):
        tail = torch.zeros(20, dtype=getattr(longer, name).dtype)
        setattr(longer, name, torch.cat([getattr(longer, name), tail]))
    made = worker(config)
    assert_same(gradients(made, experiences), gradients(made, [*experiences, longer]))


def test_shared_prompts_do_not_change_the_gradient(make_config: Maker) -> None:
    config = make_config(algorithm=TERMS)
    experiences = make_experiences(1, tasks=2)
    shared, apart = worker(config), worker(config)
    apart.actor.decoder.can_share_prompts = False
    assert shared.actor.scorer.pack(collate(experiences)).prefix is not None
    assert apart.actor.scorer.pack(collate(experiences)).prefix is None
    assert_same(gradients(apart, experiences), gradients(shared, experiences))


def test_recomputing_layers_does_not_change_the_gradient(make_config: Maker) -> None:
    def tree(enabled: bool) -> dict[str, Any]:
        model = {"enable_gradient_checkpointing": enabled}
        return {"trainer_config": {"actor_rollout_ref": {"model": model}}}

    experiences = make_experiences(1)
    with_all = gradients(worker(make_config(trainer=tree(False))), experiences)
    assert_same(with_all, gradients(worker(make_config(trainer=tree(True))), experiences), tolerance=0.0)


@pytest.mark.parametrize("mode", MODES)
def test_leaving_out_rows_without_signal_does_not_change_the_gradient(make_config: Maker, mode: str) -> None:
    config = make_config(algorithm={"loss_agg_mode": mode})
    experiences = make_experiences(1, tasks=3)
    for experience in experiences[4:8]:
        experience.advantages = torch.zeros_like(experience.advantages)
    lean, full = worker(config), worker(config)
    full.loss_fn.policy_loss.zero_advantage_is_zero_loss = False
    batch = lean._with_logprobs(collate(experiences))
    assert len(lean.actor._rows_with_signal(batch)) == 8 and len(full.actor._rows_with_signal(batch)) == 12
    assert_same(gradients(full, experiences), gradients(lean, experiences))


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
def test_an_entropy_that_is_only_measured_is_the_mean_of_the_rows_that_are_computed(
    make_config: Maker, mode: str
) -> None:
    config = make_config(algorithm={"loss_agg_mode": mode, "entropy_loss_fn": "default"})
    experiences = make_experiences(1)
    alone = worker(config).train_step(experiences[:4], 1)["actor/entropy_loss"]
    for experience in experiences[4:]:
        experience.advantages = torch.zeros_like(experience.advantages)
    metrics = worker(config, max_rows=3, max_tokens=None).train_step(experiences, 1)
    assert metrics["actor/entropy_loss"] == pytest.approx(alone, rel=1e-5)


def test_equal_rewards_give_no_signal(make_config: Maker) -> None:
    made = worker(make_config(algorithm={"optimizer": {"weight_decay": 0.0}}))
    experiences = make_experiences(1)
    for experience in experiences:
        experience.advantages = torch.zeros_like(experience.advantages)
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    metrics = made.train_step(experiences, 1)
    assert metrics["actor/grad_norm"] == 0.0 and metrics["actor/final_loss"] == 0.0
    assert all(torch.equal(before[name], tensor) for name, tensor in made.weights().items())


def test_loss_and_metrics_are_those_of_a_plain_computation(make_config: Maker) -> None:
    made = worker(make_config(algorithm=TERMS), max_rows=3, max_tokens=None)
    experiences = make_experiences(1)
    ratios, entropies, total = [], [], 0
    for exp in experiences:
        logits = made.model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1].double()
        logp = torch.log_softmax(logits, -1)
        chosen = logp.gather(1, exp.tokens[exp.prompt_length :, None])[:, 0]
        ratio = (chosen - exp.logprobs).exp()
        clipped = torch.maximum(-exp.advantages * ratio, -exp.advantages * ratio.clamp(0.8, 1.2))
        clipped = torch.where(exp.advantages < 0, torch.minimum(clipped, -3 * exp.advantages), clipped)
        ratios.append(clipped[exp.action_mask].sum())
        entropies.append(-(logp.exp() * logp).sum(1)[exp.action_mask].sum())
        total += int(exp.action_mask.sum())
    metrics = made.train_step(experiences, 1)
    loss, entropy = (sum(terms).item() / total for terms in (ratios, entropies))
    assert metrics["actor/pg_loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["actor/entropy_loss"] == pytest.approx(entropy, abs=1e-5)
    assert metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-9) and metrics["actor/kl_coef"] == 0.1
    assert metrics["actor/final_loss"] == pytest.approx(loss - 0.05 * entropy, abs=1e-5)
    assert metrics["response_length/mean"] == pytest.approx(sum(e.response_length for e in experiences) / 8)
    assert metrics["perf/total_num_tokens"] == sum(len(e.tokens) for e in experiences)


def test_temperature_divides_the_logits_as_in_the_engine(make_config: Maker) -> None:
    config = make_config(model={"temperature": 0.5})
    made = worker(config)
    exp = make_experiences(1)[0]
    logits = made.model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1] / 0.5
    expected = torch.log_softmax(logits, -1).gather(1, exp.tokens[exp.prompt_length :, None])[:, 0]
    got = made.actor.compute_log_prob(collate([exp]))[0]
    assert torch.allclose(got[exp.action_mask], expected[exp.action_mask], atol=1e-5)
    assert bool((got[~exp.action_mask] == 0).all())


def test_mismatch_metric_compares_rows_of_the_current_version_only(make_config: Maker) -> None:
    made = worker(make_config())
    current, old = make_experiences(1, version=0), make_experiences(2, version=-1)
    own = made.actor.compute_log_prob(collate(current))
    for row, exp in enumerate(current):
        exp.logprobs = own[row, : exp.response_length].clone()
    current[0].logprobs[0] += 0.25
    metrics = made.train_step(current + old, 1)
    assert metrics["training/rollout_logprobs_diff_max"] == pytest.approx(0.25, abs=1e-5)
    counted = sum(int(exp.action_mask.sum()) for exp in current)
    assert metrics["training/rollout_logprobs_diff_mean"] == pytest.approx(0.25 / counted, abs=1e-5)
    assert "training/rollout_logprobs_diff_max" not in made.train_step(current + old, 2)


def test_recomputed_old_logprobs_give_ratio_one(make_config: Maker) -> None:
    metrics = worker(make_config(algorithm={"bypass_old_logprobs": False})).train_step(make_experiences(1), 1)
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6) and metrics["actor/pg_clipfrac"] == 0.0


@pytest.mark.difference("Reference model")
def test_reference_is_loaded_only_for_a_nonzero_coefficient(make_config: Maker) -> None:
    def reference(**algorithm: Any) -> object:
        return worker(make_config(algorithm=algorithm)).reference

    assert reference(kl_loss_fn="none") is None
    assert reference(kl_loss_fn="k2", kl_loss_fn_args={"kl_coef": 0.0}) is None
    assert reference(kl_loss_fn="k2") is not None


def test_kl_is_measured_against_the_initial_weights(make_config: Maker) -> None:
    made = worker(make_config(algorithm={"kl_loss_fn": "k3", "kl_loss_fn_args": {"kl_coef": 0.1}}))
    assert made.train_step(make_experiences(1), 1)["actor/kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert made.train_step(make_experiences(1), 2)["actor/kl_loss"] > 1e-4


def test_gradient_that_is_not_finite_skips_the_step_and_ends_after_three(make_config: Maker) -> None:
    made = worker(make_config())
    experiences = make_experiences(1)
    made.train_step(experiences, 1)
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    handle = made.model.lm_head.weight.register_hook(lambda grad: grad * float("nan"))
    assert made.train_step(experiences, 2)["actor/skipped_steps"] == 1.0
    assert made.train_step(experiences, 3)["actor/skipped_steps"] == 2.0
    assert all(torch.equal(before[name], tensor) for name, tensor in made.weights().items())
    with pytest.raises(NumericError, match="in 3 optimizer steps in a row, last in training step 4"):
        made.train_step(experiences, 4)
    handle.remove()
    made.actor.stepper.skipped_in_a_row = 0
    assert made.train_step(experiences, 5)["actor/grad_norm"] > 0.0


def test_out_of_memory_names_the_table_and_the_keys(make_config: Maker) -> None:
    made = worker(make_config())

    def fail(grad: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    made.model.lm_head.weight.register_hook(fail)
    with pytest.raises(OutOfMemoryError) as caught:
        made.train_step(make_experiences(1), 1)
    text = str(caught.value)
    for part in ("parameters", "MiB", "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu",
                 "ulysses_sequence_parallel_size", "entropy_from_logits_with_chunking"):  # fmt: skip
        assert part in text


def test_missing_tensors_are_named(make_config: Maker) -> None:
    experiences = make_experiences(1)
    experiences[3].advantages = None
    with pytest.raises(DataError, match="PPOPolicyLossFn needs advantages"):
        worker(make_config()).train_step(experiences, 1)
    experiences[3].advantages = torch.full((experiences[3].response_length,), float("nan"))
    with pytest.raises(DataError, match="advantages holds a value that is not finite"):
        worker(make_config()).train_step(experiences, 1)


def test_clipping_bounds_the_update(make_config: Maker) -> None:
    sgd = {"optimizer": {"optimizer_type": "sgd", "lr": 1.0, "weight_decay": 0.0}}
    made = worker(make_config(algorithm=sgd, trainer={"grad_clip": 0.125}))
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    metrics = made.train_step(make_experiences(1), 1)
    moved = sum(float((before[n] - t).double().square().sum()) for n, t in made.weights().items()) ** 0.5
    assert metrics["actor/grad_norm"] > 0.125 and moved == pytest.approx(0.125, rel=1e-3)


def test_epochs_and_mini_batches_make_optimizer_steps(make_config: Maker) -> None:
    def steps(**actor: Any) -> int:
        tree = {"trainer_config": {"actor_rollout_ref": {"actor": actor}}}
        made = worker(make_config(trainer=tree))
        made.train_step(make_experiences(1), 1)
        return int(next(iter(made.optimizer.state.values()))["step"])

    assert steps() == 1
    assert steps(ppo_epochs=3, shuffle=True) == 3
    assert steps(ppo_mini_batch_size=3) == 3
