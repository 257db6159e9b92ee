"""Properties and errors of rollout correction and of the value loss; their numbers are in `tests/oracle`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trinity.algorithm import utils

MASK = torch.tensor([[True, True, False], [True, False, False]])
OLD = torch.tensor([[-1.0, -2.0, 9.0], [-0.5, float("nan"), 3.0]], dtype=torch.float64)
ROLLOUT = torch.tensor([[-1.5, -2.0, 1.0], [-0.5, 2.0, 3.0]], dtype=torch.float64)


def correct(**options: Any) -> tuple[Any, torch.Tensor, dict[str, float]]:
    """Return the correction of two responses whose ratios are e^0.5, 1 and 1."""
    return utils.compute_rollout_correction(OLD, ROLLOUT, MASK, **options)


def test_metrics_of_the_mismatch_are_those_worked_out_by_hand() -> None:
    _, mask, metrics = correct()
    assert torch.equal(mask, MASK)
    # Mean log-probabilities of the responses: -1.5 and -0.5 trained, -1.75 and -0.5 sampled.
    expected = {
        "training_ppl": (math.exp(1.5) + math.exp(0.5)) / 2,
        "training_log_ppl": 1.0,
        "rollout_ppl": (math.exp(1.75) + math.exp(0.5)) / 2,
        "rollout_log_ppl": 1.125,
        "log_ppl_diff": -0.125,
        "log_ppl_abs_diff": 0.125,
        "log_ppl_diff_max": 0.0,
        "log_ppl_diff_min": -0.25,
        "ppl_ratio": (math.exp(-0.25) + 1) / 2,
        "kl": -0.5 / 3,
        "k3_kl": (math.exp(0.5) - 1.5) / 3,
        "chi2_token": (math.e + 2) / 3 - 1,
        "chi2_seq": (math.e + 1) / 2 - 1,
    }
    assert metrics == {f"rollout_corr/{name}": pytest.approx(value) for name, value in expected.items()}


def test_metrics_of_the_weights_are_those_worked_out_by_hand() -> None:
    weights, _, metrics = correct(rollout_is="token", rollout_is_threshold=1.5)
    assert weights.tolist() == [[1.5, 1.0, 0.0], [1.0, 0.0, 0.0]]
    high = math.exp(0.5)
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx((high + 2) / 3)
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(high)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(1 / 3)
    assert metrics["rollout_corr/rollout_is_seq_mean"] == pytest.approx(((high + 1) / 2 + 1) / 2)
    size = ((high + 2) / 3) ** 2 / ((high**2 + 2) / 3)
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(size)
    assert metrics["rollout_corr/rollout_is_oob_ratio"] == 0.0
    outside = correct(rollout_is="token", rollout_is_threshold="0.5_1.5")
    assert outside[0].tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert outside[2]["rollout_corr/rollout_is_oob_ratio"] == pytest.approx(1 / 3)


@pytest.mark.difference("All weights outside of a `'low_high'` band")
def test_weights_that_all_lie_outside_of_a_band_are_0_and_said() -> None:
    weights, _, metrics = correct(rollout_is="token", rollout_is_threshold="3_5")
    assert not weights.any() and metrics["rollout_corr/rollout_is_oob_ratio"] == 1.0


def test_rejection_counts_tokens_and_responses() -> None:
    weights, mask, metrics = correct(rollout_rs="token_k2,seq_max_k2", rollout_rs_threshold="0.01,9")
    assert weights is None and mask.tolist() == [[False, True, False], [True, False, False]]
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / 3)
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.5
    assert metrics["rollout_corr/rollout_rs_token_k2_masked_fraction"] == pytest.approx(1 / 3)
    assert metrics["rollout_corr/rollout_rs_seq_max_k2_masked_fraction"] == 0.0


def test_nothing_counted_gives_no_metrics_and_zero_weights() -> None:
    weights, mask, metrics = utils.compute_rollout_correction(
        OLD, ROLLOUT, torch.zeros_like(MASK), rollout_is="sequence", rollout_is_batch_normalize=True
    )
    assert not weights.any() and not mask.any()
    assert metrics == {"rollout_corr/rollout_is_oob_ratio": 0.0, "rollout_corr/rollout_is_batch_norm_factor": 0.0}


REFUSED = [
    ({"rollout_is": "group"}, "rollout_is must be one of token, sequence, got 'group'"),
    ({"rollout_is": "token", "rollout_is_threshold": True}, "rollout_is_threshold must be a positive number.*True"),
    ({"rollout_is": "token", "rollout_is_threshold": 0}, "must be a positive number, .*got 0"),
    ({"rollout_is": "token", "rollout_is_threshold": "2_1"}, "two in rising order as low_high, got '2_1'"),
    ({"rollout_is": "token", "rollout_is_threshold": "high"}, "must be a positive number, .*got 'high'"),
    ({"rollout_rs": "token_k1"}, "rollout_rs needs rollout_rs_threshold"),
    ({"rollout_rs": "token_k4", "rollout_rs_threshold": 1}, "rollout_rs must be made of token_k1, .*got 'token_k4'"),
    ({"rollout_rs": "token_k2", "rollout_rs_threshold": "1_2"}, "for k2 must be one number, got '1_2'"),
    ({"rollout_rs": "token_k2", "rollout_rs_threshold": "1,2"}, "one for each of 1 options, got '1,2'"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correct(**options)


def test_value_loss_of_the_whole_batch_is_that_of_its_parts() -> None:
    tensors = {name: torch.randn(2, 3, dtype=torch.float64) for name in ("vpreds", "returns", "values")}
    whole, _ = utils.compute_value_loss(**tensors, action_mask=MASK)
    rows = [({k: v[i : i + 1] for k, v in tensors.items()}, MASK[i : i + 1]) for i in range(2)]
    parts = [utils.compute_value_loss(**row, action_mask=mask, batch_num_tokens=3)[0] for row, mask in rows]
    assert sum(parts).item() == pytest.approx(whole.item())
    with pytest.raises(ValueError, match="cliprange_value must be >= 0, got -0.1"):
        utils.compute_value_loss(**tensors, action_mask=MASK, cliprange_value=-0.1)


def test_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="loss_agg_mode must be one of token-mean, .*token-sum, got 'sum'"):
        utils.agg_loss(OLD, MASK, "sum")
