"""Reward of `math_workflow` for the right answer and its form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trinity.common.rewards.accuracy_reward import DEADLINE_S, AccuracyReward
from trinity.common.rewards.answer import boxed_answers
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
        answer_parser: Callable[[str], Any] | None = None,
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


@REWARD_FUNCTIONS.register_module("math_boxed_reward")
class MathBoxedRewardFn(RewardFn):
    r"""`accuracy` (1 or 0) of the last `\boxed{}`, plus `format_score`.

    Args:
        with_think: a response without one `<think>...</think>` costs `format_score_coef`.
        format_score_coef: what it costs.
        deadline_s: seconds after which the comparison of the answers is stopped.
    """

    needs = frozenset({"truth"})
    ranges = {"deadline_s": "(0, inf]", "format_score_coef": "[0, inf)"}

    def __init__(
        self, with_think: bool = False, format_score_coef: float = FORMAT_SCORE, deadline_s: float = DEADLINE_S
    ) -> None:
        self.with_think, self.format_score_coef, self.deadline_s = with_think, format_score_coef, deadline_s
        self.accuracy_reward = AccuracyReward(deadline_s=deadline_s)

    def __call__(
        self,
        response: str,
        truth: Any = None,
        with_think: bool | None = None,
        format_score_coef: float | None = None,
        **kwargs: Any,
    ) -> dict[str, float]:
        """Return both scores; None means what the constructor was given.

        Raises:
            RewardError: the task has no truth, or the comparison failed or took too long.
        """
        boxed = boxed_answers(response)
        scores = self.accuracy_reward(f"\\boxed{{{boxed[-1]}}}" if boxed else "", truth=truth)
        is_asked = self.with_think if with_think is None else with_think
        cost = self.format_score_coef if format_score_coef is None else format_score_coef
        return scores | {"format_score": -cost if is_asked and not has_thought(response) else 0.0}


def has_thought(text: str) -> bool:
    """Return whether a text has one `<think>`, and after it one `</think>`."""
    return text.count("<think>") == text.count("</think>") == 1 and text.find("<think>") < text.find("</think>")
