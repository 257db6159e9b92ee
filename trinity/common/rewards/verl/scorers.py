"""Which scorer a row's source has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trinity.common.errors import WorkflowError
from trinity.common.rewards.verl import competition, geometry, gsm8k, minerva

Scorer = Callable[[str, str], float | dict[str, float]]
SOURCES: Mapping[str, Scorer] = {
    "openai/gsm8k": gsm8k.score,
    "lighteval/MATH": competition.score,
    "DigitalLearningGmbH/MATH-lighteval": competition.score,
    "HuggingFaceH4/MATH-500": competition.score,
    "math_dapo": minerva.score,
    "math": minerva.score,
    "math_dapo_reasoning": minerva.score,
    "hiyouga/geometry3k": geometry.score,
}
AIME = "aime"
"""Sources that begin so are scored as `math_dapo` is."""


class UnknownSourceError(WorkflowError):
    """A row's source has no scorer here."""

    default_code = "E5136"


def score_of(source: str, response: str, truth: str) -> float | dict[str, float]:
    """Return the score, or scores of which `score` is the reward.

    Raises:
        UnknownSourceError: the source has no scorer here.
        RewardError: the response could not be scored.
    """
    scorer = _scorer(source)
    if scorer is None:
        raise UnknownSourceError(no_scorer(source))
    return scorer(response, truth)


def has_scorer(source: str) -> bool:
    """Return whether the rows of a source can be scored here."""
    return _scorer(source) is not None


def no_scorer(source: str) -> str:
    """Return what is said of a source that has no scorer here."""
    return (
        f"the row's data_source {source!r} has no scorer; known: {', '.join(SOURCES)}, {AIME}*; give a function of "
        "your own as custom_reward_function.path"
    )


def _scorer(source: str) -> Scorer | None:
    return SOURCES.get(source, minerva.score if source.startswith(AIME) else None)
