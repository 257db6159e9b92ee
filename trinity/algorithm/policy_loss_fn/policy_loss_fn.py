"""The base of policy losses.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from trinity.utils.declaration import Declared, inputs_of


@dataclass(frozen=True)
class LossPart:
    """A summand of a policy loss: a loss over some of the rows.

    Attributes:
        name: prefix of its metrics.
        rows: true for the rows that it is over.
        weight: its factor in the sum.
        loss_fn: the loss, called with these rows only.
    """

    name: str
    rows: Bool[Tensor, "B"]
    weight: float
    loss_fn: PolicyLossFn


class PolicyLossFn(Declared, ABC):
    """A loss on the policy's log-probabilities.

    A subclass names the tensors it needs as parameters of `__call__` (`logprob`, `old_logprob`, `ref_logprob`,
    `action_mask`, `advantages`, `returns`, `teacher_logprobs`, or any custom field); the trainer passes exactly those.

    Args:
        backend: kept for published plugins; the trainer's names are used whatever it is.

    Attributes:
        convention: `trinity` or `verl`: a response without counted tokens stays in the mean over responses
            (`aggregate_loss`), or does not (`agg_loss`).
        of_pairs: its rows are pairs (chosen, rejected), which only algorithm type `dpo` has.
        of_rollout_logprobs: it takes the rollout's log-probabilities for the old ones, and corrects by itself.
        in_bypass_mode: name of the policy loss that replaces it under `rollout_correction.bypass_mode`; derived classes
            do not inherit it. "": none does, and unless `of_rollout_logprobs` is true, that mode is refused.
        names_in_bypass_mode: names of its arguments in that policy loss; arguments without one are not passed.
        loss_agg_mode: how it is aggregated; None for `algorithm.loss_agg_mode`.
        zero_advantage_is_zero_loss: a response whose advantages are all 0 has neither loss nor gradient, so that the
            trainer may leave out its forward pass.
        metrics_are_of_rows: metrics other than losses are means over rows, not over tokens.
        select_tokens: for a loss that compares all tokens of a mini-batch: called by name with the tensors of a whole
            mini-batch, `logprob` included; the [B, T] bool it returns is passed again as the argument `selected`, in
            micro-batches. None for all others.
    """

    kind = "policy_loss_fn"
    convention: ClassVar[str] = "trinity"
    of_pairs: ClassVar[bool] = False
    of_rollout_logprobs: ClassVar[bool] = False
    in_bypass_mode: ClassVar[str] = ""
    names_in_bypass_mode: ClassVar[Mapping[str, str]] = {}
    loss_agg_mode: str | None = None
    zero_advantage_is_zero_loss = False
    metrics_are_of_rows = False
    select_tokens: Callable[..., Bool[Tensor, "B T"]] | None = None

    def __init__(self, backend: str = "verl") -> None:
        self.backend = backend

    @abstractmethod
    def __call__(self, logprob: Float[Tensor, "B T"], **kwargs: Any) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """Return the loss and its metrics."""

    def parts(self, values: Mapping[str, Tensor]) -> tuple[LossPart, ...]:
        """Return the losses that this one is a weighted sum of.

        It is empty for a loss over all rows.

        The trainer normalises each part over its own rows of the whole mini-batch, and does not call this loss itself.

        Args:
            values: tensors of the rows, by the names that `__call__` uses.
        """
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in a checkpoint.

        It may hold tensors, numbers, texts, lists and dicts.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""

    @property
    def counts_empty_rows(self) -> bool:
        """Whether responses without counted tokens count in the mean.

        The mean is that over responses.
        """
        return self.convention != "verl"

    @cached_property
    def select_keys(self) -> frozenset[str]:
        """Names of the tensors that `__call__` asks for, without `logprob`."""
        return inputs_of(type(self), kind=self.kind).passed - {"logprob"}
