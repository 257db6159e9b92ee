"""Pipeline step that sets rewards to the scores of a reward model.

It is the first step of the experience pipeline where a reward model is enabled.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from trinity.common.errors import WorkflowError
from trinity.common.experience import Experience
from trinity.common.models.reward_models.reward_model import RewardModel
from trinity.utils.log import get_logger

logger = get_logger("explorer")

NAME = "reward_model"
REWARD_FN_KEY = "reward_fn"


class RewardModelScores:
    """Replaces each reward with the reward model's score.

    The result of the reward function is kept in `info`, as `reward_fn`.

    Args:
        model: scores the experiences.
    """

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self._has_scored = False

    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Return the experiences that were scored, in their order, and metrics.

        An experience whose score is not finite is dropped and counted in `not_finite_count`.

        Raises:
            WorkflowError: the number of scores differs from that of experiences, or no score is finite.
        """
        if not exps:
            return exps, {}
        # In the order of their identities: rounding in a forward pass depends on which rows share it.
        ordered = sorted(exps, key=lambda exp: exp.eid.uid)
        scores = dict(zip((exp.eid.uid for exp in ordered), self._scores(ordered), strict=True))
        kept = []
        for exp in exps:
            score = scores[exp.eid.uid]
            if not math.isfinite(score):
                continue
            exp.info[REWARD_FN_KEY] = exp.reward
            exp.reward, exp.token_level_reward = score, None
            kept.append(exp)
        self._has_scored = self._has_scored or bool(kept)
        if not self._has_scored:
            raise WorkflowError(
                f"the reward model {type(self.model).__name__} gave none of {len(exps)} experiences a finite score; "
                "look at trainer.trainer_config.reward_model (model.path, dtype)",
                code="E5151",
            )
        if len(kept) < len(exps):
            logger.warning("reward model: %d of %d scores are not finite, dropped", len(exps) - len(kept), len(exps))
        metrics = {"not_finite_count": len(exps) - len(kept), "truncated_count": self.model.num_truncated}
        return kept, metrics | _spread("score", [exp.reward for exp in kept if exp.reward is not None])

    def close(self) -> None:
        """Release the model."""
        self.model.close()

    def _scores(self, exps: Sequence[Experience]) -> list[float]:
        scores = [float(score) for score in self.model.score(exps)]
        if len(scores) != len(exps):
            raise WorkflowError(
                f"the reward model {type(self.model).__name__} must return one score an experience ({len(exps)}), got "
                f"{len(scores)}",
                code="E5150",
            )
        return scores


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{name}/mean": statistics.fmean(values), f"{name}/max": max(values), f"{name}/min": min(values)}
