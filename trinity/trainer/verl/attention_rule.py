"""Additions of a layer to causal softmax attention.

Dimension key: D = size of queries and keys, Q = query heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """Additions of a layer to causal softmax attention.

    Attributes:
        scale: factor of the scores; None: 1 / sqrt(D).
        window: number of positions that a query sees, its own included; None: all before it.
        softcap: scores s become softcap * tanh(s / softcap); None: they stay.
        sinks: score of each query head that takes weight but has no value, or None.
    """

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Float[Tensor, "Q"] | None = None

    def of_share(self, index: int, size: int) -> Rule:
        """Return the rule for part `index` of `size` equal parts of the heads."""
        return self if self.sinks is None else replace(self, sinks=self.sinks.chunk(size)[index])


PLAIN = Rule()
