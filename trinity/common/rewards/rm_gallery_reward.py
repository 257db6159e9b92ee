"""Rewards of the package rm-gallery, an extra."""

from __future__ import annotations

import math
from typing import Any

from trinity.common.errors import EnvironmentProblem
from trinity.common.rewards.registry import REWARD_FUNCTIONS
from trinity.common.rewards.reward_fn import RewardError, RewardFn
from trinity.utils.packages import install_hint, is_installed
from trinity.utils.registry import UnknownNameError

# How reward models of the package begin the reason of a score that stands for an exception.
_BROKEN = ("Exception occurred", "Evaluation error")


@REWARD_FUNCTIONS.register_module("rm_gallery_reward")
class RMGalleryFn(RewardFn):
    """A reward model of rm-gallery (github.com/modelscope/RM-Gallery).

    Its scores are those of the reward model's dimensions, or `reward`. With `math_rm_workflow` it sees the whole
    conversation, else the prompt.

    Args:
        reward_name: name of the reward model in the package's registry, such as `math_verify_reward`.
        kwargs: arguments of the reward model.
    """

    package = "rm_gallery"

    def __init__(self, reward_name: str, **kwargs: Any) -> None:
        self.reward_model = _reward_model(reward_name, kwargs)

    def __call__(
        self, response: str, prompt: Any = None, truth: Any = None, messages: list[dict[str, Any]] | None = None
    ) -> dict[str, float]:
        """Return the scores of a response.

        Raises:
            RewardError: the reward model failed, or gave no finite score (E5110).
        """
        from rm_gallery.core.data.schema import DataSample

        asked = messages or ([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or [])
        # rm-gallery calls the role of what a tool says `function`.
        turns = [{**m, "role": "function"} if m["role"] == "tool" else m for m in asked]
        answer = {"role": "assistant", "content": response, "label": {"reference": "" if truth is None else truth}}
        sample = DataSample.model_validate({"unique_id": "", "input": turns, "output": [{"answer": answer}]})
        try:
            reward = self.reward_model.evaluate(sample).output[0].answer.reward
        except Exception as error:  # reward models of the package and of its users raise anything
            raise RewardError(f"{type(self.reward_model).__name__} of rm-gallery failed: {error}") from error
        broken = next((detail.reason for detail in reward.details if detail.reason.startswith(_BROKEN)), None)
        if broken is not None:
            raise RewardError(f"{type(self.reward_model).__name__} of rm-gallery failed: {broken}")
        scores = {detail.name: float(detail.score) for detail in reward.details}
        if not scores and "score" in reward.model_fields_set:
            scores = {"reward": float(reward.score)}
        if not scores or not all(map(math.isfinite, scores.values())):
            raise RewardError(
                f"{type(self.reward_model).__name__} of rm-gallery must give finite scores, got {scores or 'none'}; "
                "see its own log"
            )
        return scores


def _reward_model(name: str, arguments: dict[str, Any]) -> Any:
    if not is_installed("rm_gallery"):
        raise EnvironmentProblem(
            f"rm_gallery_reward needs the package rm_gallery, which is not installed; run {install_hint('rm_gallery')}",
            code="E3301",
        )
    from rm_gallery.core.reward.registry import RewardRegistry

    known = RewardRegistry._registry  # `get` itself fails without saying which names there are
    if name not in known:
        raise UnknownNameError(
            f"rm-gallery has no reward model {name!r}; known: {', '.join(sorted(known))}", code="E1701"
        )
    return known[name](**arguments)
