"""Rollouts and an expert's rows in one mini-batch: the loss in plain torch, splits, batches of one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.conftest import make_experiences
from tests.trainer.test_critic import critic_of, ppo_config
from tests.trainer.test_update import assert_same, gradients, worker
from trinity.algorithm.sample_strategy.mix import as_one_batch
from trinity.common.config import Config
from trinity.common.errors import DataError
from trinity.common.experience import Experience
from trinity.trainer.advantage import BatchAdvantage, batch_advantage_of
from trinity.trainer.batch import collate
from trinity.trainer.correction import Correction
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
SPLITS = ({"max_rows": 1, "max_tokens": None}, {"max_rows": 5, "max_tokens": None}, {"max_tokens": 40})
MU, KL_COEF, ENTROPY_COEF = 0.3, 0.1, 0.05
NORMALIZER = 16.0  # max_response_tokens of the configuration of the tests


def _config(make_config: Maker, name: str = "mix", *, with_terms: bool = False, **args: Any) -> Config:
    terms = {
        "kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": KL_COEF},
        "entropy_loss_fn": "mix", "entropy_loss_fn_args": {"entropy_coef": ENTROPY_COEF},
    }  # fmt: skip
    algorithm = {"algorithm_type": name, "policy_loss_fn": name, "policy_loss_fn_args": args, "entropy_loss_fn": "none"}
    return make_config(algorithm=algorithm | (terms if with_terms else {}))


def _mixed(*, step: int = 3) -> list[Experience]:
    """Return 5 rollouts, one without counted tokens, and 3 rows of an expert, in turns."""
    rows = make_experiences(1)
    rows[2].action_mask = torch.zeros_like(rows[2].action_mask)
    made = as_one_batch(rows[:5], rows[5:], step=step)
    return [made[place] for place in (0, 5, 1, 2, 6, 3, 4, 7)]


def _is_expert(exp: Experience) -> bool:
    return bool(exp.info["is_expert"])


def _aggregate(rows: list[tuple[Tensor, Tensor]], mode: str) -> Tensor:
    """Return one number for pairs of token losses and mask, each row counted whether it has tokens or not."""
    sums = [values[mask].sum() for values, mask in rows]
    counts = [int(mask.sum()) for _, mask in rows]
    if mode == "token-mean":
        return torch.stack(sums).sum() / sum(counts)
    if mode == "seq-mean-token-sum":
        return torch.stack(sums).mean()
    if mode == "seq-mean-token-mean":
        return torch.stack([total / max(count, 1) for total, count in zip(sums, counts, strict=True)]).mean()
    return torch.stack(sums).sum() / NORMALIZER


def _plain(made: ActorWorker, experiences: list[Experience], mode: str) -> dict[str, Tensor]:
    """Return the gradients of the loss of the whole mini-batch, written down with Hugging Face's forward pass."""
    ppo, sft, entropies, divergences = [], [], [], []
    for exp in experiences:
        logits = made.model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1]
        logp = torch.log_softmax(logits, -1)
        chosen = logp.gather(1, exp.tokens[exp.prompt_length :, None])[:, 0]
        # The reference holds the weights of the policy: k2 has the value 0, and no gradient.
        divergences.append((0.5 * (chosen - chosen.detach()) ** 2, exp.action_mask))
        if _is_expert(exp):
            sft.append((-chosen, exp.action_mask))
            continue
        ratio = (chosen - exp.logprobs).exp()
        loss = torch.maximum(-exp.advantages * ratio, -exp.advantages * ratio.clamp(0.8, 1.2))
        loss = torch.where(exp.advantages < 0, torch.minimum(loss, -3 * exp.advantages), loss)
        ppo.append((loss, exp.action_mask))
        entropies.append((-(logp.exp() * logp).sum(1), exp.action_mask))
    total = (1 - MU) * _aggregate(ppo, mode) + MU * _aggregate(sft, mode)
    total = total - ENTROPY_COEF * _aggregate(entropies, mode) + KL_COEF * _aggregate(divergences, mode)
    made.optimizer.zero_grad()
    total.backward()
    return {name: parameter.grad.clone() for name, parameter in made.model.named_parameters()}


@pytest.mark.difference("`mix`, `mix_chord`: the two sides")
@pytest.mark.parametrize("mode", MODES)
def test_the_loss_is_that_of_the_whole_mini_batch_however_it_is_split(make_config: Maker, mode: str) -> None:
    config = _config(make_config, with_terms=True, mu=MU, loss_agg_mode=mode)
    config = make_config(algorithm=config.algorithm.model_dump() | {"loss_agg_mode": mode})
    experiences = _mixed()
    made = worker(config, max_tokens=None, max_rows=None)
    whole = gradients(made, experiences)
    assert_same(_plain(made, experiences, mode), whole, tolerance=1e-5)
    for split in SPLITS:
        assert_same(whole, gradients(worker(config, **split), experiences))


@pytest.mark.parametrize("name", ["mix", "mix_chord"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [False, True], ids=["usual", "expert"])
def test_a_mini_batch_of_one_kind_is_that_kinds_loss_with_its_weight(
    make_config: Maker, name: str, mode: str, kind: bool
) -> None:
    args = {"mu": MU} if name == "mix" else {"mu_valley": MU, "enable_phi_function": False}
    experiences = [exp for exp in _mixed() if _is_expert(exp) == kind]
    made = worker(_config(make_config, name, loss_agg_mode=mode, **args), max_rows=1, max_tokens=None)
    alone = make_config(algorithm={"policy_loss_fn": "sft" if kind else "ppo", "policy_loss_fn_args": {
        "loss_agg_mode": mode}, "loss_agg_mode": mode, "entropy_loss_fn": "none"})  # fmt: skip
    expected = gradients(worker(alone), experiences)
    weight = MU if kind else 1 - MU
    assert_same({key: weight * value for key, value in expected.items()}, gradients(made, experiences))


def test_metrics_name_the_sides_and_their_weights(make_config: Maker) -> None:
    args = {"mu_warmup_steps": 4, "mu_decay_steps": 4, "mu_peak": 0.8, "mu_valley": 0.2}
    weights = {}
    for step in (0, 2, 4, 6, 9):
        made = worker(_config(make_config, "mix_chord", **args), max_rows=1, max_tokens=None)
        metrics = made.train_step(_mixed(step=step), 1)
        weights[step] = metrics["actor/expert/weight"]
        assert metrics["actor/usual/weight"] == pytest.approx(1 - weights[step])
        sides = weights[step] * metrics["actor/expert/sft_phi_loss"] + (1 - weights[step]) * metrics[
            "actor/usual/pg_loss"]  # fmt: skip
        assert metrics["actor/policy_loss"] == pytest.approx(sides, abs=1e-6) == metrics["actor/final_loss"]
        assert {"actor/usual/ppo_kl", "actor/usual/pg_clipfrac"} <= metrics.keys()
        assert metrics["critic/advantages/min"] == -1.0 and metrics["critic/advantages/max"] == 1.0
    assert weights == pytest.approx({0: 0.0, 2: 0.4, 4: 0.8, 6: 0.5, 9: 0.2})


def test_entropy_of_expert_rows_is_not_counted(make_config: Maker) -> None:
    experiences = _mixed()
    usual = [exp for exp in experiences if not _is_expert(exp)]
    config = _config(make_config, with_terms=True, mu=MU)
    alone, both = (worker(config, max_rows=2, max_tokens=None).train_step(rows, 1) for rows in (usual, experiences))
    assert both["actor/entropy_loss"] == pytest.approx(alone["actor/entropy_loss"], rel=1e-6)


def test_expert_rows_have_ratio_one_in_a_divergence_that_is_weighted_by_it(make_config: Maker) -> None:
    def divergence(old: float) -> float:
        algorithm = {"algorithm_type": "mix", "policy_loss_fn": "mix", "entropy_loss_fn": "none",
                     "kl_loss_fn": "corrected_k3", "kl_loss_fn_args": {"kl_coef": 0.1}}  # fmt: skip
        made = worker(make_config(algorithm=algorithm))
        with torch.no_grad():
            made.model.lm_head.weight += 0.1
        experiences = _mixed()
        for exp in experiences:
            if _is_expert(exp):
                exp.logprobs = torch.full_like(exp.logprobs, old)
        return float(made.train_step(experiences, 1)["actor/kl_loss"])

    assert divergence(0.0) == divergence(-5.0) != 0.0


@pytest.mark.parametrize("name", ["rloo", "reinforceplusplus", "grpo_verl"])
def test_expert_rows_do_not_disturb_advantages_of_the_trainer(make_config: Maker, name: str) -> None:
    rows = make_experiences(1)
    for exp in rows:
        exp.advantages = None
    function = batch_advantage_of(make_config(algorithm={"advantage_fn": name, "repeat_times": 4}))
    assert isinstance(function, BatchAdvantage)
    alone, expected = function(collate(rows[:4]), [exp.eid.tid for exp in rows[:4]])
    both = as_one_batch(rows[:4], rows[4:], step=1)
    mixed = [both[place] for place in (4, 0, 5, 1, 6, 2, 7, 3)]
    batch, metrics = function(collate(mixed), [exp.eid.tid for exp in mixed])
    width = alone.action_mask.shape[1]
    for column in ("advantages", "returns"):
        assert torch.equal(batch.columns[column][1::2, :width], alone.columns[column])
        assert not batch.columns[column][::2].any() and alone.columns[column].any()
    assert metrics == expected
    only = function(collate([exp for exp in mixed if _is_expert(exp)]), ["a"] * 4)[0]
    assert not only.columns["advantages"].any()


def test_rows_that_nobody_marked_are_refused(make_config: Maker) -> None:
    with pytest.raises(DataError, match=r"MIXPolicyLossFn needs expert_mask.*sample_strategy"):
        worker(_config(make_config)).train_step(make_experiences(1), 1)


def test_expert_rows_are_not_measured_as_rollouts_of_another_policy(make_config: Maker) -> None:
    algorithm = {"algorithm_type": "mix", "policy_loss_fn": "mix", "bypass_old_logprobs": False}
    experiences = _mixed()
    usual = [exp for exp in experiences if not _is_expert(exp)]
    alone, both = (worker(make_config(algorithm=algorithm)).train_step(rows, 1) for rows in (usual, experiences))
    measured = {name for name in alone if name.startswith("rollout_corr/")}
    assert measured and all(both[name] == pytest.approx(alone[name], rel=1e-5, abs=1e-6) for name in measured)


def test_expert_rows_are_neither_weighted_nor_rejected(make_config: Maker) -> None:
    made = worker(make_config(algorithm={"bypass_old_logprobs": False, "policy_loss_fn": "ppo"}))
    batch = made._with_logprobs(collate(_mixed()))
    correct = Correction(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold="0.9_1.1")
    corrected, _ = correct(batch)
    experts = batch.values["expert_mask"]
    assert torch.equal(corrected.action_mask[experts], batch.action_mask[experts])
    assert corrected.action_mask[~experts].sum() < batch.action_mask[~experts].sum()
    assert (corrected.columns["rollout_is_weights"][experts][batch.action_mask[experts]] == 1.0).all()
    assert torch.equal(corrected.columns["counted_mask"], batch.action_mask)


def test_expert_rows_do_not_train_the_critic(make_config: Maker) -> None:
    """Their reward is not known: a return of 0 would teach the value model that demonstrations are worth nothing."""
    experiences = _mixed()
    usual = [exp for exp in experiences if not _is_expert(exp)]
    lines = [worker(ppo_config(make_config)).train_step(rows, 1) for rows in (usual, experiences)]
    for name in ("critic/vf_loss", "critic/grad_norm", "critic/vf_explained_var", "critic/vpred_mean"):
        assert lines[1][name] == pytest.approx(lines[0][name], rel=1e-5, abs=1e-6), name
    made = worker(ppo_config(make_config))
    before = {name: tensor.clone() for name, tensor in critic_of(made).model.named_parameters()}
    made.optimizer.param_groups[0]["weight_decay"] = critic_of(made).optimizer.param_groups[0]["weight_decay"] = 0.0
    made.train_step([exp for exp in experiences if _is_expert(exp)], 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in critic_of(made).model.named_parameters())
