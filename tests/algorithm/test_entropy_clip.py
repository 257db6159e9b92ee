"""Clip-B and Clip-V by hand: which tokens lose their advantage."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trinity.algorithm import ADVANTAGE_FN

MASK = torch.tensor([[True, True, True], [True, True, False]])
UID = ["a", "a"]
REWARDS = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
# The advantages are +-1/sqrt(2): scores 1 and 0, mean 0.5, unbiased standard deviation 1/sqrt(2).
GAIN = 0.5 / (math.sqrt(0.5) + 1e-6)
LOGPROB = torch.tensor([[-1.0, -0.1, -0.2], [-1.0, -0.01, torch.nan]], dtype=torch.float64)
ENTROPY = torch.tensor([[0.5, 0.1, 0.3], [0.2, 0.9, torch.nan]], dtype=torch.float64)


def _call(name: str, args: dict[str, Any], **tensors: Any) -> tuple[list[list[float]], dict[str, float]]:
    given = {
        "token_level_rewards": REWARDS,
        "action_mask": MASK,
        "uid": UID,
        "old_logprob": LOGPROB,
        "entropys": ENTROPY,
    }
    advantages, returns, metrics = ADVANTAGE_FN.get(name)(**args)(**given | tensors)
    assert returns[MASK].abs().min() == pytest.approx(GAIN)
    return [[round(float(a), 6) for a in row] for row in advantages], metrics


# S = p (H + ln p): e^-1 (-0.5) = -0.184, 0, e^-0.2 0.1 = 0.082; e^-1 (-0.8) = -0.294, e^-0.01 0.89 = 0.881.
# Their mean is 0.097 and their deviation 0.413: the fourth token is 0.95 deviations below, the first 0.68.
@pytest.mark.difference("`clipb`, `clipv`")
@pytest.mark.parametrize(("mu", "clipped"), [(0.5, True), (0.9, True), (1.0, False)])
def test_clip_b_spares_positive_tokens_and_those_near_the_mean(mu: float, clipped: bool) -> None:
    advantages, metrics = _call("clipb", {"mu": mu})
    gain = round(GAIN, 6)
    assert advantages == [[gain] * 3, [0.0 if clipped else -gain, -gain, 0.0]]
    assert metrics["clipped_frac"] == pytest.approx(0.2 if clipped else 0.0)


# E - S with E = 0: 0.184, 0, -0.082, 0.294, -0.881, of deviation 0.413.
@pytest.mark.difference("`clipb`, `clipv`")
@pytest.mark.parametrize(
    ("args", "clipped"),
    [({"mu": 0.7, "max_frac": 1.0}, True), ({"mu": 0.8, "max_frac": 1.0}, False), ({"mu": 0.1, "max_frac": 0.2}, True),
     ({"mu": 0.1, "max_frac": 0.19}, False)],
)  # fmt: skip
def test_clip_v_clips_few_tokens_without_gain(args: dict[str, Any], clipped: bool) -> None:
    advantages, metrics = _call("clipv", args, necs=torch.zeros(2, 3, dtype=torch.float64))
    gain = round(GAIN, 6)
    assert advantages == [[gain] * 3, [0.0 if clipped else -gain, -gain, 0.0]]
    assert metrics["clipped_frac"] == pytest.approx(0.2 if clipped else 0.0)


def test_the_cap_takes_the_largest_differences_in_the_order_of_the_batch() -> None:
    rewards = torch.zeros_like(REWARDS)  # equal scores: every advantage is 0 and may be clipped
    necs = torch.zeros(2, 3, dtype=torch.float64)
    call = ADVANTAGE_FN.get("clipv")(mu=0.01, max_frac=0.4)
    _, _, metrics = call(rewards, MASK, UID, LOGPROB, ENTROPY, necs)
    assert metrics["clipped_frac"] == pytest.approx(0.4), "two of five; three are above the bound"


def test_fewer_than_two_tokens_have_no_deviation() -> None:
    mask = torch.tensor([[True, False, False], [False, False, False]])
    for name, more in (("clipb", {}), ("clipv", {"necs": torch.zeros(2, 3, dtype=torch.float64)})):
        advantages, _, metrics = ADVANTAGE_FN.get(name)()(
            token_level_rewards=REWARDS, action_mask=mask, uid=UID, old_logprob=LOGPROB, entropys=ENTROPY, **more
        )
        assert metrics["clipped_frac"] == 0.0 and bool(advantages.isfinite().all())


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [("clipb", {"mu": 0.0}, "clipb needs mu > 0, got 0"), ("clipv", {"mu": -1.0}, "clipv needs mu > 0"),
     ("clipv", {"max_frac": 0.0}, r"max_frac in \(0, 1\], got 0"), ("clipv", {"max_frac": 2.0}, "max_frac in")],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ADVANTAGE_FN.get(name)(**args)
