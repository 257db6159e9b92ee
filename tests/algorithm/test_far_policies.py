"""Losses, advantages' estimates and corrections stay finite however far two policies are apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.algorithm.test_losses import make, make_tensors
from trinity.algorithm import KL_FN, POLICY_LOSS_FN
from trinity.algorithm.rollout_correction import compute_rollout_correction

# None, a divergence of whole distributions, and k3, whose bounded form is low_var_kl.
UNBOUNDED = ("none", "full", "k3", "corrected_k3")
FAR = (100.0, -100.0, 1e4, -1e4)
# Arguments that choose another formula of the same class.
OTHER_FORMULAS: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"enable_sequence_masking": True}),
    ("ppo", {"fallback_to_policy_gradient": True}),
    ("cispo", {"enable_mask_clip": True}),
    *(("rec", {"clip_mode": mode}) for mode in ("none", "one-side", "gspo-one-side", "two-side", "ring")),
    *(("rec", {"clip_mode": "none", "weight": w}) for w in ("importance_sampling", "advantage")),
    ("rec", {"clip_mode": "gspo-one-side", "weight": "gspo_importance_sampling"}),
    *(("rec", {"regularizer": name, "regularizer_coef": 0.1}) for name in ("k2", "forward-kl")),
    ("dpo", {"label_smoothing": 0.1, "sft_coef": 0.1}),
    ("mix_chord", {"enable_phi_function": False}),
    ("verl_clip_cov", {"clip_cov_ratio": 0.5, "clip_cov_lb": -1e9, "clip_cov_ub": 1e9}),
    (
        "verl_bypass_mode",
        {"loss_type": "reinforce", "rollout_is": "sequence", "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.1},
    ),
]


def far_tensors(distance: float, dtype: torch.dtype, *, is_mixed: bool) -> dict[str, Tensor]:
    """Return tensors whose logprob - old_logprob is `distance`, at every other token its negative if `is_mixed`."""
    tensors = make_tensors(dtype)
    apart = torch.full_like(tensors["logprob"], distance)
    if is_mixed:
        apart[:, ::2] *= -1
    near = tensors["logprob"]
    return tensors | {
        "logprob": near + apart.clamp(max=0.0),
        "old_logprob": near - apart.clamp(min=0.0),
        "ref_logprob": near - apart.clamp(min=0.0),
    }


@pytest.mark.parametrize(("name", "args"), [*((name, {}) for name in POLICY_LOSS_FN), *OTHER_FORMULAS])
@pytest.mark.parametrize("distance", FAR)
def test_a_policy_that_has_moved_far_gives_a_finite_loss(name: str, args: dict[str, Any], distance: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for is_mixed in (False, True):
            tensors = far_tensors(distance, dtype, is_mixed=is_mixed)
            tensors["logprob"].requires_grad_()
            loss, metrics = make(name, **args)(**tensors)
            (gradient,) = torch.autograd.grad(loss, tensors["logprob"])
            assert torch.isfinite(loss) and torch.isfinite(gradient).all(), (dtype, is_mixed)
            # A perplexity is what it is.
            numbers = [number for key, number in metrics.items() if "_ppl" not in key and "ppl_" not in key]
            assert all(math.isfinite(number) for number in numbers), (dtype, is_mixed, metrics)


@pytest.mark.parametrize("name", [name for name in KL_FN if name not in UNBOUNDED])
@pytest.mark.parametrize("distance", FAR)
def test_a_reference_that_is_far_gives_a_finite_divergence(name: str, distance: float) -> None:
    for is_mixed in (False, True):
        tensors = far_tensors(distance, torch.float32, is_mixed=is_mixed)
        logprob = tensors["logprob"].requires_grad_()
        value = KL_FN.get(name)().calculate_kl(logprob, tensors["ref_logprob"], tensors["old_logprob"])
        (gradient,) = torch.autograd.grad(value.sum(), logprob)
        assert torch.isfinite(value).all() and torch.isfinite(gradient).all()


@pytest.mark.parametrize("rollout_is", ["token", "sequence"])
@pytest.mark.parametrize("rejection", ["token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_mean_k2", "seq_max_k3"])
@pytest.mark.parametrize("distance", FAR)
def test_a_correction_for_a_policy_far_away_is_finite(rollout_is: str, rejection: str, distance: float) -> None:
    tensors = far_tensors(distance, torch.float32, is_mixed=True)
    weights, _, metrics = compute_rollout_correction(
        tensors["logprob"],
        tensors["old_logprob"],
        tensors["action_mask"],
        rollout_is=rollout_is,
        rollout_is_threshold=1e9,
        rollout_is_batch_normalize=True,
        rollout_rs=rejection,
        rollout_rs_threshold=2.0,
    )
    assert weights is not None and torch.isfinite(weights).all()
    assert all(math.isfinite(number) for key, number in metrics.items() if "ppl" not in key)
