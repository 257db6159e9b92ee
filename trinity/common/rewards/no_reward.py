"""No score of its own: for tasksets whose rollouts a reward model scores."""

from __future__ import annotations

from typing import Any

from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardFn


@REWARD_FUNCTIONS.register_module("no_reward")
class NoReward(RewardFn):
    """Gives no score; the reward is 0 until the reward model replaces it."""

    gives_scores = False

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return no scores."""
        return {}
