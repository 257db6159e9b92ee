"""Masked statistics of token tensors, and statistics of group rewards.

Dimension key: B = responses, T = response positions. A position whose mask is false holds an arbitrary number and
influences nothing; every result is 0 there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.aggregation import masked_mean, masked_sum
from trinity.common.errors import DataError

WHITEN_EPSILON = 1e-8


def masked_zero(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return `values` with 0 where nothing is counted, also in place of NaN."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_var(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Return the unbiased variance of all counted values.

    It is 0 if fewer than two are counted.
    """
    count = mask.sum()
    return masked_sum((values - masked_mean(values, mask)).square(), mask) / (count - 1).clamp(min=1)


def masked_whiten(
    values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], shift_mean: bool = True
) -> Float[Tensor, "B T"]:
    """Return the counted values shifted and scaled to mean 0 and variance 1.

        (x - mean) / sqrt(variance + 1e-8), with the unbiased variance of all counted values

    Equal values give 0, and so does a single one.

    Args:
        values: numbers to whiten.
        mask: true where they count.
        shift_mean: false adds the old mean to the counted values again.
    """
    mean = masked_mean(values, mask)
    whitened = (values - mean) * torch.rsqrt(masked_var(values, mask) + WHITEN_EPSILON)
    return masked_zero(whitened if shift_mean else whitened + mean, mask)


def reward_to_go(rewards: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], gamma: float = 1.0) -> Float[Tensor, "B T"]:
    """Return the discounted sum of the counted rewards from each token on.

    Uncounted tokens have 0. Each counted token discounts by gamma.
    """
    if gamma == 1.0:
        return masked_zero(masked_zero(rewards, mask).flip(-1).cumsum(-1).flip(-1), mask)
    following = torch.zeros_like(rewards[:, 0])
    returns = torch.zeros_like(rewards)
    for step in reversed(range(rewards.shape[-1])):
        following = torch.where(mask[:, step], rewards[:, step] + gamma * following, following)
        returns[:, step] = following
    return masked_zero(returns, mask)


def rows_by_group(uid: Sequence[str], num_rows: int) -> list[list[int]]:
    """Return the row numbers of each group.

    Groups and rows are in the order of their first appearance.

    Raises:
        DataError: `uid` does not have `num_rows` entries (E4605).
    """
    if len(uid) != num_rows:
        raise DataError(f"uid must have one entry a response ({num_rows}), got {len(uid)}", code="E4605")
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(uid):
        groups.setdefault(name, []).append(row)
    return list(groups.values())


def group_mean(rewards: Sequence[float]) -> float:
    """Return the mean, 0 for a group of one, which has no baseline.

    For equal rewards it is exactly their value.
    """
    if len(rewards) == 1:
        return 0.0
    return rewards[0] if len(set(rewards)) == 1 else statistics.fmean(rewards)


def group_std(rewards: Sequence[float], *, is_population: bool = False) -> float:
    """Return the standard deviation; 0 for equal rewards, 1 for one reward.

    It is unbiased unless `is_population`.
    """
    if len(rewards) == 1:
        return 1.0
    if len(set(rewards)) == 1:
        return 0.0
    return float(torch.tensor(rewards, dtype=torch.float64).std(correction=0 if is_population else 1))


def log_mean_exp(values: Sequence[float]) -> float:
    """Return ln(mean(exp(values))) without overflow."""
    highest = max(values)
    return highest + math.log(statistics.fmean(math.exp(value - highest) for value in values))
