"""The bound of log-ratios between two policies.

It keeps their exponentials finite.

Dimension key: shapes are free.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

MAX_LOG_RATIO = 20.0


def bounded(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a log-ratio clamped to +-20, as veRL does.

    Its exponential is finite in float32; there is no gradient beyond the bound.
    """
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def is_beyond(log_ratio: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Return where `bounded` cuts off a log-ratio and its gradient."""
    return log_ratio.abs() > MAX_LOG_RATIO
