"""Whatever a model writes: a score or a `RewardError` within the deadline, and no side effect."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.common.rewards.hostile_texts import GROUPS, TEXTS
from tests.common.rewards.test_sandbox import LATEST_KILL_S
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError, RewardTimeoutError, eval_utils
from trinity.common.rewards.qwen25_eval import verify_math_answer
from trinity.common.rewards.registry import REWARD_CONTENTS
from trinity.common.rewards.sandbox import shared_sandbox
from trinity.common.rewards.verl import SOURCES, score_of

DEADLINE_S = 0.5
MOST_CALLS = 2  # of workers for one response, each with its own deadline
OWN_S = 5.0  # of this thread, whose lock stops all others; the slowest takes milliseconds
NUMBER, LATEX = "#### 778201", "\\frac{1}{3}"

Scorer = Callable[[str], Any]


def reward(name: str, truth: Any = None, **args: Any) -> Scorer:
    return functools.partial(REWARD_FUNCTIONS.get(name)(**args), truth=truth)


WAIT: dict[str, Any] = {"deadline_s": DEADLINE_S}
BOXED, ANSWERED = "<think>\na\n</think> \\boxed{%s}", "<think>\na\n</think>\n<answer>\n%s\n</answer>"
# What makes each scorer, and the form in which it looks at all of a text.
SCORERS: Mapping[str, tuple[Callable[[], Scorer], str]] = {
    "accuracy_reward": (lambda: reward("accuracy_reward", NUMBER, **WAIT), ANSWERED),
    "accuracy_reward of LaTeX": (lambda: reward("accuracy_reward", LATEX, **WAIT), ANSWERED),
    "math_reward": (lambda: reward("math_reward", LATEX, **WAIT), ANSWERED),
    "math_boxed_reward": (lambda: reward("math_boxed_reward", LATEX, with_think=True, **WAIT), BOXED),
    "math_dapo_reward": (lambda: reward("math_dapo_reward", LATEX, **WAIT), BOXED),
    "format_reward": (lambda: reward("format_reward"), ANSWERED),
    "format_reward of a pattern": (lambda: reward("format_reward", pattern=r"(\s|\w|a+)*x$", **WAIT), "%s"),
    "countdown_reward": (lambda: reward("countdown_reward", '{"target": 24, "numbers": [4, 6, 8, 8]}'), ANSWERED),
    "tool_call_reward": (
        lambda: reward("tool_call_reward", [{"name": "f", "arguments": {"x": 1}}]),
        "<think>a</think><tool_call>%s</tool_call>",
    ),
    "code_reward": (
        lambda: reward("code_reward", {"inputs": ["1"], "outputs": ["778201"]}, timeout_s=DEADLINE_S),
        "```python\n%s\n```",
    ),
    "verify_math_answer": (lambda: lambda response: verify_math_answer(response, LATEX)[0], ANSWERED),
    "no_reward": (lambda: reward("no_reward"), "%s"),
    **{
        source: (
            functools.partial(functools.partial, score_of, source, truth=LATEX),
            {"openai/gsm8k": "#### %s", "hiyouga/geometry3k": BOXED}.get(source, "Answer: %s \\boxed{%s}"),
        )
        for source in (*SOURCES, "aime2024")
    },
}
# Each text costs the start of a process, or of the worker that replaces the one that was killed.
DEAR = {
    "accuracy_reward of LaTeX", "math_reward", "math_boxed_reward", "math_dapo_reward", "format_reward of a pattern",
    "verify_math_answer", "code_reward", "hiyouga/geometry3k",
}  # fmt: skip
DEAR_GROUPS = {"nested", "numbers", "towers", "latex", "repeated"}
CALLS = [
    pytest.param(name, group, marks=[pytest.mark.slow] if name in DEAR and group in DEAR_GROUPS else [])
    for name in SCORERS
    for group in GROUPS
]


def test_there_are_three_hundred_texts_for_each_scorer_of_text() -> None:
    assert len(TEXTS) >= 300
    assert REWARD_CONTENTS.keys() - SCORERS.keys() == {"rm_gallery_reward"}, "which calls a package of others"
    assert SOURCES.keys() | DEAR <= SCORERS.keys()


@pytest.mark.parametrize(("name", "group"), CALLS)
def test_hostile_answers_are_scored_or_refused_in_time(
    name: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_utils, "DEADLINE_S", DEADLINE_S)
    marker = tmp_path / "marker"
    make, form = SCORERS[name]
    scorer = make()
    for text in GROUPS[group]:
        hostile = text.replace("{marker}", str(marker))
        for response in (hostile, form.replace("%s", hostile)):
            calls, begin_own = shared_sandbox().counts()["calls"], time.thread_time()
            try:
                found = scorer(response)
            except RewardError as error:
                assert error.code in {"E5112", "E5113"}
                assert not isinstance(error, RewardTimeoutError) or error.late_s <= LATEST_KILL_S, response[:60]
            else:
                scores = found if isinstance(found, Mapping) else {"score": found}
                assert all(math.isfinite(score) for score in scores.values())
                right = [score for key, score in scores.items() if key not in {"format", "format_score"}]
                assert 1.0 not in right, f"{response[:60]!r} is not right"
            assert time.thread_time() - begin_own < OWN_S, response[:60]
            assert shared_sandbox().counts()["calls"] - calls <= MOST_CALLS, response[:60]
    assert not marker.exists()
