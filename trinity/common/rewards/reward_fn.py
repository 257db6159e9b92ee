"""The base class of reward functions and the error that a scorer ends with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from trinity.common.errors import WorkflowError
from trinity.utils.declaration import Declared


class RewardError(WorkflowError):
    """A response that could not be scored: the scorer failed, ran out of time or has no usable truth.

    The sample is dropped and counted; it never becomes a reward of 0.
    """

    default_code = "E5110"


class RewardFn(Declared, ABC):
    """From a response to named scores; the reward of the experience is their sum.

    Attributes:
        needs: `truth` where it scores nothing without the row's answer.
        gives_scores: it scores; otherwise every reward stays 0 until a reward model gives one.
    """

    kind = "reward_fn"
    gives_scores: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        """Return the scores of `response` by name.

        Args:
            response: text that the model produced.
            prompt: text of the task.
            truth: what the dataset says is right; its form is the reward function's own.

        Raises:
            RewardError: the response could not be scored.
        """
