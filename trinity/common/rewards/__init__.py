"""Reward functions.

They turn a response and the truth of its task into named scores. Built-in reward functions and those of plugins use
the same decorator: `@REWARD_FUNCTIONS.register_module("my_reward")`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.common.rewards.registry import REWARD_CONTENTS, REWARD_FUNCTIONS

if TYPE_CHECKING:
    from trinity.common.rewards.accuracy_reward import AccuracyReward
    from trinity.common.rewards.countdown_reward import CountDownRewardFn
    from trinity.common.rewards.format_reward import FormatReward
    from trinity.common.rewards.math_reward import MathRewardFn
    from trinity.common.rewards.reward_fn import RewardError, RewardFn, RewardTimeoutError

_HERE = "trinity.common.rewards"

_LAZY = {
    "RewardFn": "reward_fn",
    "RewardError": "reward_fn",
    "RewardTimeoutError": "reward_fn",
    "MathRewardFn": "math_reward",
    "AccuracyReward": "accuracy_reward",
    "FormatReward": "format_reward",
    "CountDownRewardFn": "countdown_reward",
}

__all__ = [
    "REWARD_CONTENTS",
    "REWARD_FUNCTIONS",
    "AccuracyReward",
    "CountDownRewardFn",
    "FormatReward",
    "MathRewardFn",
    "RewardError",
    "RewardFn",
    "RewardTimeoutError",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{_HERE}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
