"""The score of DAPO's mathematics, by the name that plugins import."""

from __future__ import annotations

from trinity.common.rewards.dapo_reward import MathDAPORewardFn


def compute_score(solution_str: str, ground_truth: str) -> tuple[float, str]:
    """Return 1 or 0, and the answer that was found after any thought.

    Raises:
        RewardError: there is no truth, or the comparison failed or took too long.
    """
    info: dict[str, str] = {}
    scores = MathDAPORewardFn()(solution_str, truth=ground_truth, info=info)
    return max(scores["accuracy"], 0.0), info["extracted_answer"]
