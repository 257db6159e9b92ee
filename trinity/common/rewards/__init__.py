"""Reward functions: from a response and the truth of its task to named scores.

Every built-in reward function is one line of `REWARD_CONTENTS`. A plugin adds its own with the same
decorator: `@REWARD_FUNCTIONS.register_module("my_reward")`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.utils.registry import Entry, Registry

if TYPE_CHECKING:
    from trinity.common.rewards.accuracy_reward import AccuracyReward
    from trinity.common.rewards.countdown_reward import CountDownRewardFn
    from trinity.common.rewards.format_reward import FormatReward
    from trinity.common.rewards.math_reward import MathRewardFn
    from trinity.common.rewards.reward_fn import RewardError, RewardFn

_HERE = "trinity.common.rewards"

REWARD_CONTENTS: dict[str, Entry] = {
    "math_reward": Entry(
        f"{_HERE}.math_reward:MathRewardFn",
        args={"answer_parser": None, "pattern": None, "deadline_s": 5.0},
        doc="1 for the right answer, plus or minus 0.1 for the think/answer form.",
    ),
    "accuracy_reward": Entry(
        f"{_HERE}.accuracy_reward:AccuracyReward",
        args={"answer_parser": None, "deadline_s": 5.0},
        doc="1 if the final answer equals the truth as mathematics, else 0.",
    ),
    "format_reward": Entry(
        f"{_HERE}.format_reward:FormatReward",
        args={"pattern": None, "deadline_s": 5.0},
        doc="Plus or minus 0.1 for the think/answer form.",
    ),
    "no_reward": Entry(
        f"{_HERE}.no_reward:NoReward", doc="No score of its own; for tasksets that a reward model scores."
    ),
    "countdown_reward": Entry(
        f"{_HERE}.countdown_reward:CountDownRewardFn",
        doc="1 for an equation that uses the numbers and reaches the target, 0.1 for a wrong one, 0 for none.",
    ),
}

REWARD_FUNCTIONS = Registry("reward function", REWARD_CONTENTS)

_LAZY = {
    "RewardFn": "reward_fn",
    "RewardError": "reward_fn",
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
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{_HERE}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
