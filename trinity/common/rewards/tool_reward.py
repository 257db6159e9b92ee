"""Reward for the right calls of tools.

Form and rule are those of Tool-N1 (arXiv:2505.00024).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from trinity.common.rewards.math_reward import has_thought
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardError, RewardFn

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@REWARD_FUNCTIONS.register_module("tool_call_reward")
class ToolCallReward(RewardFn):
    """1 if a response thinks first, then makes exactly the right tool calls.

    The score is named `tool_call`, else it is 0. The calls are the JSON of the last `<tool_call>...</tool_call>`: one
    call or a list, each with `name` and `arguments`. They must be those of the truth in any order, with equal
    arguments; a truth without calls wants an empty list. One `<think>...</think>` has to come before.
    """

    @classmethod
    def check_truth(cls, truth: Any) -> None:
        """Refuse a truth that is no list of calls (E5114)."""
        if calls_in(truth) is None:
            raise RewardError(
                "the task has no tool calls to compare with: the truth must be a list of {'name': ..., 'arguments': "
                f"...}}, or JSON of it, got {truth!r:.160}; set format.response_key of the taskset",
                code="E5114",
            )

    def __call__(self, response: str, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return the score of a response.

        Raises:
            RewardError: the truth is no list of calls (E5114).
        """
        self.check_truth(truth)
        wanted = calls_in(truth)
        made = calls_of(response)
        return {"tool_call": float(made is not None and made == wanted)}


def calls_of(response: str) -> Counter[tuple[str, str]] | None:
    """Return the calls that a response makes; None in another form."""
    end = response.rfind(CLOSE)
    start = response.rfind(OPEN, 0, end) if end >= 0 else -1
    if start < 0 or not has_thought(response) or response.find("</think>") > response.find(OPEN):
        return None
    return calls_in(response[start + len(OPEN) : end])


def calls_in(value: Any) -> Counter[tuple[str, str]] | None:
    """Return how often each call is in a list, a call, or JSON text of them.

    A call is its name and its arguments as JSON with sorted keys. None of anything else.
    """
    try:
        for _ in range(2):  # JSON that is in a JSON text itself
            value = json.loads(value) if isinstance(value, str) else value
        calls = [value] if isinstance(value, dict) else value
        if not isinstance(calls, list):
            return None
        return Counter((str(call["name"]), json.dumps(call["arguments"], sort_keys=True)) for call in calls)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
