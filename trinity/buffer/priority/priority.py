"""The priority functions of a replay buffer.

They are pure functions of what the log records of a rollout.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

from trinity.buffer.priority.registry import PRIORITY_FUNC
from trinity.utils.declaration import Declared


@dataclass(frozen=True)
class ReplayItem:
    """A rollout as a priority function sees it.

    It also behaves like a list whose only item is itself, with numbers in `info`, because published priority functions
    read a rollout so: `item[0].info["use_count"]`.

    Attributes:
        task: the group (`batch/task`).
        run: number of the rollout in its group.
        model_version: version of the weights that sampled it; 0 where none is known.
        use_count: training steps that used it.
        reward: of its first experience; None where there is none.
    """

    task: str
    run: int
    model_version: int
    use_count: int
    reward: float | None = None

    @property
    def info(self) -> dict[str, int]:
        """Version of the weights and number of uses, by name."""
        return {"model_version": self.model_version, "use_count": self.use_count}

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> ReplayItem:
        return (self,)[index]


class PriorityFunction(Declared, ABC):
    """Computes when a rollout is handed out, and whether it is reused.

    Attributes:
        seed: seed of the run; random numbers must depend only on it and on the item.
    """

    kind = "priority_fn"
    seed: int = 0

    @abstractmethod
    def __call__(self, item: ReplayItem) -> tuple[float, bool]:
        """Return the priority, and whether a used experience stays in the buffer.

        Items of higher priority come first.
        """


@PRIORITY_FUNC.register_module("linear_decay")
class LinearDecay(PriorityFunction):
    """model_version - decay * use_count, without a limit of uses.

    Args:
        decay: model versions that one use costs.
    """

    ranges = {"decay": "[0, inf]"}

    def __init__(self, decay: float = 2.0) -> None:
        self.decay = decay

    def __call__(self, item: ReplayItem) -> tuple[float, bool]:
        """Return the priority; every item stays."""
        return item.model_version - self.decay * item.use_count, True


@PRIORITY_FUNC.register_module("decay_limit_randomization")
@PRIORITY_FUNC.register_module("linear_decay_use_count_control_randomization")
class DecayLimitRandomization(PriorityFunction):
    """Newest model versions first, with a decay per use and random noise.

        priority = model_version - decay use_count + sigma z

    z is standard normal. It is a function of seed, task and use count, so that the rollouts of a group keep together
    and a run that is continued draws the same numbers. A rollout is used at most `use_count_limit` times.

    Args:
        decay: model versions that one use costs.
        use_count_limit: uses after which a rollout leaves the buffer, >= 1.
        sigma: standard deviation of the noise in model versions, >= 0.

    Raises:
        ValueError: a limit or a deviation out of range.
    """

    ranges = {"decay": "[0, inf]", "use_count_limit": "[1, inf]", "sigma": "[0, inf]"}

    def __init__(self, decay: float = 2.0, use_count_limit: int = 3, sigma: float = 0.0) -> None:
        if use_count_limit < 1:
            raise ValueError(f"use_count_limit must be >= 1, got {use_count_limit}")
        if not sigma >= 0:
            raise ValueError(f"sigma must be >= 0, got {sigma}")
        self.decay = decay
        self.use_count_limit = use_count_limit
        self.sigma = sigma

    def __call__(self, item: ReplayItem) -> tuple[float, bool]:
        """Return the noisy priority, and whether the use limit is not reached."""
        priority = item.model_version - self.decay * item.use_count
        if self.sigma:
            # A text seeds the generator by its SHA-512, on every machine alike.
            priority += random.Random(f"{self.seed}\0{item.task}\0{item.use_count}").gauss(0.0, self.sigma)
        return priority, item.use_count < self.use_count_limit
