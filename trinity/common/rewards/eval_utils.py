r"""Finding and comparing answers, by the names that plugins import.

Comparisons that need computer algebra are made in a worker process that is killed at a deadline; nothing that a model
wrote is evaluated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trinity.common.rewards.accuracy_reward import DEADLINE_S, is_equal
from trinity.common.rewards.answer import FinalAnswer, boxed_answers, final_answer
from trinity.common.rewards.arithmetic import ArithmeticRefused, evaluate
from trinity.common.rewards.countdown_reward import last_equation
from trinity.common.rewards.math_reward import MathBoxedRewardFn
from trinity.common.rewards.math_reward import has_thought as validate_think_pattern

__all__ = [
    "compute_score_v0",
    "evaluate_equation",
    "extract_solution",
    "find_boxed_answer",
    "is_equiv",
    "last_boxed_only_string",
    "parse_with_timeout",
    "remove_boxed",
    "remove_right_units",
    "simple_answer_parser",
    "validate_equation",
    "validate_think_pattern",
    "verify_with_timeout",
]


def parse_with_timeout(pred: str, parsing_timeout: int = 5, **kwargs: Any) -> list[str]:
    """Return the final answer of a text, as the only entry; empty without any.

    There is nothing to wait for: the search is linear in the length of the text.
    """
    found = final_answer(pred).text
    return [found] if found else []


def verify_with_timeout(
    gold: str | Iterable[str], target: str | Iterable[str], timeout_seconds: float = DEADLINE_S, **kwargs: Any
) -> bool:
    """Return whether an answer of one side equals one of the other.

    Raises:
        RewardError: the comparison failed or took more than `timeout_seconds`.
    """
    golds, targets = ([side] if isinstance(side, str) else list(side) for side in (gold, target))
    return any(_is_equal(one, other, timeout_seconds) for one in golds for other in targets)


def _is_equal(one: str, other: str, deadline_s: float) -> bool:
    # The whole text is the answer, with nothing to search for. One that is no mathematics is compared as text.
    truth, answer = str(one).strip(), str(other).strip()
    return bool(truth and answer) and is_equal(FinalAnswer(answer, is_marked=True), truth, deadline_s=deadline_s)


def is_equiv(str1: str | None, str2: str | None, verbose: bool = False) -> bool:
    """Return whether two answers are equal as mathematics.

    Two that are missing are equal; one is not. Answers that are no mathematics are equal as texts.

    Raises:
        RewardError: the comparison failed or took too long: that is no answer, and no reward of 0.
    """
    if str1 is None or str2 is None:
        return str1 is str2
    return _is_equal(str1, str2, DEADLINE_S)


def simple_answer_parser(response: str) -> list[str]:
    """Return the answer in `<answer>`, else in the text, as the only entry."""
    return parse_with_timeout(response)


def find_boxed_answer(raw_answer: str, timeout: float = 10) -> str | None:
    r"""Return what the last `\boxed{}` holds; None without any."""
    found = boxed_answers(raw_answer)
    return found[-1] if found else None


def last_boxed_only_string(string: str) -> str | None:
    r"""Return the last `\boxed{}` with what it holds; None without any."""
    found = find_boxed_answer(string)
    return None if found is None else f"\\boxed{{{found}}}"


def remove_boxed(s: str) -> str | None:
    r"""Return what the text `\boxed{...}` holds; None for another text."""
    is_box = s.startswith("\\boxed{") and s.endswith("}")
    return s[len("\\boxed{") : -1] if is_box else None


def remove_right_units(string: str) -> str:
    r"""Return an answer without the unit that `\text{ ...}` at its end is."""
    before, mark, _ = string.partition(r"\text{ ")
    return before if mark else string


def extract_solution(solution_str: str) -> str | None:
    """Return what the last `<answer>` of the last line holds."""
    return last_equation(solution_str.rpartition("\n")[2])


def validate_equation(equation_str: str, available_numbers: Iterable[int]) -> bool:
    """Return whether an equation has each number once, and no others."""
    try:
        written = sorted(int(number) for number in re.findall(r"[0-9]+", equation_str))
    except ValueError:  # more digits than Python converts
        return False
    return written == sorted(available_numbers)


def evaluate_equation(equation_str: str) -> float | None:
    """Return the value of `+ - * /` over numbers; None of anything else.

    Nor of a value that is too large for a float.
    """
    try:
        value = evaluate(equation_str)
    except ArithmeticRefused:
        return None
    try:
        return int(value) if value.denominator == 1 else float(value)
    except OverflowError:  # no float is that large
        return None


def compute_score_v0(solution_str: str, ground_truth: str) -> float:
    r"""Return 1 if the last `\boxed{}` equals the truth, else 0.

    Raises:
        RewardError: there is no truth, or the comparison failed or took too long.
    """
    return MathBoxedRewardFn()(solution_str, ground_truth)["accuracy"]
