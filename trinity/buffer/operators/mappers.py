"""Operators that change experiences."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch

from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS
from trinity.common.config.reward_shaping import RewardShaping
from trinity.common.experience import Experience
from trinity.common.rewards.dapo_reward import MathDAPORewardFn

Result = tuple[list[Experience], dict[str, Any]]


@EXPERIENCE_OPERATORS.register_module("mask_response_truncated")
class MaskResponseTruncated(ExperienceOperatorV1):
    """Masks the tokens of truncated responses out of the loss.

    Their rewards still count in the group. This is the overlong filtering of DAPO (arXiv 2503.14476, section 3.4).
    """

    is_pure = True

    async def process(self, exps: list[Experience]) -> Result:
        """Return all experiences, the truncated ones with an action mask of zeros."""
        truncated = [e for e in exps if e.truncate_status == "response_truncated"]
        for experience in truncated:
            experience.action_mask = torch.zeros(experience.response_length, dtype=torch.bool)
        return exps, {"masked_count": len(truncated)}


@EXPERIENCE_OPERATORS.register_module("overlong_penalty_mapper")
class OverlongPenaltyMapper(ExperienceOperatorV1):
    """Lowers the rewards of long responses (arXiv:2503.14476, eq. 13).

    The penalty is 0 up to `max_response_length - cache_length` tokens and falls linearly to -`penalty_factor` at
    `max_response_length`. It is that of `math_dapo_reward`: use one of the two. The defaults are DAPO's. A missing
    reward stays missing.

    Args:
        max_response_length: tokens from which the whole penalty applies.
        cache_length: tokens over which it grows.
        penalty_factor: the whole penalty.

    Raises:
        ValueError: an argument outside its range.
    """

    changes_rewards = True
    is_pure = True
    ranges = {"max_response_length": "[2, inf]", "cache_length": "[1, inf]", "penalty_factor": "[0, inf]"}

    def __init__(self, max_response_length: int = 20480, cache_length: int = 4096, penalty_factor: float = 1.0) -> None:
        if not 0 < cache_length < max_response_length or penalty_factor < 0:
            raise ValueError(
                "needs 0 < cache_length < max_response_length and penalty_factor >= 0, got "
                f"{cache_length}, {max_response_length} and {penalty_factor}"
            )
        self.reward = MathDAPORewardFn(True, penalty_factor, max_response_length, cache_length)

    async def process(self, exps: list[Experience]) -> Result:
        """Return all experiences with lowered rewards.

        The metric of each experience and of the step is `overlong_penalty`.
        """
        penalties = []
        for experience in exps:
            if experience.reward is None:
                continue
            penalty = self.reward.compute_overlong_penalty(range(experience.response_length))
            experience.reward += penalty
            experience.metrics = {**experience.metrics, "overlong_penalty": penalty}
            penalties.append(penalty)
        return exps, {"overlong_penalty/mean": sum(penalties) / max(len(penalties), 1)}


@EXPERIENCE_OPERATORS.register_module("reward_shaping_mapper")
class RewardShapingMapper(ExperienceOperatorV1):
    """Changes rewards by weighted statistics of the experiences.

    Terms are applied in the order written. A term whose statistic an experience lacks leaves its reward alone and is
    counted; an experience whose shaped reward is not finite (a division by zero) is dropped and counted.

    Args:
        reward_shaping_configs: mappings with `stats_key`, `op_type` (ADD, SUB, MUL or DIV) and `weight`.

    Raises:
        ConfigError: an entry is not of that form (E1707).
    """

    changes_rewards = True
    is_pure = True

    def __init__(self, reward_shaping_configs: Sequence[dict[str, Any]] | None = None) -> None:
        self.terms = RewardShaping.parse_all(reward_shaping_configs)

    async def process(self, exps: list[Experience]) -> Result:
        """Return the experiences with their shaped rewards.

        The metrics `reward_diff/mean`, `/min` and `/max` say by how much the rewards changed; one that is missing
        changed by 0.
        """
        kept, missing = [], 0
        changes: list[float] = []
        for experience in exps:
            before = experience.reward
            lacks, is_finite = self._shape(experience)
            missing += lacks
            if is_finite:
                kept.append(experience)
                changes.append(float(experience.reward or 0.0) - float(before or 0.0))
        changes = changes or [0.0]
        return kept, {
            "missing_stats_count": missing,
            "filtered_count": len(exps) - len(kept),
            "reward_diff/mean": sum(changes) / len(changes),
            "reward_diff/min": min(changes),
            "reward_diff/max": max(changes),
        }

    def _shape(self, experience: Experience) -> tuple[int, bool]:
        missing = 0
        for term in self.terms:
            value = experience.info.get(term.stats_key, experience.metrics.get(term.stats_key))
            if experience.reward is None or not isinstance(value, numbers.Real):
                missing += 1
                continue
            shaped = term.apply(float(experience.reward), float(value))
            if shaped is None:
                return missing, False
            experience.reward = shaped
        return missing, True
