"""Entropy terms of the loss; the trainer subtracts what they return.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ENTROPY_LOSS_FN
from trinity.algorithm.utils import aggregate_loss
from trinity.utils.declaration import Declared


class EntropyLossFn(Declared, ABC):
    """A term that rewards the policy's entropy.

    Args:
        entropy_coef: coefficient, finite; 0 still reports the entropy.

    Raises:
        ValueError: it is not finite.
    """

    kind = "entropy_loss_fn"
    ranges: ClassVar[Mapping[str, str]] = {"entropy_coef": "(-inf, inf)"}

    def __init__(self, entropy_coef: float = 0.0) -> None:
        if not math.isfinite(entropy_coef):
            raise ValueError(f"entropy_coef must be finite, got {entropy_coef}")
        self.entropy_coef = entropy_coef

    @abstractmethod
    def __call__(
        self,
        entropy: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        loss_agg_mode: str = "token-mean",
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the coefficient times the aggregated entropy (nats), and metrics."""

    def rows(self, values: Mapping[str, Tensor]) -> Bool[Tensor, "B"] | None:
        """Return which rows of a batch the term covers; None: all of them.

        Args:
            values: tensors of the rows, by the names that `__call__` uses.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in a checkpoint.

        See `PolicyLossFn.state_dict`.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""


@ENTROPY_LOSS_FN.register_module("default")
class DefaultEntropyLossFn(EntropyLossFn):
    """`entropy_coef` times the aggregated entropy of the counted tokens."""

    summary = "entropy_coef times the aggregated entropy, subtracted from the loss"
    formula = "{entropy_coef} H\nH = -sum over the vocabulary of p ln p"

    def __call__(
        self,
        entropy: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        loss_agg_mode: str = "token-mean",
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the term and the metric `entropy_loss`.

        The metric is the aggregated entropy without the coefficient.
        """
        loss = aggregate_loss(entropy, action_mask, loss_agg_mode)
        return loss * self.entropy_coef, {"entropy_loss": loss.item()}


@ENTROPY_LOSS_FN.register_module("mix")
class MixEntropyLossFn(EntropyLossFn):
    """As `default`, over the rows that the policy wrote itself.

    Expert data say nothing about the policy's entropy.
    """

    summary = "as default, over the rows that are not expert data"
    formula = "{entropy_coef} H\nH = -sum over the vocabulary of p ln p, of the rows that are no expert data"

    def rows(self, values: Mapping[str, Tensor]) -> Bool[Tensor, "B"] | None:
        """Return true for the rows that are no expert data."""
        return ~values["expert_mask"]

    def __call__(  # type: ignore[override]
        self,
        entropy: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        expert_mask: Bool[Tensor, "B"],
        loss_agg_mode: str = "token-mean",
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the term and the metric `entropy_loss`.

        Both are 0 if all rows are expert data.

        Means over rows are over the rows that are left.
        """
        own = ~expert_mask
        if not bool(own.any()):
            return entropy.new_zeros(()), {"entropy_loss": 0.0}
        loss = aggregate_loss(entropy[own], action_mask[own], loss_agg_mode)
        return loss * self.entropy_coef, {"entropy_loss": loss.item()}


@ENTROPY_LOSS_FN.register_module("none")
class NoneEntropyLossFn(EntropyLossFn):
    """No entropy term; the trainer computes no entropy."""

    summary = "no entropy term"
    formula = "0"

    def __call__(
        self,
        entropy: Float[Tensor, "B T"] | None = None,
        action_mask: Bool[Tensor, "B T"] | None = None,
        loss_agg_mode: str = "token-mean",
        **kwargs: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return 0 and no metrics."""
        like = entropy if entropy is not None else torch.zeros(())
        return torch.zeros((), dtype=like.dtype, device=like.device), {}
