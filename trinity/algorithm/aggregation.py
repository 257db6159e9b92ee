"""Sums, means and loss aggregation over counted tokens.

There are two conventions for turning token losses into one loss.

Dimension key: B = responses, T = response positions. A position whose mask is false holds an arbitrary number and
influences nothing; the gradient there is 0. The conventions differ in rows without counted tokens: `aggregate_loss`
includes them in a mean over rows, `agg_loss` does not.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.common.constants import LOSS_AGG_MODES as LOSS_AGG_MODES
from trinity.common.constants import VERL_LOSS_AGG_MODES as VERL_LOSS_AGG_MODES


def counted(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `values` with 0 where `mask` is false, even where it is NaN."""
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], axis: int | None = None
) -> Float[Tensor, "..."]:
    """Return the sum of the counted `values`, over everything or over `axis`."""
    kept = counted(values, mask)
    return kept.sum() if axis is None else kept.sum(axis)


def masked_mean(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], axis: int | None = None
) -> Float[Tensor, "..."]:
    """Return the mean of the unmasked `values`, overall or over `axis`.

    It is 0 where nothing is counted.
    """
    count = mask.bool().sum() if axis is None else mask.bool().sum(axis)
    return masked_sum(values, mask, axis) / count.clamp(min=1)


def aggregate_loss(
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    loss_agg_mode: str = "token-mean",
    normalizer: float | None = None,
) -> Float[Tensor, ""]:
    """Aggregate per-token `values` to one number; 0 if no token is counted.

    Args:
        values: per-token loss.
        mask: true on the tokens that count.
        loss_agg_mode: `token-mean` the mean over tokens (DAPO, arXiv:2503.14476v2, eq. 12);
            `seq-mean-token-sum` the mean over all rows of row sums;
            `seq-mean-token-mean` the mean over all rows of row means, a row without tokens adding 0;
            `seq-mean-token-sum-norm` the sum divided by `normalizer` (Dr. GRPO, arXiv:2503.20783v2, section 3.2).
        normalizer: divisor of the last mode; T by default.

    Raises:
        ValueError: an unknown mode.
    """
    if loss_agg_mode == "token-mean":
        return masked_mean(values, mask)
    if loss_agg_mode == "seq-mean-token-sum":
        return masked_sum(values, mask, -1).mean()
    if loss_agg_mode == "seq-mean-token-mean":
        return masked_mean(values, mask, -1).mean()
    if loss_agg_mode == "seq-mean-token-sum-norm":
        return masked_sum(values, mask) / (values.shape[-1] if normalizer is None else normalizer)
    raise ValueError(f"loss_agg_mode must be one of {', '.join(LOSS_AGG_MODES)}, got {loss_agg_mode!r}")


def agg_loss(
    loss_mat: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    loss_agg_mode: str = "token-mean",
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
) -> Float[Tensor, ""]:
    """Return the per-token `loss_mat` as one number, as veRL does.

    The result is 0 where nothing is counted.

    Args:
        loss_mat: per-token loss.
        loss_mask: true on the tokens that count.
        loss_agg_mode: `token-mean`, `token-sum`, or a mean over the rows that have tokens: `seq-mean-token-sum` of
            their sums, `seq-mean-token-mean` of their means, `seq-mean-token-sum-norm` of their sums divided by
            `loss_scale_factor`.
        dp_size: factor that undoes the mean of gradients over as many ranks.
        batch_num_tokens: number of tokens to divide by, of the whole mini-batch; those of `loss_mask` by default.
        global_batch_size: number of rows to divide by, of the whole mini-batch; those with tokens by default.
        loss_scale_factor: divisor of the sums of the last mode; T by default.

    Raises:
        ValueError: an unknown mode.
    """
    if loss_agg_mode == "token-sum":
        return masked_sum(loss_mat, loss_mask) * dp_size
    if loss_agg_mode == "token-mean":
        num_tokens = loss_mask.bool().sum().clamp(min=1) if batch_num_tokens is None else batch_num_tokens
        return masked_sum(loss_mat, loss_mask) / num_tokens * dp_size
    if loss_agg_mode not in VERL_LOSS_AGG_MODES:
        raise ValueError(f"loss_agg_mode must be one of {', '.join(VERL_LOSS_AGG_MODES)}, got {loss_agg_mode!r}")
    of_row = masked_mean if loss_agg_mode == "seq-mean-token-mean" else masked_sum
    rows = loss_mask.bool().any(-1).sum().clamp(min=1) if global_batch_size is None else global_batch_size
    loss = of_row(loss_mat, loss_mask, -1).sum() / rows * dp_size
    if loss_agg_mode == "seq-mean-token-sum-norm":
        return loss / (loss_mat.shape[-1] if loss_scale_factor is None else loss_scale_factor)
    return loss
