"""What looks at a model's text in the runner takes time that is linear in its length, whatever the model repeats.

Nothing can end it there: a regular expression that backtracks holds the lock of the interpreter.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.common.rewards.hostile_texts import TEXTS
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError
from trinity.common.rewards.answer import boxed_answers, final_answer, last_number, true_answer
from trinity.common.rewards.code_reward import last_program
from trinity.common.rewards.eval_utils import (
    evaluate_equation,
    extract_solution,
    last_boxed_only_string,
    parse_with_timeout,
    remove_boxed,
    validate_equation,
)
from trinity.common.rewards.naive_dapo_score import match_answer
from trinity.common.rewards.tool_reward import calls_of
from trinity.common.rewards.verl import competition, geometry, score_of
from trinity.common.workflows.envs.actions import last_action, parse_action, parse_parts
from trinity.common.workflows.judge import listed_scores, rating

CHARS = 400_000
OWN_S = 2.0  # of this thread; the slowest takes a tenth of it, and a quadratic one minutes
UNITS = (
    "a", " ", "\n", "1", "1,", "9/", "-", "=", "$", ".$", "{", "}", "[", "\\", "```", "```py\n", "```python\n", "#",
    "#### ", "#### 1", "Answer:", "Answer: 1\n", "\\boxed{", "\\boxed{1}", "\\boxed ", "\\fbox{", "\\text{", "\\text{ ",
    "\\sqrt", "\\frac", "\\frac1", "\\left", "\\!", "<think>", "</think>", "</think> ", "<answer>",
    "</answer>", "<think>\n",
    "\n</think>\n<answer>\n", "\n</answer>x", "<tool_call>", "</tool_call>", '{"a":', "<action>", "</action>",
    "<action></action>", "<experience>", "<experience></experience><think>", '"rating": ', "true ",
)  # fmt: skip


def _reward(name: str, form: str = "%s", truth: Any = "1") -> Callable[[str], Any]:
    return lambda text: REWARD_FUNCTIONS.get(name)()(response=form.replace("%s", text), truth=truth)


def _told(read: Callable[[], Any]) -> None:
    with contextlib.suppress(RewardError):
        read()


LOOKERS: dict[str, Callable[[str], Any]] = {
    "boxed_answers": boxed_answers,
    "final_answer": final_answer,
    "true_answer": true_answer,
    "last_number": last_number,
    "last_program": last_program,
    "format_reward": _reward("format_reward", "<think>\n%s"),
    "loose form": _reward("math_reward", "<think>%s<answer>2</answer>"),
    "countdown_reward": _reward("countdown_reward", "<answer>%s</answer>", {"target": 1, "numbers": [2]}),
    "tool_call_reward": lambda text: calls_of(f"<think></think><tool_call>{text}</tool_call>"),
    "a form of geometry": lambda text: geometry.has_form(f"<think>{text}"),
    "a competition": lambda text: competition.score(f"\\boxed {text}", "1"),
    "spelling": competition.plain,
    "gsm8k": lambda text: score_of("openai/gsm8k", text, "1"),
    "dapo": lambda text: score_of("math_dapo", f"Answer: {text}", "1"),
    "parse_with_timeout": parse_with_timeout,
    "last_boxed_only_string": last_boxed_only_string,
    "remove_boxed": remove_boxed,
    "evaluate_equation": evaluate_equation,
    "validate_equation": lambda text: validate_equation(text, [1]),
    "extract_solution": extract_solution,
    "match_answer": match_answer,
    "scores of a judge": lambda text: _told(lambda: listed_scores(text, 2)),
    "a rating of a judge": lambda text: _told(lambda: rating(text)),
    "parse_action": parse_action,
    "last_action": last_action,
    "parse_parts": parse_parts,
}


@pytest.mark.parametrize("look", LOOKERS.values(), ids=LOOKERS)
def test_what_a_model_repeats_is_looked_at_in_linear_time(look: Callable[[str], Any]) -> None:
    for unit in UNITS:
        text = unit * (CHARS // len(unit))
        begin = time.thread_time()
        look(text)
        assert time.thread_time() - begin < OWN_S, unit


def _by_pattern(pattern: str, text: str) -> list[str]:
    return [found.strip() for found in re.findall(pattern, text, re.DOTALL)]


ACTIONS = [
    "<action>a</action><action> b </action>", "<action>a<action>b</action>", "</action><action>a</action>", "<action>",
    "<action></action>", "<experience>e</experience>x<think>t</think><action>a</action>y",
    "<experience>e</experience><think> </think><action>a</action>", "<think>t</think><experience>e</experience>",
    "<experience>e</experience><experience>f</experience><think>t</think><action>a</action>",
    "<experience>e<think>t</think></experience><think>u</think><action>a</action><action>b</action>",
]  # fmt: skip


def test_actions_are_those_that_a_pattern_finds() -> None:
    for text in (*TEXTS, *ACTIONS):
        found = _by_pattern("<action>(.*?)</action>", text)
        assert (parse_action(text), last_action(text)) == ((found[0], found[-1]) if found else ("", ""))
    for text in ACTIONS:
        names = ("experience", "think", "action")
        match = re.search(".*?".join(f"<{name}>(.*?)</{name}>" for name in names), text, re.DOTALL)
        parts = dict(zip(names, (part.strip() for part in match.groups()), strict=True)) if match else {}
        assert parse_parts(text) == (parts if parts and all(parts.values()) else None)
