"""The score of DAPO's mathematics, by the names that plugins import."""

from __future__ import annotations

from trinity.common.rewards.answer import boxed_answers
from trinity.common.rewards.dapo_reward import MathDAPORewardFn
from trinity.common.rewards.eval_utils import is_equiv


def match_answer(response: str) -> tuple[bool, str]:
    r"""Return whether a `\boxed{}` follows the thought, and what it holds.

    Without one, the text after the thought is returned.
    """
    after_thought = response.rpartition("</think>")[2]
    boxed = boxed_answers(after_thought)
    return bool(boxed), boxed[-1] if boxed else after_thought


def grade_answer(given_answer: str, ground_truth: str) -> tuple[bool, str]:
    """Return whether an answer equals the truth, and the answer.

    Raises:
        RewardError: the comparison failed or took too long.
    """
    return is_equiv(given_answer, ground_truth), given_answer.strip()


def compute_score(solution_str: str, ground_truth: str) -> tuple[float, str]:
    """Return 1 or 0, and the answer that was found after any thought.

    Raises:
        RewardError: there is no truth, or the comparison failed or took too long.
    """
    info: dict[str, str] = {}
    scores = MathDAPORewardFn()(solution_str, truth=ground_truth, info=info)
    return max(scores["accuracy"], 0.0), info["extracted_answer"]
