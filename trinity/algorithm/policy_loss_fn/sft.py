"""Supervised loss.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn
from trinity.algorithm.utils import aggregate_loss


class SFTPolicyLossFn(PolicyLossFn):
    """Negative log-likelihood of the counted tokens.

    Args:
        backend: see `PolicyLossFn`.
        loss_agg_mode: see `aggregate_loss`.
    """

    def __init__(self, backend: str = "verl", loss_agg_mode: str = "token-mean") -> None:
        super().__init__(backend)
        self.loss_agg_mode = loss_agg_mode

    def __call__(  # type: ignore[override]
        self, logprob: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], **kwargs: Any
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss (nats) and the metric `sft_loss`."""
        loss = aggregate_loss(-logprob, action_mask, self.loss_agg_mode)
        return loss, {"sft_loss": loss.item()}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return the constructor's arguments and defaults."""
        return {"loss_agg_mode": "token-mean"}
