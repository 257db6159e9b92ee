r"""The score of a geometry problem: nine parts answer, one part form."""

from __future__ import annotations

import re

from trinity.common.rewards.accuracy_reward import AccuracyReward
from trinity.common.rewards.answer import boxed_answers

FORM = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
OF_ANSWER = 0.9


def score(response: str, truth: str) -> dict[str, float]:
    r"""Return `score`, `acc` and `format`, each from 0 to 1.

    The answer is what the last `\boxed{}` holds, equal to the truth as mathematics. The form is a thought, then a
    `\boxed{}`.

    Raises:
        RewardError: the comparison failed or took too long.
    """
    boxed = boxed_answers(response)
    is_right = bool(boxed) and AccuracyReward()(f"\\boxed{{{boxed[-1]}}}", truth=truth)["accuracy"] == 1.0
    has_form = float(FORM.fullmatch(response) is not None)
    return {"score": OF_ANSWER * is_right + (1.0 - OF_ANSWER) * has_form, "acc": float(is_right), "format": has_form}
