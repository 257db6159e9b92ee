"""Operators that change experiences."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS
from trinity.common.constants import OpType
from trinity.common.errors import ConfigError
from trinity.common.experience import Experience

Result = tuple[list[Experience], dict[str, Any]]


@EXPERIENCE_OPERATORS.register_module("mask_response_truncated")
class MaskResponseTruncated(ExperienceOperatorV1):
    """Masks the tokens of truncated responses out of the loss.

    Their rewards still count in the group. This is the overlong filtering of DAPO (arXiv 2503.14476, section 3.4).
    """

    async def process(self, exps: list[Experience]) -> Result:
        """Return all experiences, the truncated ones with an action mask of zeros."""
        truncated = [e for e in exps if e.truncate_status == "response_truncated"]
        for experience in truncated:
            experience.action_mask = torch.zeros(experience.response_length, dtype=torch.bool)
        return exps, {"masked_count": len(truncated)}


@dataclass(frozen=True)
class RewardShaping:
    """One term of a shaped reward.

    Attributes:
        stats_key: entry of `Experience.info` (or else of `Experience.metrics`) that the term reads.
        op_type: what is done to the reward with `weight * value`.
        weight: factor of the value.
    """

    stats_key: str
    op_type: OpType = OpType.ADD
    weight: float = 1.0

    @classmethod
    def parse(cls, settings: Any, index: int) -> RewardShaping:
        """Return the term of entry `index` of `reward_shaping_configs`.

        Raises:
            ConfigError: no mapping, an unknown key or operation, or a value of the wrong type.
        """
        key = f"reward_shaping_mapper.reward_shaping_configs[{index}]"
        known = ("stats_key", "op_type", "weight")
        if not isinstance(settings, dict) or not settings.keys() <= set(known) or "stats_key" not in settings:
            raise ConfigError(f"{key} must have the key stats_key and may have op_type and weight, got {settings!r}")
        weight = settings.get("weight", 1.0)
        name = str(settings.get("op_type", OpType.ADD)).lower()
        if name not in set(OpType):
            raise ConfigError(f"{key}.op_type must be one of ADD, SUB, MUL, DIV, got {settings['op_type']!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(f"{key}.weight must be a finite number, got {weight!r}")
        return cls(str(settings["stats_key"]), OpType(name), float(weight))

    def apply(self, reward: float, value: float) -> float | None:
        """Return the shaped reward; None where it is not a finite number."""
        term = self.weight * value
        if self.op_type is OpType.DIV:
            shaped = reward / term if term else math.nan
        else:
            shaped = {OpType.ADD: reward + term, OpType.SUB: reward - term, OpType.MUL: reward * term}[self.op_type]
        return shaped if math.isfinite(shaped) else None


@EXPERIENCE_OPERATORS.register_module("reward_shaping_mapper")
class RewardShapingMapper(ExperienceOperatorV1):
    """Changes rewards by weighted statistics of the experiences.

    Terms are applied in the order written. A term whose statistic an experience lacks leaves its reward alone and is
    counted; an experience whose shaped reward is not finite (a division by zero) is dropped and counted.

    Args:
        reward_shaping_configs: mappings with `stats_key`, `op_type` (ADD, SUB, MUL or DIV) and `weight`.

    Raises:
        ConfigError: an entry is not of that form.
    """

    changes_rewards = True

    def __init__(self, reward_shaping_configs: Sequence[dict[str, Any]] | None = None) -> None:
        self.terms = [RewardShaping.parse(entry, i) for i, entry in enumerate(reward_shaping_configs or [])]

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
