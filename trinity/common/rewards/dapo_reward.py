"""Reward of DAPO: right or wrong, less the cost of great length."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from trinity.common.rewards.accuracy_reward import DEADLINE_S, AccuracyReward
from trinity.common.rewards.answer import final_answer
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardFn


@REWARD_FUNCTIONS.register_module("math_dapo_reward")
class MathDAPORewardFn(RewardFn):
    """`accuracy` (1 or -1) plus `format_score`, the length penalty.

    With L response tokens the penalty is 0 up to `max_response_length - cache_length`, falls linearly to
    -`penalty_factor` at `max_response_length`, and stays there (Yu et al. 2025, DAPO, arXiv:2503.14476, equation 13).

    Args:
        enable_overlong_penalty: penalise long responses; otherwise `format_score` is 0.
        penalty_factor: the largest penalty.
        max_response_length: tokens from which on it applies.
        cache_length: tokens before that over which it grows.
        deadline_s: seconds after which the comparison of the answers is stopped.
    """

    needs = frozenset({"truth"})
    ranges = {
        "penalty_factor": "[0, inf)", "max_response_length": "(cache_length, inf)", "cache_length": "(0, inf)",
        "deadline_s": "(0, inf]",
    }  # fmt: skip
    needed_if = {
        "penalty_factor": "enable_overlong_penalty",
        "max_response_length": "enable_overlong_penalty",
        "cache_length": "enable_overlong_penalty",
    }

    def __init__(
        self,
        enable_overlong_penalty: bool | None = None,
        penalty_factor: float | None = None,
        max_response_length: int | None = None,
        cache_length: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.enable_overlong_penalty = bool(enable_overlong_penalty)
        self.penalty_factor, self.deadline_s = penalty_factor, deadline_s
        self.max_response_length, self.cache_length = max_response_length, cache_length
        self.accuracy_reward = AccuracyReward(deadline_s=deadline_s)

    def __call__(
        self,
        response: str,
        response_token: Any = None,
        truth: Any = None,
        info: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, float]:
        """Return both scores; `info` gets the truth and the answer that was found.

        Raises:
            RewardError: the task has no truth, or the comparison failed or took too long.
        """
        after_thought = response.rpartition("</think>")[2]
        is_right = self.accuracy_reward(after_thought, truth=truth)["accuracy"] == 1.0
        if info is not None:
            info |= {"ground_truth": truth, "extracted_answer": final_answer(after_thought).text}
        penalty = (
            self.compute_overlong_penalty(() if response_token is None else response_token)
            if self.enable_overlong_penalty
            else 0.0
        )
        return {"accuracy": 1.0 if is_right else -1.0, "format_score": penalty}

    def compute_overlong_penalty(self, response_token: Sized) -> float:
        """Return the penalty, <= 0, of a response of these tokens.

        Raises:
            ValueError: an argument of the penalty is not given.
        """
        longest, margin, factor = self.max_response_length, self.cache_length, self.penalty_factor
        if longest is None or margin is None or factor is None or longest <= margin:
            raise ValueError("the penalty needs penalty_factor, cache_length and a max_response_length above that")
        excess = len(response_token) - (longest - margin)
        return -factor * min(max(excess / margin, 0.0), 1.0)
