"""Direct preference optimisation.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from trinity.algorithm.aggregation import masked_sum
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn


class DPOPolicyLossFn(PolicyLossFn):
    """Mean over pairs of -(1 - s) log sigmoid(x) - s log sigmoid(-x), x = beta (chosen - rejected log-ratio).

    arXiv:2305.18290, eq. 7; with label smoothing s the conservative form of Mitchell (2023). The log-ratio of a
    response is the sum of logprob - ref_logprob over its tokens. Rows 0, 2, ... are chosen, rows 1, 3, ... the
    rejected ones beside them; trinity-rft 0.6.0 sums over the whole batch before the sigmoid.

    Args:
        backend: see `PolicyLossFn`.
        beta: strength of the pull to the reference, > 0.
        label_smoothing: probability s in [0, 0.5) that a pair is labelled the wrong way round.

    Raises:
        ValueError: `beta` not positive, or `label_smoothing` outside its range.
    """

    def __init__(self, backend: str = "verl", beta: float = 0.1, label_smoothing: float = 0.0) -> None:
        super().__init__(backend)
        if beta <= 0:
            raise ValueError(f"beta must be > 0, got {beta}")
        if not 0.0 <= label_smoothing < 0.5:
            raise ValueError(f"label_smoothing must be in [0, 0.5), got {label_smoothing}")
        self.beta = beta
        self.label_smoothing = label_smoothing
        # A mean over pairs is a mean over rows: a micro-batch of whole pairs adds its share of the rows.
        self.loss_agg_mode = "seq-mean-token-sum"

    def __call__(  # type: ignore[override]
        self,
        logprob: Float[Tensor, "B T"],
        ref_logprob: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and the metrics `dpo_loss`, `chosen_reward`, `rejected_reward` and `accuracy_mean`.

        Raises:
            ValueError: an odd number of rows.
        """
        if logprob.shape[0] % 2:
            raise ValueError(f"dpo needs rows in pairs of chosen and rejected, got {logprob.shape[0]} rows")
        rewards = self.beta * masked_sum(logprob - ref_logprob, action_mask, -1)
        chosen, rejected = rewards[0::2], rewards[1::2]
        margin = chosen - rejected
        smoothing = self.label_smoothing
        losses = -(1.0 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
        loss = losses.mean()
        metrics = {
            "dpo_loss": loss.item(),
            "chosen_reward": chosen.detach().mean().item(),
            "rejected_reward": rejected.detach().mean().item(),
            "accuracy_mean": (chosen > rejected).to(loss.dtype).mean().item(),
        }
        return loss, metrics
