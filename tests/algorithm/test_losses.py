"""Properties and errors of the policy losses; their numbers are in `tests/oracle`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.common.config.conftest import MINIMAL
from trinity.algorithm import POLICY_LOSS_FN, PolicyLossFn
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn
from trinity.catalogue import BUILT_IN
from trinity.common.config import examine

REQUIRED: dict[str, dict[str, Any]] = {"verl_dro": {"dro_beta": 0.5}, "dro": {"dro_beta": 0.5}}
LENGTHS = (4, 2, 0, 5, 1, 3)


def make(name: str, **args: Any) -> PolicyLossFn:
    """Return a loss, with what it cannot do without."""
    return POLICY_LOSS_FN.get(name)(**REQUIRED.get(name, {}) | args)


def make_tensors(dtype: torch.dtype = torch.float64, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    """Return every tensor a loss may ask for; a row of length 0 has no counted token."""
    generator = torch.Generator().manual_seed(7)
    shape = (len(lengths), 5)

    def normal(scale: float) -> Tensor:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    logprob = -normal(1.0).abs() - 0.1
    return {
        "logprob": logprob,
        "old_logprob": logprob + normal(0.3),
        "ref_logprob": logprob + normal(0.3),
        "advantages": normal(1.0),
        "action_mask": torch.arange(5) < torch.tensor(lengths).unsqueeze(-1),
        "expert_mask": torch.arange(len(lengths)) % 2 == 1,
        "step": torch.full((len(lengths),), 3),
    }


def value_and_gradient(loss_fn: PolicyLossFn, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient with respect to logprob."""
    leaf = tensors["logprob"].clone().requires_grad_()
    loss, _ = loss_fn(**tensors | {"logprob": leaf})
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
def test_unknown_argument_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such'"):
        make(name, no_such=1)


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
def test_table_names_the_tensors_that_the_class_asks_for(name: str) -> None:
    loss_fn = make(name)
    parameters = inspect.signature(loss_fn.__call__).parameters.values()
    optional = {p.name for p in parameters if p.default is None}
    needs = POLICY_LOSS_FN.contents[name].needs | {"action_mask"}
    assert loss_fn.select_keys - optional <= needs <= loss_fn.select_keys


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_keeps_the_precision_it_is_given(name: str, dtype: torch.dtype) -> None:
    loss, gradient = value_and_gradient(make(name), make_tensors(dtype))
    exact, _ = value_and_gradient(make(name), make_tensors())
    assert loss.dtype == gradient.dtype == dtype
    torch.testing.assert_close(loss.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
def test_batch_without_a_counted_token_has_neither_loss_nor_gradient(name: str) -> None:
    tensors = make_tensors(lengths=(0, 0))
    loss, metrics = make(name)(**tensors)
    # The loss of a pair of empty responses is log 2: neither is preferred.
    assert loss.item() == pytest.approx(0.6931472 if name == "dpo" else 0.0)
    assert all(number == number for number in metrics.values())


@pytest.mark.parametrize("name", [n for n in POLICY_LOSS_FN if POLICY_LOSS_FN.get(n).zero_advantage_is_zero_loss])
def test_response_of_advantage_zero_has_no_gradient_where_the_class_says_so(name: str) -> None:
    tensors = make_tensors()
    tensors["advantages"][[0, 3]] = 0.0
    loss, gradient = value_and_gradient(make(name), tensors)
    assert not gradient[[0, 3]].any() and gradient[[1, 5]].any()
    moved = tensors | {"logprob": tensors["logprob"].clone()}
    moved["logprob"][[0, 3]] -= 0.5
    assert value_and_gradient(make(name), moved)[0].item() == pytest.approx(loss.item(), abs=1e-12)


ROW_MODES = ("seq-mean-token-sum", "seq-mean-token-mean")
BY_ROWS = [
    *((name, {"loss_agg_mode": mode}) for mode in ROW_MODES for name in (
        "ppo", "gspo", "cispo", "sapo", "topr", "sppo", "opmd", "importance_sampling", "sft", "sft_is", "sft_phi",
        "verl_vanilla", "verl_gspo", "verl_cispo", "verl_gpg", "verl_dppo_tv", "verl_dppo_kl", "verl_dro",
    )),
    ("verl_sapo", {}), ("verl_geo_mean", {}), ("rec", {"clip_mode": "gspo-one-side"}), ("dpo", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), BY_ROWS)
@pytest.mark.parametrize("size", [2, 4])
def test_micro_batches_weighted_by_their_rows_add_up_to_the_whole(name: str, args: dict[str, Any], size: int) -> None:
    tensors = make_tensors()
    loss_fn = make(name, **args)
    counts_all = not isinstance(loss_fn, TokenLossFn) or loss_fn.counts_empty_rows
    counted = torch.ones(6, dtype=torch.bool) if counts_all else tensors["action_mask"].any(-1)
    whole, whole_gradient = value_and_gradient(loss_fn, tensors)
    total, gradients = torch.zeros((), dtype=torch.float64), []
    for start in range(0, 6, size):
        micro = {key: value[start : start + size] for key, value in tensors.items()}
        share = counted[start : start + size].sum().item() / counted.sum().item()
        loss, gradient = value_and_gradient(loss_fn, micro)
        total = total + share * loss
        gradients.append(share * gradient)
    torch.testing.assert_close(total, whole, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(torch.cat(gradients), whole_gradient, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["mix", "mix_chord"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_mixed_micro_batches_weighted_by_their_rows_add_up_to_the_whole(name: str, dynamic: bool) -> None:
    tensors = make_tensors()
    sizes = {"ppo_mini_batch_size": 6, "train_batch_size_usual": 3, "train_batch_size_expert": 3}
    args = sizes | {"loss_agg_mode": "seq-mean-token-mean", "use_dynamic_bsz": dynamic}
    whole, _ = value_and_gradient(make(name, ppo_micro_batch_size_per_gpu=6, **args), tensors)
    loss_fn = make(name, ppo_micro_batch_size_per_gpu=2, **args)
    micros = [{key: value[start : start + 2] for key, value in tensors.items()} for start in (0, 2, 4)]
    total = sum(2 / 6 * value_and_gradient(loss_fn, micro)[0] for micro in micros)
    torch.testing.assert_close(total, whole, atol=1e-12, rtol=1e-12)


SAME = [
    ("ppo", {"clip_range": 0.1}, "verl_vanilla", {"clip_ratio": 0.1}),
    ("gspo", {"clip_range": 0.2}, "verl_gspo", {}),
    ("cispo", {"clip_range_low": 0.2, "clip_range_high": 0.3}, "verl_cispo", {"clip_ratio_high": 0.3}),
    ("sapo", {"loss_agg_mode": "seq-mean-token-mean"}, "verl_sapo", {}),
    ("verl_gpg", {}, "opmd", {"tau": 0.0}),
    ("verl_vanilla", {"loss_agg_mode": "token-mean"}, "verl_bypass_mode", {}),
    ("verl_gpg", {}, "verl_bypass_mode", {"loss_type": "reinforce"}),
]


@pytest.mark.parametrize(("first", "args", "second", "other"), SAME)
def test_two_names_of_one_formula_agree(first: str, args: dict[str, Any], second: str, other: dict[str, Any]) -> None:
    tensors = make_tensors(lengths=(4, 2, 5, 1, 3, 5))
    torch.testing.assert_close(
        value_and_gradient(make(first, **args), tensors), value_and_gradient(make(second, **other), tensors)
    )


def test_empty_row_stays_in_trinitys_mean_and_leaves_verls() -> None:
    tensors = make_tensors()
    trinity, _ = make("ppo", loss_agg_mode="seq-mean-token-sum")(**tensors)
    verl, _ = make("verl_vanilla", loss_agg_mode="seq-mean-token-sum")(**tensors)
    assert trinity.item() * 6 == pytest.approx(verl.item() * 5)


REFUSED = [
    ("ppo", {"loss_agg_mode": "token-sum"}, "loss_agg_mode must be one of token-mean, .*got 'token-sum'"),
    ("verl_gpg", {"loss_agg_mode": "sum"}, "loss_agg_mode must be one of token-mean, .*token-sum, got 'sum'"),
    ("ppo", {"clip_range": -0.1}, "clip_range_low and clip_range_high must be >= 0, got -0.1"),
    ("verl_vanilla", {"clip_ratio": None, "clip_ratio_low": 0.1}, "needs clip_ratio, or both clip_ratio_low and"),
    ("verl_dppo_tv", {"clip_ratio_c": 1.0}, "clip_ratio_c must be above 1"),
    ("sft_phi", {"cutoff_prob": 0.0}, r"cutoff_prob must be in \(0, 1\], got 0.0"),
    ("opmd", {"tau": -1.0}, "tau must be >= 0"),
    ("sapo", {"tau_neg": 0.0}, "tau_pos and tau_neg must be > 0"),
    ("sppo", {"epsilon": -0.1}, "epsilon must be >= 0"),
    ("dpo", {"beta": 0.0}, "beta must be > 0"),
    ("dpo", {"label_smoothing": 0.5}, r"label_smoothing must be in \[0, 0.5\)"),
    ("dpo", {"sft_coef": -1.0}, "sft_coef must be >= 0"),
    ("rec", {"clip_mode": "both"}, "clip_mode must be one of none, one-side, .*got 'both'"),
    ("rec", {"weight": "is"}, "weight must be one of none, .*got 'is'"),
    ("rec", {"regularizer": "k1"}, "regularizer must be one of none, k2, forward-kl, got 'k1'"),
    ("rec", {"temp": 0.0}, "temp must be > 0"),
    ("mix", {"mu": 1.5}, r"mu must be in \[0, 1\], got 1.5"),
    ("mix", {"ngpus_trainer": 0}, "ngpus_trainer >= 1 and .*got 1, 1, 0, 1, 1"),
    ("mix", {"train_batch_size_expert": -1}, "train_batch_size_expert >= 0, got 1, 1, 1, 1, -1"),
    ("mix_chord", {"mu_peak": 2.0}, r"mu_peak and mu_valley must be in \[0, 1\]"),
    ("mix_chord", {"mu_decay_steps": -1}, "mu steps must be >= 0"),
    ("verl_clip_cov", {"clip_cov_ratio": 2.0}, r"clip_cov_ratio must be in \[0, 1\]"),
    ("verl_kl_cov", {"ppo_kl_coef": -1.0}, "ppo_kl_coef >= 0"),
    ("verl_dro", {"dro_beta": None}, "verl_dro needs dro_beta > 0, got None"),
    ("verl_bypass_mode", {"loss_type": "grpo"}, "loss_type must be one of ppo_clip, reinforce, got 'grpo'"),
    ("verl_bypass_mode", {"rollout_is": "group"}, "rollout_is must be one of token, sequence, got 'group'"),
]


@pytest.mark.parametrize(("name", "args", "message"), REFUSED)
def test_invalid_argument_is_refused(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **args)


def test_infinite_ratio_outside_the_range_has_no_gradient() -> None:
    tensors = make_tensors(torch.float32)
    tensors["old_logprob"][0, 0] = -500.0
    tensors["advantages"][0, 0] = 1.0
    loss, gradient = value_and_gradient(make("rec", clip_mode="one-side", weight="importance_sampling"), tensors)
    assert loss.isfinite() and gradient.isfinite().all() and gradient[0, 0] == 0 and gradient.any()


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="rows in pairs of chosen and rejected, got 3 rows"):
        make("dpo")(**make_tensors(lengths=(1, 2, 3)))


def test_moving_mixture_needs_the_step() -> None:
    tensors = make_tensors()
    del tensors["step"]
    with pytest.raises(ValueError, match="mix_chord needs step"):
        make("mix_chord", mu_warmup_steps=5)(**tensors)
    assert make("mix_chord")(**tensors)[1]["mu"] == 0.1


def test_clip_cov_takes_out_as_many_as_it_says_and_the_same_ones_every_time() -> None:
    tensors = make_tensors(lengths=(5,) * 6)
    loss_fn = make("verl_clip_cov", clip_ratio=9.0, clip_cov_ratio=0.1, clip_cov_lb=-9.0, clip_cov_ub=9.0)
    loss, metrics = loss_fn(**tensors)
    assert metrics["pg_clipfrac"] == pytest.approx(3 / 30)
    torch.manual_seed(1)
    assert torch.equal(loss_fn(**tensors)[0], loss)
    assert (value_and_gradient(loss_fn, tensors)[1] == 0).sum() == 3


def test_rollout_weights_multiply_and_carry_no_gradient() -> None:
    tensors = make_tensors()
    weights = torch.full_like(tensors["logprob"], 0.5).requires_grad_()
    for name in ("ppo", "gspo", "cispo", "sapo", "verl_gpg", "verl_dro", "verl_geo_mean", "verl_dppo_kl"):
        loss, _ = make(name)(**tensors)
        weighted, _ = make(name)(**tensors, rollout_is_weights=weights)
        assert weighted.item() == pytest.approx(0.5 * loss.item(), rel=1e-8) and not weighted.requires_grad


@pytest.mark.parametrize("name", list(POLICY_LOSS_FN))
def test_every_loss_may_be_chosen_and_one_for_pairs_only_with_pairs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{MINIMAL}algorithm:\n  policy_loss_fn: {name}\n", encoding="utf-8")
    problems = examine(path, (), catalogue=BUILT_IN, cwd=tmp_path, schema_only=True)[1]
    found = [(p.code, p.suggestion) for p in problems if p.key == "algorithm.policy_loss_fn" and p.code != "E1842"]
    assert found == ([("E1833", "remove it")] if name == "dpo" else [])


def test_plugin_may_take_the_name_of_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{MINIMAL}algorithm:\n  policy_loss_fn: gspo\n", encoding="utf-8")
    catalogue = BUILT_IN.with_plugins({"policy_loss_fn": frozenset({"gspo"})})
    problems = examine(path, (), catalogue=catalogue, cwd=tmp_path, schema_only=True)[1]
    assert not [p for p in problems if p.key == "algorithm.policy_loss_fn"]
