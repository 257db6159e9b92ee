r"""The score of a geometry problem: nine parts answer, one part form."""

from __future__ import annotations

from trinity.common.rewards.accuracy_reward import AccuracyReward
from trinity.common.rewards.answer import boxed_answers

OF_ANSWER = 0.9


def has_form(text: str) -> bool:
    r"""Return whether a text is a thought, then anything, then a `\boxed{}`.

    It is what the pattern `<think>.*</think>.*\\boxed\{.*\}.*` matches, in time linear in the length of the text.
    """
    rest = text.removeprefix("<think>")
    for part in ("</think>", "\\boxed{", "}"):
        _, found, rest = rest.partition(part)
        if not found:
            return False
    return text.startswith("<think>")


def score(response: str, truth: str) -> dict[str, float]:
    r"""Return `score`, `acc` and `format`, each from 0 to 1.

    The answer is what the last `\boxed{}` holds, equal to the truth as mathematics. The form is a thought, then a
    `\boxed{}`.

    Raises:
        RewardError: the comparison failed or took too long.
    """
    boxed = boxed_answers(response)
    is_right = bool(boxed) and AccuracyReward()(f"\\boxed{{{boxed[-1]}}}", truth=truth)["accuracy"] == 1.0
    is_formed = float(has_form(response))
    return {"score": OF_ANSWER * is_right + (1.0 - OF_ANSWER) * is_formed, "acc": float(is_right), "format": is_formed}
