"""Reward of `math_workflow` for the right answer and its form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trinity.common.rewards.accuracy_reward import DEADLINE_S, AccuracyReward
from trinity.common.rewards.format_reward import FORMAT_SCORE, FormatReward, has_loose_form
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardFn


@REWARD_FUNCTIONS.register_module("math_reward")
class MathRewardFn(RewardFn):
    """`accuracy` (1 or 0) plus `format_score` (0.1 or -0.1).

    The form is `<think>...</think>` `<answer>...</answer>`.

    Args:
        answer_parser: as of `AccuracyReward`.
        pattern: a regular expression for the form, as of `FormatReward`; default the form above at the end of the
            response.
        deadline_s: seconds after which the worker of either part is killed.
    """

    needs = frozenset({"truth"})
    ranges = {"deadline_s": "(0, inf]"}

    def __init__(
        self,
        answer_parser: Callable[[str], str | None] | None = None,
        pattern: str | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.accuracy_reward = AccuracyReward(answer_parser, deadline_s)
        self.format_reward = None if pattern is None else FormatReward(pattern, deadline_s)

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return both scores of `response`.

        Raises:
            RewardError: the task has no truth, or scoring failed or took too long.
        """
        scores = self.accuracy_reward(response, prompt, truth)
        if self.format_reward is not None:
            return {**scores, **self.format_reward(response)}
        return {**scores, "format_score": FORMAT_SCORE if has_loose_form(response) else -FORMAT_SCORE}
