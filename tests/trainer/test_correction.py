"""Old log-probabilities, and what the trainer does about rollouts that another policy sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.trainer.conftest import make_experiences
from tests.trainer.test_update import assert_same, worker
from trinity.algorithm import POLICY_LOSS_FN, PolicyLossFn
from trinity.common.config import Config
from trinity.common.errors import ConfigError, DataError
from trinity.common.experience import Experience
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.verl.loss import Metrics
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
SPLITS = ({"max_rows": 1, "max_tokens": None}, {"max_rows": 5, "max_tokens": None}, {"max_tokens": 40})
RATIOS = (0.2, 0.9, 1.0, 1.5, 4.0)


def _config(make_config: Maker, loss: str = "gpg", correction: dict[str, Any] | None = None, **args: Any) -> Config:
    algorithm = {"policy_loss_fn": loss, "policy_loss_fn_args": args, "bypass_old_logprobs": False}
    return make_config(algorithm=algorithm | {"rollout_correction": correction})


def _known_ratios(made: ActorWorker, experiences: list[Experience]) -> Tensor:
    """Set the rollouts' log-probabilities so that old over rollout is a known ratio; return the ratios [B, T]."""
    batch = collate(experiences)
    old = made.actor.compute_log_prob(batch)
    places = torch.arange(old.numel()).view(old.shape) % len(RATIOS)
    ratios = torch.tensor(RATIOS)[places]
    for row, exp in enumerate(experiences):
        exp.logprobs = (old[row] - ratios[row].log())[: exp.response_length]
    return ratios * batch.action_mask


def _corrected(made: ActorWorker, experiences: list[Experience]) -> tuple[TrainBatch, dict[str, float]]:
    assert made.correction is not None
    return made.correction(made._with_logprobs(collate(experiences)))


def _gradients(made: ActorWorker, batch: TrainBatch) -> dict[str, Tensor]:
    made.optimizer.zero_grad()
    made.actor._accumulate(batch, Metrics(), None)
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in made.model.named_parameters()}


class Recorder(PolicyLossFn):
    """REINFORCE that keeps the old log-probabilities it was given."""

    def __call__(self, logprob, old_logprob, action_mask, advantages, **kwargs):
        self.seen = [*vars(self).get("seen", []), old_logprob[action_mask]]
        return -(advantages * logprob * action_mask).sum() / action_mask.sum(), {}


@pytest.fixture
def recorder() -> Iterator[str]:
    POLICY_LOSS_FN.register_module("recorder")(Recorder)
    yield "recorder"
    POLICY_LOSS_FN.contents.pop("recorder")


def test_recomputed_log_probabilities_are_those_before_the_step_in_every_mini_batch(
    make_config: Maker, recorder: str, model_path: Path
) -> None:
    config = _config(make_config, recorder)
    config = make_config(
        algorithm=config.algorithm.model_dump(exclude_unset=True),
        model={"temperature": 0.7},
        buffer={"explorer_input": {"taskset": {"name": "t", "path": "x", "rollout_args": {"temperature": 0.7}}}},
    )
    made = worker(config, mini_batch_size=4, epochs=2, max_rows=3, max_tokens=None)
    experiences = make_experiences(1)
    made.train_step(experiences, 1)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    expected = []
    with torch.no_grad():
        for exp in experiences:
            logits = model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1] / 0.7
            picked = logits.log_softmax(-1).gather(1, exp.tokens[exp.prompt_length :, None]).squeeze(1)
            expected.append(picked[exp.action_mask])
    seen = torch.cat(made.loss_fn.policy_loss.seen)
    wanted = torch.cat(expected).repeat(2)
    assert len(seen) == len(wanted)
    torch.testing.assert_close(seen.sort().values, wanted.sort().values, atol=1e-5, rtol=1e-5)
    moved = made.actor.compute_log_prob(collate(experiences))[collate(experiences).action_mask]
    assert float((moved - torch.cat(expected)).abs().max()) > 1e-2, (
        "the weights moved, the old log-probabilities did not"
    )


def test_old_log_probabilities_of_the_rollout_are_taken_as_they_are(make_config: Maker) -> None:
    made = worker(make_config())
    batch = made._with_logprobs(collate(make_experiences(1)))
    assert torch.equal(batch.columns["old_logprob"], batch.columns["rollout_logprob"])
    assert made.correction is None
    assert not [
        name
        for name in made.train_step(make_experiences(1), 1)
        if name.startswith(("rollout_corr/", "training/rollout_probs"))
    ]


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": 2.0}, lambda r: r.clamp(max=2.0)),
        ({"rollout_is": "token", "rollout_is_threshold": "0.5_2"}, lambda r: r * ((r >= 0.5) & (r <= 2.0))),
        ({"preset": "decoupled_token_is"}, lambda r: r.clamp(max=2.0)),
    ],
)
def test_a_weight_multiplies_the_loss_of_its_token(
    make_config: Maker, correction: dict[str, Any], expected: Any
) -> None:
    chosen = {"rollout_is": "token"} | correction
    made, experiences = worker(_config(make_config, correction=chosen)), make_experiences(1)
    ratios = _known_ratios(made, experiences)
    batch, metrics = _corrected(made, experiences)
    weights = expected(ratios)
    torch.testing.assert_close(batch.columns["rollout_is_weights"], weights, atol=1e-4, rtol=1e-4)
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(4.0, rel=1e-4)
    # -A w logprob: the same as advantages that were multiplied by hand, without weights.
    plain = worker(_config(make_config))
    by_hand = plain._with_logprobs(collate(experiences))
    by_hand = by_hand.with_columns(advantages=by_hand.columns["advantages"] * weights)
    assert_same(_gradients(plain, by_hand), _gradients(made, batch), tolerance=1e-5)


def test_weights_of_responses_are_products_divided_by_their_mean(make_config: Maker) -> None:
    correction = {"rollout_is": "sequence", "rollout_is_threshold": "3.0", "rollout_is_batch_normalize": True}
    made, experiences = worker(_config(make_config, correction=correction)), make_experiences(1)
    ratios = _known_ratios(made, experiences)
    batch, metrics = _corrected(made, experiences)
    mask = batch.action_mask
    product = torch.where(mask, ratios, torch.ones_like(ratios)).prod(-1).clamp(max=3.0)
    assert metrics["rollout_corr/rollout_is_batch_norm_factor"] == pytest.approx(float(product.mean()), rel=1e-4)
    wanted = (product / product.mean())[:, None] * mask
    torch.testing.assert_close(batch.columns["rollout_is_weights"], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.difference("`bypass_mode` over micro-batches")
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("loss", ["gpg", "ppo"])
def test_a_rejected_token_has_a_loss_of_zero_and_still_counts_in_the_mean(
    make_config: Maker, loss: str, mode: str
) -> None:
    correction = {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.1"}
    made, experiences = worker(_config(make_config, loss, correction, loss_agg_mode=mode)), make_experiences(1)
    ratios = _known_ratios(made, experiences)
    batch, metrics = _corrected(made, experiences)
    kept = (0.5 * ratios.log().square() <= 0.1) & collate(experiences).action_mask
    assert torch.equal(batch.action_mask, kept)
    rejected = 1 - float(kept.sum()) / float(batch.columns["counted_mask"].sum())
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(rejected) and rejected > 0.3
    plain = worker(_config(make_config, loss, loss_agg_mode=mode))
    zeroed = plain._with_logprobs(collate(experiences))
    zeroed = zeroed.with_columns(advantages=zeroed.columns["advantages"] * kept)
    assert_same(_gradients(plain, zeroed), _gradients(made, batch))


def test_rejecting_a_whole_response_leaves_its_reward_in_the_baseline(make_config: Maker) -> None:
    algorithm = {"advantage_fn": "rloo", "repeat_times": 4, "bypass_old_logprobs": False, "policy_loss_fn": "gpg"}
    correction = {"rollout_rs": "seq_max_k2", "rollout_rs_threshold": "1.0"}
    made = worker(make_config(algorithm=algorithm | {"rollout_correction": correction}))
    experiences = make_experiences(1)
    rewards = [1.0, 0.0, 0.0, 0.0, 3.0, 2.0, 2.0, 1.0]
    old = made.actor.compute_log_prob(collate(experiences))
    for row, exp in enumerate(experiences):
        exp.reward, exp.advantages = rewards[row], None
        exp.logprobs = old[row, : exp.response_length] - (3.0 if row == 0 else 0.0)
    batch, _ = _corrected(made, experiences)
    assert batch.action_mask.any(-1).tolist() == [False] + [True] * 7
    batch, _ = made._with_advantages(batch, experiences)
    assert not batch.columns["advantages"][0].any()
    assert float(batch.columns["advantages"][1].min()) == pytest.approx(-1 / 3)


CORRECTIONS = {
    "decoupled": {"rollout_is": "sequence", "rollout_is_batch_normalize": True, "rollout_rs": "token_k2,seq_mean_k3",
                  "rollout_rs_threshold": "0.5,0.4"},
    "bypass clip": {"bypass_mode": True, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_1.6"},
    "bypass reinforce": {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token",
                         "rollout_rs": "seq_mean_k2", "rollout_rs_threshold": "0.3"},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_split_does_not_change_a_corrected_gradient(make_config: Maker, name: str, mode: str) -> None:
    chosen = CORRECTIONS[name]
    if chosen.get("bypass_mode"):
        args = {k: v for k, v in chosen.items() if k != "bypass_mode"} | {"loss_agg_mode": mode}
        config = make_config(algorithm={"policy_loss_fn": "bypass_mode", "policy_loss_fn_args": args})
    else:
        config = _config(make_config, "verl_vanilla", chosen, loss_agg_mode=mode)
    experiences = make_experiences(1, tasks=3)
    _known_ratios(worker(config), experiences)
    experiences[5].action_mask = torch.zeros_like(experiences[5].action_mask)

    def of(**split: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
        made = worker(config, **split)
        batch = made._with_logprobs(collate(experiences))
        batch = batch if made.correction is None else made.correction(batch)[0]
        return _gradients(made, batch), made.train_step(experiences, 1)

    whole, metrics = of(max_tokens=None, max_rows=None)
    assert "rollout_corr/rollout_rs_masked_fraction" in metrics
    for split in SPLITS:
        parts, others = of(**split)
        assert_same(whole, parts)
        for key in ("actor/pg_loss", "rollout_corr/rollout_rs_masked_fraction", "rollout_corr/log_ppl_diff_max"):
            assert others[key] == pytest.approx(metrics[key], rel=1e-5, abs=1e-6), key


def test_the_mismatch_is_measured_wherever_it_is_known(make_config: Maker) -> None:
    made, experiences = worker(_config(make_config)), make_experiences(1)
    ratios = _known_ratios(made, experiences)
    mask = collate(experiences).action_mask
    metrics = made.train_step(experiences, 1)
    assert metrics["rollout_corr/kl"] == pytest.approx(-float(ratios[mask].log().mean()), abs=1e-5)
    assert metrics["rollout_corr/chi2_token"] == pytest.approx(float(ratios[mask].square().mean()) - 1, rel=1e-4)
    old = worker(_config(make_config)).actor.compute_log_prob(collate(experiences))[mask].exp()
    difference = (old - old / ratios[mask]).abs()
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(float(difference.max()), rel=1e-4)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(float(difference.std()), rel=1e-4)
    both = torch.stack([old, old / ratios[mask]])
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(
        float(torch.corrcoef(both)[0, 1]), rel=1e-3
    )
    assert not math.isnan(metrics["actor/grad_norm"])


def test_rollouts_without_log_probabilities_cannot_be_corrected(make_config: Maker) -> None:
    experiences = make_experiences(1)
    experiences[3].logprobs = None
    made = worker(_config(make_config, correction={"rollout_is": "token"}))
    with pytest.raises(DataError, match="rollout_correction needs the log-probabilities of the rollout") as caught:
        made.train_step(experiences, 1)
    assert caught.value.code == "E4620"
    assert not [name for name in worker(_config(make_config)).train_step(experiences, 1) if "rollout_corr" in name]


def test_a_plugin_loss_that_takes_no_weights_is_refused(make_config: Maker) -> None:
    class Own(PolicyLossFn):
        def __call__(self, logprob, action_mask, advantages):
            return -(logprob * advantages * action_mask).mean(), {}

    POLICY_LOSS_FN.register_module("own_without_weights")(Own)
    try:
        with pytest.raises(ConfigError, match="Own does not read rollout_is_weights") as caught:
            worker(_config(make_config, "own_without_weights", {"rollout_is": "token"}))
        assert caught.value.code == "E1852"
    finally:
        POLICY_LOSS_FN.contents.pop("own_without_weights")


def test_statistics_of_distributions_are_those_of_the_weights_before_the_step(
    make_config: Maker, model_path: Path
) -> None:
    algorithm = {"advantage_fn": "optimal_token_baseline", "repeat_times": 4, "bypass_old_logprobs": False}
    clipped = worker(make_config(algorithm=algorithm | {"advantage_fn": "clipv"}))
    assert clipped.statistics == {"entropys", "necs"}
    made, experiences = worker(make_config(algorithm=algorithm), max_rows=3, max_tokens=None), make_experiences(1)
    batch = made._with_logprobs(collate(experiences))
    assert torch.equal(batch.columns["old_logprob"], made.actor.compute_log_prob(batch))
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    for row, exp in enumerate(experiences):
        with torch.no_grad():
            probability = model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1].softmax(-1)
        wanted = probability.square().sum(-1) * exp.action_mask
        found = batch.columns["sum_pi_squared"][row, : exp.response_length]
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        entropy = -(probability * probability.log()).sum(-1)
        expected = {
            "entropys": entropy,
            "necs": (probability.square() * (entropy[:, None] + probability.log())).sum(-1),
        }
        columns = clipped._with_logprobs(collate(experiences)).columns
        for name, values in expected.items():
            found = columns[name][row, : exp.response_length]
            torch.testing.assert_close(found, values * exp.action_mask, atol=1e-5, rtol=1e-4)
    for exp in experiences:
        exp.advantages = None
    assert made.train_step(experiences, 1)["actor/grad_norm"] > 0


def test_rejecting_tokens_leaves_the_rewards_of_a_response_in_the_baseline(make_config: Maker) -> None:
    algorithm = {"advantage_fn": "rloo", "repeat_times": 4, "bypass_old_logprobs": False, "policy_loss_fn": "gpg"}
    correction = {"rollout_rs": "token_k2", "rollout_rs_threshold": "1.0"}
    made, plain = (worker(make_config(algorithm=algorithm | {"rollout_correction": c})) for c in (correction, None))
    experiences = make_experiences(1)
    old = made.actor.compute_log_prob(collate(experiences))
    for row, exp in enumerate(experiences):
        exp.advantages, exp.logprobs = None, old[row, : exp.response_length].clone()
        exp.token_level_reward = torch.arange(exp.response_length) + float(row)
        exp.logprobs[: 1 + row % 3] -= 3.0
    experiences[5].logprobs -= 3.0
    corrected, _ = _corrected(made, experiences)
    assert not corrected.action_mask[5].any() and corrected.columns["counted_mask"].sum() > corrected.action_mask.sum()
    found, _ = made._with_advantages(corrected, experiences)
    wanted, _ = plain._with_advantages(plain._with_logprobs(collate(experiences)), experiences)
    expected = wanted.columns["advantages"] * corrected.action_mask
    assert expected.any() and torch.allclose(found.columns["advantages"], expected)


def test_statistics_leave_the_old_log_probabilities_to_the_configuration(make_config: Maker) -> None:
    algorithm = {"advantage_fn": "optimal_token_baseline", "repeat_times": 4, "bypass_old_logprobs": True}
    batch = worker(make_config(algorithm=algorithm))._with_logprobs(collate(make_experiences(1)))
    assert torch.equal(batch.columns["old_logprob"], batch.columns["rollout_logprob"])
    assert batch.columns["sum_pi_squared"].any()
