"""The base class of reward functions, and the error of a failed scorer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from trinity.common.errors import WorkflowError
from trinity.utils.declaration import Declared


class RewardError(WorkflowError):
    """The scorer failed, ran out of time or has no usable truth.

    The response has no score. The rollout is dropped and counted; it never gets a reward of 0.
    """

    default_code = "E5110"


class RewardTimeoutError(RewardError):
    """The scorer was stopped at its deadline.

    Such rollouts are counted apart from those of other failures.

    Attributes:
        late_s: seconds from the deadline until it was stopped.
    """

    default_code = "E5112"

    def __init__(self, message: str, *, code: str | None = None, late_s: float = 0.0) -> None:
        super().__init__(message, code=code)
        self.late_s = late_s


class RewardFn(Declared, ABC):
    """Turns a response into named scores.

    The reward of the experience is their sum.

    Attributes:
        needs: `truth` where it scores nothing without the truth of the row.
        gives_scores: it scores; otherwise every reward stays 0 until a reward model gives one.
    """

    kind = "reward_fn"
    gives_scores: ClassVar[bool] = True

    @classmethod
    def check_truth(cls, truth: Any) -> None:
        """Check the truth of a row before its first rollout.

        A row whose truth is refused is left out and counted. By default everything is accepted.

        Raises:
            RewardError: no response could be scored with it.
        """

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the scores of a response by name, or one number.

        A class names what it wants, by keyword: `response`, the text that the model produced; `prompt`, the text of the
        task; `truth`, what the dataset says is right, in a form of the reward function's own; `response_token`, the
        token ids [R] of the response; `info`, that of the experience; `row`, all columns of the task's row.

        Raises:
            RewardError: the response could not be scored.
        """
