"""Reward of the countdown game.

The game is to reach a target with given numbers, each used once.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from typing import Any

from trinity.common.rewards.accuracy_reward import check_response
from trinity.common.rewards.arithmetic import ArithmeticRefused, evaluate, numbers_in
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardError, RewardFn

NO_EQUATION_SCORE = 0.0
WRONG_EQUATION_SCORE = 0.1
RIGHT_SCORE = 1.0
TOLERANCE = Fraction(1, 10**5)
MAX_TRUTH_CHARS = 4096


def _number(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"not a number: {value!r}")
    return Fraction(str(value))


def read_truth(truth: Any) -> tuple[Fraction, list[Fraction]]:
    """Return target and numbers of a truth.

    The truth is `{"target": 24, "numbers": [1, 2, 3]}`, as JSON text or as a mapping.

    Raises:
        RewardError: not of that form.
    """
    try:
        data = json.loads(truth[:MAX_TRUTH_CHARS]) if isinstance(truth, str) else truth
        return _number(data["target"]), [_number(number) for number in data["numbers"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RewardError(
            f'the truth must be JSON like {{"target": 24, "numbers": [1, 2, 3]}}, got {str(truth)[:80]!r}', code="E5115"
        ) from error


def last_equation(response: str) -> str | None:
    """Return the content of the last `<answer>...</answer>`, or `None`."""
    before, mark, _ = response.rpartition("</answer>")
    _, opened, equation = before.rpartition("<answer>")
    return equation.strip() if mark and opened else None


@REWARD_FUNCTIONS.register_module("countdown_reward")
class CountDownRewardFn(RewardFn):
    """1 for an equation that uses each number once and reaches the target.

    The score is named `score`. It is 0.1 for an equation with other numbers, another value, or anything but
    `+ - * /`; 0.0 without an equation.
    """

    needs = frozenset({"truth"})

    @classmethod
    def check_truth(cls, truth: Any) -> None:
        """Refuse a truth without target and numbers (E5115)."""
        read_truth(truth)

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return the score of `response`.

        Raises:
            RewardError: the truth is not of the form `{"target": ..., "numbers": [...]}`.
        """
        target, numbers = read_truth(truth)
        equation = last_equation(check_response(response))
        if equation is None:
            return {"score": NO_EQUATION_SCORE}
        try:
            value = evaluate(equation)
        except ArithmeticRefused:
            return {"score": WRONG_EQUATION_SCORE}
        is_right = Counter(numbers_in(equation)) == Counter(numbers) and abs(value - target) < TOLERANCE
        return {"score": RIGHT_SCORE if is_right else WRONG_EQUATION_SCORE}
