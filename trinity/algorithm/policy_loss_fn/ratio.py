"""Importance ratios and the bounds they are clipped to.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.aggregation import masked_mean
from trinity.algorithm.log_ratio import bounded

# What the bounds of a ratio may be, by the names that Trinity and veRL give them.
Ranges = dict[str, str | tuple[str, ...]]
CLIP_RANGE: Ranges = dict.fromkeys(("clip_range", "clip_range_low", "clip_range_high"), "[0, inf]")
CLIP_RATIO: Ranges = dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), "[0, inf]")


def clip_bounds(both: float | None, low: float | None, high: float | None, *, name: str) -> tuple[float, float]:
    """Return the lower and the upper bound as distances from 1.

    `low` and `high` override `both`.

    Args:
        both: bound on both sides.
        low: lower bound, if it differs.
        high: upper bound, if it differs.
        name: what the argument is called, for messages: `clip_range` or `clip_ratio`.

    Raises:
        ValueError: a side without a bound, or a negative bound.
    """
    low, high = both if low is None else low, both if high is None else high
    if low is None or high is None:
        raise ValueError(f"this policy loss needs {name}, or both {name}_low and {name}_high")
    if low < 0 or high < 0:
        raise ValueError(f"{name}_low and {name}_high must be >= 0, got {low} and {high}")
    return low, high


def clamped_log_ratio(logprob: Float[Tensor, "B T"], old_logprob: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return logprob - old_logprob clamped to +-20.

    Its exponential stays finite; there is no gradient beyond the bound.
    """
    return bounded(logprob - old_logprob)


def sequence_log_ratio(
    logprob: Float[Tensor, "B T"], old_logprob: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B 1"]:
    """Return each response's mean of logprob - old_logprob.

    The mean is over the counted tokens.
    """
    return masked_mean(logprob - old_logprob, action_mask, -1).unsqueeze(-1)
