"""Reward for the think/answer form."""

from __future__ import annotations

from typing import Any

from trinity.common.rewards.accuracy_reward import DEADLINE_S, check_response, run_in_sandbox
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardFn

FORMAT_SCORE = 0.1

_STRICT_START = "<think>\n"
_STRICT_MIDDLE = "\n</think>\n<answer>\n"
_STRICT_END = "\n</answer>"


def has_strict_form(text: str) -> bool:
    """Return whether the text is a thought and an answer, tags on own lines.

    The form is `<think>` ... `</think>` `<answer>` ... `</answer>`. The check uses no regular expression: it is linear
    in the length of the text, whatever a model wrote.
    """
    middle = text.find(_STRICT_MIDDLE, len(_STRICT_START)) if text.startswith(_STRICT_START) else -1
    if middle < 0:
        return False
    end = text.find(_STRICT_END, middle + len(_STRICT_MIDDLE))
    while end >= 0:
        after = end + len(_STRICT_END)
        if after == len(text) or text[after] == "\n":
            return True
        end = text.find(_STRICT_END, after)
    return False


def has_loose_form(text: str) -> bool:
    """Return whether the text ends with a thought and an answer.

    The form is `<think>...</think>` and `<answer>...</answer>`, with only space between.
    """
    body = text.rstrip()
    if not body.endswith("</answer>"):
        return False
    start = body.find("<think>")
    close = body.find("</think>", start) if start >= 0 else -1
    while close >= 0:
        after = body[close + len("</think>") : close + len("</think>") + 64].lstrip()
        if after.startswith("<answer>"):
            return True
        close = body.find("</think>", close + 1)
    return False


@REWARD_FUNCTIONS.register_module("format_reward")
class FormatReward(RewardFn):
    """`{"format_score": 0.1}` if the response has the format, else -0.1.

    Args:
        pattern: a regular expression that must match at the start of the response (`.` matches line ends, `$`
            matches at each of them); matched in a worker process. Default: the think/answer form with each tag on its
            own line.
        deadline_s: seconds after which the worker is killed.
    """

    ranges = {"deadline_s": "(0, inf]"}

    def __init__(self, pattern: str | None = None, deadline_s: float = DEADLINE_S) -> None:
        self.pattern = pattern
        self.deadline_s = deadline_s

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return the format score of `response`.

        Raises:
            RewardError: matching the configured pattern failed or took too long.
        """
        return {"format_score": FORMAT_SCORE if self._has_form(check_response(response)) else -FORMAT_SCORE}

    def _has_form(self, response: str) -> bool:
        if self.pattern is None:
            return has_strict_form(response)
        arguments = {"pattern": self.pattern, "text": response}
        return bool(run_in_sandbox("match", arguments, deadline_s=self.deadline_s))
