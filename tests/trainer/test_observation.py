"""What is said of a token of a training step is what its loss does, for every policy loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.algorithm.test_far_policies import OTHER_FORMULAS
from tests.algorithm.test_losses import make
from trinity.algorithm import ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN
from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.loss import LossFn
from trinity.trainer.verl.observation import ABOVE, BELOW, DUAL, MASKED, REJECTED, Observer, RowContribution

ROWS, WIDTH = 12, 6
# A regulariser moves tokens that the clip leaves out, and rejection is by the row here.
ARGS: dict[str, dict[str, Any]] = {
    "clip_cov": {"clip_cov_ratio": 0.5, "clip_cov_lb": -1e9, "clip_cov_ub": 1e9},
    "bypass_mode": {"rollout_rs": "token_k2", "rollout_rs_threshold": 0.1},
    "sppo": {"epsilon": 0.1},
}
CASES = [
    *((name, ARGS.get(name.removeprefix("verl_"), {})) for name in POLICY_LOSS_FN),
    *((name, args) for name, args in OTHER_FORMULAS if "regularizer" not in args and name != "dpo"),
    ("sft_phi", {"cutoff_prob": 0.3}),
]
CUTS_NOTHING = {"gpg", "opmd", "dro", "sft", "sft_is", "dpo"}


def batch(distance: float, *, each: int = 1, **columns: Tensor) -> TrainBatch:
    """Return random rows whose policy has moved about `distance` nats, one way in each row more than the other."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    logprob = -normal(ROWS, WIDTH).abs() - 0.1
    old = logprob + distance * (normal(ROWS, WIDTH) + 0.5 * normal(ROWS, 1))
    advantages = normal(ROWS, 1).expand(ROWS, WIDTH).clone()
    mask = torch.arange(WIDTH) < torch.randint(2, WIDTH + 1, (ROWS, 1), generator=generator)
    own = {"old_logprob": old, "ref_logprob": old, "advantages": advantages, "logprob": logprob}
    return TrainBatch(
        tokens=torch.zeros(ROWS, 1 + WIDTH, dtype=torch.long),
        lengths=torch.full((ROWS,), 1 + WIDTH),
        prompt_lengths=torch.ones(ROWS, dtype=torch.long),
        action_mask=mask,
        uids=tuple(map(str, range(ROWS))),
        columns=own | columns,
        values={"expert_mask": torch.arange(ROWS) % 4 == 3, "step": torch.full((ROWS,), 3)},
        model_versions=torch.zeros(ROWS, dtype=torch.long),
        rewards=torch.zeros(ROWS),
        rows_per_experience=each,
    )


def observed(name: str, args: dict[str, Any], rows: TrainBatch) -> list[RowContribution]:
    """Return what the loss does with the rows."""
    loss = LossFn(make(name, **args), KL_FN.get("none")(), ENTROPY_LOSS_FN.get("none")(), loss_agg_mode="token-mean")
    observer = Observer(loss, normalizer=1.0)
    if loss.policy_loss.select_tokens is not None:
        given = {"action_mask": rows.action_mask, **rows.columns}
        rows = rows.with_columns(selected=loss.policy_loss.select_tokens(**given))
    logprob = rows.columns["logprob"]
    rows = dataclasses.replace(rows, columns={k: v for k, v in rows.columns.items() if k != "logprob"})
    observer.begin(rows)
    observer.add(rows, logprob)
    return observer.rows


@pytest.mark.parametrize("distance", [0.3, 1.2, 30.0])
@pytest.mark.parametrize(("name", "args"), CASES)
def test_a_token_has_a_reason_if_and_only_if_its_advantage_has_no_gradient(
    name: str, args: dict[str, Any], distance: float
) -> None:
    reasons = []
    # A soft gate is exactly flat where it is saturated, which is no clipping.
    is_soft = name.endswith("sapo") and distance > 1.0
    for row in observed(name, args, batch(distance, each=2 if name == "dpo" else 1)):
        matters = row.counted & (row.columns["advantages"] != 0)
        has_reason = torch.tensor([reason is not None for reason in row.clip_reasons])
        assert not (has_reason & (row.gradient != 0)).any(), (row.clip_reasons, row.gradient)
        assert not (matters & ~has_reason & (row.gradient == 0)).any() or is_soft, (row.clip_reasons, row.gradient)
        assert not (has_reason & ~row.counted).any()
        reasons += [reason for reason in row.clip_reasons if reason is not None]
    if name.removeprefix("verl_") in CUTS_NOTHING:
        assert not reasons


@pytest.mark.parametrize("name", ["ppo", "verl_vanilla", "sppo", "rec", "cispo", "gspo", "geo_mean", "dppo_tv"])
def test_losses_that_clip_have_tokens_of_both_sides(name: str) -> None:
    args = {"rec": {"clip_mode": "two-side"}, "cispo": {"enable_mask_clip": True, "mask_clip_range_low": 0.2}}
    rows = observed(name, args.get(name, {}), batch(0.6))
    assert {reason for row in rows for reason in row.clip_reasons} >= {ABOVE, BELOW, None}
    for row in rows:
        assert row.ratio is not None
        for reason, ratio in zip(row.clip_reasons, row.ratio.tolist(), strict=True):
            assert reason is None or (reason == ABOVE) == (ratio > 1.0) or reason == DUAL


def test_gspo_judges_a_token_by_the_ratio_of_its_response() -> None:
    # The response has moved up by 0.15 a token, its first token down by 0.1.
    moved = torch.tensor([-0.1, 0.2, 0.2, 0.2, 0.2, 0.2])
    rows = batch(0.0)
    rows = rows.with_columns(old_logprob=rows.columns["logprob"] - moved)
    rows.action_mask[:] = True
    for row in observed("gspo", {"clip_range": 0.01}, rows):
        up = row.columns["advantages"][0] > 0
        assert row.clip_reasons == [ABOVE if up else None] * WIDTH
        assert row.ratio is not None and row.ratio.tolist() == pytest.approx([1.161834] * WIDTH)


def test_the_dual_clip_is_told_from_the_bounds() -> None:
    rows = batch(0.0)
    moved = torch.tensor([2.0, 0.5, 0.0, -0.5, -2.0, 1.0])
    rows = rows.with_columns(old_logprob=rows.columns["logprob"] - moved)
    rows.action_mask[:] = True
    for row in observed("ppo", {}, rows):
        # exp(2) > 3 = clip_ratio_c, exp(1) < 3.
        bad, good = [DUAL, None, None, BELOW, BELOW, None], [ABOVE, ABOVE, None, None, None, ABOVE]
        assert row.clip_reasons == (good if row.columns["advantages"][0] > 0 else bad)


def test_responses_that_sequence_masking_leaves_out_are_masked() -> None:
    rows = batch(0.0)
    rows = rows.with_columns(old_logprob=rows.columns["logprob"] + 0.15)
    rows.action_mask[:] = True
    for row in observed("ppo", {"enable_sequence_masking": True}, rows):
        assert row.clip_reasons == [None if row.columns["advantages"][0] > 0 else MASKED] * WIDTH


@pytest.mark.parametrize("name", ["ppo", "gspo", "gpg"])
def test_a_token_of_weight_0_or_outside_the_mask_of_rejection_is_rejected(name: str) -> None:
    rows = batch(0.0)
    rows.action_mask[:] = True
    weights, kept = torch.ones(ROWS, WIDTH), rows.action_mask.clone()
    weights[:, 1], kept[:, 2] = 0.0, False
    counted = rows.action_mask.clone()
    rows.action_mask[:] = kept
    for row in observed(name, {}, rows.with_columns(rollout_is_weights=weights, counted_mask=counted)):
        assert row.clip_reasons == [None, REJECTED, REJECTED, None, None, None]
