"""Reward models, which score conversations.

A plugin adds its own with `@REWARD_MODELS.register_module("name")`. The table of contents imports no torch; a class is
imported on first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.common.models.reward_models.registry import REWARD_MODEL_CONTENTS, REWARD_MODELS

if TYPE_CHECKING:
    from trinity.common.models.reward_models.reward_model import RewardModel as RewardModel

__all__ = ["REWARD_MODELS", "REWARD_MODEL_CONTENTS", "RewardModel"]


def __getattr__(name: str) -> Any:
    """Import the base class on first access."""
    if name == "RewardModel":
        return importlib.import_module("trinity.common.models.reward_models.reward_model").RewardModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
