"""Group-relative REINFORCE with clipping, weights and a regulariser.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.aggregation import counted, masked_mean
from trinity.algorithm.log_ratio import bounded
from trinity.algorithm.policy_loss_fn.clipping import note_clipping
from trinity.algorithm.policy_loss_fn.ratio import clip_bounds, sequence_log_ratio
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn

OF_SEQUENCE = "gspo-one-side"
CLIP_MODES = ("none", "one-side", "two-side", "ring", OF_SEQUENCE)
WEIGHTS = ("none", "importance_sampling", "gspo_importance_sampling", "advantage")
REGULARIZERS = ("none", "k2", "forward-kl")


@POLICY_LOSS_FN.register_module("rec")
class RECPolicyLossFn(TokenLossFn):
    """The REC, REP and RED families of group-relative losses.

        -A w logprob on the tokens that the clip mode keeps, plus the regulariser on all

    arXiv:2509.24203. r = exp(logprob - old_logprob) of the token; for `gspo-one-side` the exponent is its mean over the
    response. No gradient flows through w, r and the choice of tokens; logarithms of w and r are clamped to +-20. The
    loss is a mean over tokens, for `gspo-one-side` the mean over responses of their means.

    Args:
        backend: see `PolicyLossFn`.
        epsilon_low: lower clip range.
        epsilon_high: upper clip range.
        epsilon_low_prime: lower end of the ring.
        epsilon_high_prime: upper end of the ring.
        clip_mode: which tokens are kept. `none`: all. `one-side`: r <= 1 + high where A >= 0, r >= 1 - low where
            A <= 0. `two-side`: both bounds for every A. `ring`: as two-side, and r <= 1 - low prime where A >= 0,
            r >= 1 + high prime where A <= 0. `gspo-one-side`: one-side with the ratio of the response.
        weight: w: `none` 1, `importance_sampling` r of the token, `gspo_importance_sampling` that of the response,
            `advantage` exp(A / temp).
        regularizer: `k2` coef (logprob - old_logprob)^2, `forward-kl` -coef logprob, or `none`.
        regularizer_coef: coef, >= 0.
        temp: temperature of the weight `advantage`, > 0.

    Raises:
        ValueError: an unknown choice, a negative range or coefficient, or `temp` not positive.
    """

    summary = "group-relative REINFORCE and its variants (arXiv:2509.24203)"
    formula = (
        "= mean of -A w logprob on the kept tokens, 0 on the others, plus the regulariser on all"
        "\n?clip_mode=gspo-one-side the mean is over the responses of their means over tokens"
        "\n?clip_mode!=gspo-one-side the mean is over the tokens"
        "\n?weight=none w = 1"
        "\n?weight=importance_sampling w = sg(r)"
        "\n?weight=gspo_importance_sampling w = sg(exp(mean over the response of logprob - old_logprob))"
        "\n?weight=advantage w = exp(A / {temp})"
        "\n?clip_mode=none every token is kept"
        "\n?clip_mode=one-side kept: r <= 1 + {epsilon_high} where A >= 0, r >= 1 - {epsilon_low} where A <= 0"
        "\n?clip_mode=gspo-one-side kept: s <= 1 + {epsilon_high} where A >= 0, s >= 1 - {epsilon_low} where A <= "
        "0, s = exp(mean over the response of logprob - old_logprob)"
        "\n?clip_mode=two-side kept: 1 - {epsilon_low} <= r <= 1 + {epsilon_high}"
        "\n?clip_mode=ring kept: 1 - {epsilon_low} <= r <= 1 + {epsilon_high}, r <= 1 - {epsilon_low_prime} where "
        "A >= 0, r >= 1 + {epsilon_high_prime} where A <= 0"
        "\n?regularizer=none the regulariser is 0"
        "\n?regularizer=k2 the regulariser is {regularizer_coef} (logprob - old_logprob)^2"
        "\n?regularizer=forward-kl the regulariser is -{regularizer_coef} logprob"
        "\nr = exp(logprob - old_logprob)"
    )
    ranges = {
        "epsilon_low": "[0, inf]",
        "epsilon_high": "[0, inf]",
        "epsilon_low_prime": "[0, inf]",
        "epsilon_high_prime": "[0, inf]",
        "clip_mode": CLIP_MODES,
        "weight": WEIGHTS,
        "regularizer": REGULARIZERS,
        "regularizer_coef": "[0, inf]",
        "temp": "(0, inf]",
    }

    def __init__(
        self,
        backend: str = "verl",
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        epsilon_low_prime: float = 0.6,
        epsilon_high_prime: float = 2.0,
        clip_mode: str = "none",
        weight: str = "none",
        regularizer: str = "none",
        regularizer_coef: float = 0.0,
        temp: float = 1.0,
    ) -> None:
        super().__init__(backend, "seq-mean-token-mean" if clip_mode == OF_SEQUENCE else "token-mean")
        choices = (("clip_mode", clip_mode, CLIP_MODES), ("weight", weight, WEIGHTS))
        for name, chosen, known in (*choices, ("regularizer", regularizer, REGULARIZERS)):
            if chosen not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {chosen!r}")
        if temp <= 0 or regularizer_coef < 0:
            raise ValueError(f"temp must be > 0 and regularizer_coef >= 0, got {temp} and {regularizer_coef}")
        self.inner = clip_bounds(None, epsilon_low, epsilon_high, name="epsilon")
        self.outer = clip_bounds(None, epsilon_low_prime, epsilon_high_prime, name="epsilon_prime")
        self.clip_mode = clip_mode
        self.weight = weight
        self.regularizer = regularizer
        self.regularizer_coef = regularizer_coef
        self.temp = temp

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        old_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `pg_loss` and `pg_clipfrac`."""
        logprob, old_logprob, advantages = (counted(x, action_mask) for x in (logprob, old_logprob, advantages))
        log_ratio = logprob - old_logprob
        ratio = bounded(log_ratio.detach()).exp()
        of_sequence = bounded(sequence_log_ratio(logprob, old_logprob, action_mask).detach()).exp().expand_as(ratio)
        compared = of_sequence if self.clip_mode == OF_SEQUENCE else ratio
        kept = self._kept(compared, advantages)
        note_clipping(compared, clipped=~kept)
        weight = torch.where(kept, self._weights(ratio, of_sequence, advantages), torch.zeros_like(ratio))
        losses = -advantages * weight * logprob
        if self.regularizer == "k2":
            losses = losses + self.regularizer_coef * log_ratio.square()
        elif self.regularizer == "forward-kl":
            losses = losses - self.regularizer_coef * logprob
        loss = self.aggregate(losses, action_mask)
        clipped = masked_mean((~kept).to(loss.dtype), action_mask)
        return loss, {"pg_loss": loss.item(), "pg_clipfrac": clipped.item()}

    def _kept(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        if self.clip_mode == "none":
            return torch.ones_like(ratio, dtype=torch.bool)
        is_good, is_bad = advantages >= 0, advantages <= 0
        is_low_enough, is_high_enough = ratio <= 1.0 + self.inner[1], ratio >= 1.0 - self.inner[0]
        if self.clip_mode in ("one-side", OF_SEQUENCE):
            return (is_good & is_low_enough) | (is_bad & is_high_enough)
        kept = is_low_enough & is_high_enough
        if self.clip_mode == "ring":
            kept = kept | (is_good & (ratio <= 1.0 - self.outer[0])) | (is_bad & (ratio >= 1.0 + self.outer[1]))
        return kept

    def _weights(self, ratio: Tensor, of_sequence: Tensor, advantages: Tensor) -> Tensor:
        if self.weight == "importance_sampling":
            return ratio
        if self.weight == "gspo_importance_sampling":
            return of_sequence
        if self.weight == "advantage":
            return bounded(advantages / self.temp).exp()
        return torch.ones_like(ratio)
