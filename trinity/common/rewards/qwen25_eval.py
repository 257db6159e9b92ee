"""Answers of mathematics, by the names that plugins import."""

from __future__ import annotations

from typing import Any

from trinity.common.rewards.answer import final_answer
from trinity.common.rewards.eval_utils import is_equiv


def extract_answer(response_text: str) -> str | None:
    """Return the final answer of a response; None without any."""
    return final_answer(response_text).text or None


def math_equal(prediction: str | None, reference: str | None) -> bool:
    """Return whether two answers are equal; None equals nothing.

    Raises:
        RewardError: the comparison failed or took too long.
    """
    return prediction is not None and reference is not None and is_equiv(prediction, reference)


def verify_math_answer(response_text: str, ground_truth: str) -> tuple[float, dict[str, Any]]:
    """Return 1 or 0 for the final answer of a response, and both answers.

    Raises:
        RewardError: the comparison failed or took too long.
    """
    answer = extract_answer(response_text)
    is_right = math_equal(answer, ground_truth)
    return float(is_right), {"extracted_answer": answer, "ground_truth": ground_truth}
