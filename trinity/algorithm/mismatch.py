"""Metrics of the distance between sampling policy and trained policy.

Their names are veRL's.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.log_ratio import bounded

PREFIX = "rollout_corr"


def mismatch_metrics(
    old_logprob: Float[Tensor, "B T"], rollout_logprob: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> dict[str, float]:
    """Return perplexities, divergences and chi-squared distances.

    Divergences are in nats per token. Nothing is returned without a counted token. Perplexities are means over the
    responses that have tokens; `kl` estimates KL(rollout, trained) by its log-ratio and `k3_kl` by k3; `chi2_token` and
    `chi2_seq` are the mean of the squared ratio less 1, of tokens and responses.
    """
    rows = mask.any(-1)
    if not rows.any():
        return {}
    log_ratio = counted(old_logprob - rollout_logprob, mask)
    safe = bounded(log_ratio)
    total = bounded(log_ratio.sum(-1))
    old, rollout = -masked_mean(old_logprob, mask, -1)[rows], -masked_mean(rollout_logprob, mask, -1)[rows]
    difference = old - rollout
    values = {
        "training_ppl": old.exp().mean(),
        "training_log_ppl": old.mean(),
        "rollout_ppl": rollout.exp().mean(),
        "rollout_log_ppl": rollout.mean(),
        "log_ppl_diff": difference.mean(),
        "log_ppl_abs_diff": difference.abs().mean(),
        "log_ppl_diff_max": difference.max(),
        "log_ppl_diff_min": difference.min(),
        "ppl_ratio": difference.exp().mean(),
        "kl": masked_mean(-log_ratio, mask),
        "k3_kl": masked_mean(safe.exp() - 1.0 - safe, mask),
        "chi2_token": masked_mean((2.0 * safe).exp(), mask) - 1.0,
        "chi2_seq": (2.0 * total[rows]).exp().mean() - 1.0,
    }
    return {f"{PREFIX}/{name}": value.item() for name, value in values.items()}


def probability_metrics(
    old_logprob: Float[Tensor, "B T"], rollout_logprob: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> dict[str, float]:
    """Return metrics of the difference in the sampled tokens' probabilities.

    Nothing is returned without a counted token.

    `training/rollout_probs_diff_{max,mean,std}` are of the absolute differences (one token has std 0), and
    `training/rollout_actor_probs_pearson_corr` is their correlation, 0 where one side is constant.
    """
    if not mask.any():
        return {}
    old, rollout = old_logprob[mask].double().exp(), rollout_logprob[mask].double().exp()
    difference = (old - rollout).abs()
    left, right = old - old.mean(), rollout - rollout.mean()
    norm = (left.square().sum() * right.square().sum()).sqrt()
    return {
        "training/rollout_probs_diff_valid": 1.0,
        "training/rollout_probs_diff_max": difference.max().item(),
        "training/rollout_probs_diff_mean": difference.mean().item(),
        "training/rollout_probs_diff_std": difference.std(correction=int(len(difference) > 1)).item(),
        "training/rollout_actor_probs_pearson_corr": ((left * right).sum() / norm).item() if norm > 0 else 0.0,
    }


def weight_metrics(
    weights: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], *, low: float, high: float
) -> dict[str, float]:
    """Return spread of importance weights, and fractions out of bounds.

    The fractions are those above `high` and below `low`. `eff_sample_size` is mean(w)^2 / mean(w^2), 1 where all
    weights are equal. Nothing is returned without a counted token.
    """
    rows = mask.any(-1)
    if not rows.any():
        return {}
    tokens, responses = weights[mask], masked_mean(weights, mask, -1)[rows]
    values = {
        "mean": tokens.mean(),
        "std": tokens.std(correction=0),
        "max": tokens.max(),
        "min": tokens.min(),
        "eff_sample_size": tokens.mean().square() / tokens.square().mean(),
        "ratio_fraction_high": (tokens > high).to(tokens.dtype).mean(),
        "ratio_fraction_low": (tokens < low).to(tokens.dtype).mean(),
        "seq_mean": responses.mean(),
        "seq_std": responses.std(correction=0),
        "seq_max": responses.max(),
        "seq_min": responses.min(),
        "seq_max_deviation": (responses - 1.0).abs().max(),
        "seq_fraction_high": (responses > high).to(responses.dtype).mean(),
        "seq_fraction_low": (responses < low).to(responses.dtype).mean(),
    }
    return {f"{PREFIX}/rollout_is_{name}": torch.nan_to_num(value).item() for name, value in values.items()}
