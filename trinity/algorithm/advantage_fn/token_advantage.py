"""Bases of the advantages that the trainer computes from batch tensors.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm.advantage_fn.advantage_fn import AdvantageFn
from trinity.algorithm.statistics import masked_zero, rows_by_group
from trinity.algorithm.utils import masked_sum
from trinity.utils.declaration import inputs_of

Advantages = tuple[Tensor, Tensor, dict[str, float]]


class TokenAdvantage(AdvantageFn, ABC):
    """An advantage per token, from named tensors.

    A subclass names the tensors it needs as parameters of `__call__`: `token_level_rewards` and `action_mask`
    ([B, T]), `values`, `old_logprob`, `teacher_logprobs`, `sum_pi_squared`, `rollout_is_weights` ([B, T]), `uid`
    (B strings, equal for the rollouts of one task), `reward_baselines` ([B]), `reward_components` ([B, K]).
    """

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Advantages:
        """Return advantages, returns and metrics.

        Advantages and returns are [B, T], 0 where `action_mask` is false.
        """

    @cached_property
    def select_keys(self) -> frozenset[str]:
        """Names of the tensors that `__call__` asks for."""
        return inputs_of(type(self), kind=self.kind).passed


class GroupedTokenAdvantage(TokenAdvantage):
    """One number per response, from the scores of the same task's responses.

    A score is the sum of a response's token rewards.
    """

    @abstractmethod
    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return the advantage of each response of one group."""

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        action_mask: Bool[Tensor, "B T"],
        uid: Sequence[str],
    ) -> Advantages:
        """Return the advantages, also as returns, one value per response.

        Tokens that are not counted get 0.
        """
        scores = scores_of(token_level_rewards, action_mask)
        advantages = spread(by_group(scores, uid, self.compare), token_level_rewards, action_mask)
        return advantages, advantages.clone(), {}


def scores_of(token_level_rewards: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]) -> list[float]:
    """Return the sum of the counted token rewards of each response."""
    return [float(score) for score in masked_sum(token_level_rewards.double(), action_mask, -1).tolist()]


def by_group(
    scores: Sequence[float], uid: Sequence[str], compare: Callable[[Sequence[float]], list[float]]
) -> list[float]:
    """Return the results of `compare` on each group's scores, by row.

    Raises:
        DataError: `uid` and the batch differ in length.
    """
    result = [0.0] * len(scores)
    for rows in rows_by_group(uid, len(scores)):
        for row, value in zip(rows, compare([scores[row] for row in rows]), strict=True):
            result[row] = value
    return result


def spread(
    per_response: Sequence[float], like: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return each response's number on its counted tokens.

    The result has the dtype and device of `like`.
    """
    column = torch.tensor(per_response, dtype=torch.float64).to(like).unsqueeze(-1)
    return masked_zero(column.expand_as(like), action_mask)
