"""The terms of the operator `reward_shaping_mapper`, as they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trinity.common.constants import OpType
from trinity.common.errors import ConfigError

NAME = "reward_shaping_mapper"


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
            ConfigError: no mapping, an unknown key or operation, or a value of the wrong type (E1707).
        """
        key = f"reward_shaping_configs[{index}]"
        known = ("stats_key", "op_type", "weight")
        if not isinstance(settings, dict) or not settings.keys() <= set(known) or "stats_key" not in settings:
            raise _refused(f"{key} must have the key stats_key and may have op_type and weight, got {settings!r}")
        weight = settings.get("weight", 1.0)
        name = str(settings.get("op_type", OpType.ADD)).lower()
        if name not in set(OpType):
            raise _refused(f"{key}.op_type must be one of ADD, SUB, MUL, DIV, got {settings['op_type']!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise _refused(f"{key}.weight must be a finite number, got {weight!r}")
        return cls(str(settings["stats_key"]), OpType(name), float(weight))

    def apply(self, reward: float, value: float) -> float | None:
        """Return the shaped reward; None where it is not a finite number."""
        term = self.weight * value
        if self.op_type is OpType.DIV:
            shaped = reward / term if term else math.nan
        else:
            shaped = {OpType.ADD: reward + term, OpType.SUB: reward - term, OpType.MUL: reward * term}[self.op_type]
        return shaped if math.isfinite(shaped) else None

    @classmethod
    def parse_all(cls, entries: Sequence[Any] | None) -> list[RewardShaping]:
        """Return the terms of `reward_shaping_configs`; null: none.

        Raises:
            ConfigError: it is no list, or an entry is not of the form of a term (E1707).
        """
        if entries is not None and not isinstance(entries, list | tuple):
            raise _refused(f"reward_shaping_configs must be a list of mappings, got {entries!r}")
        return [cls.parse(entry, i) for i, entry in enumerate(entries or ())]


def _refused(said: str) -> ConfigError:
    return ConfigError(f"{NAME}: {said}", code="E1707")
