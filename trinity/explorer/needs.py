"""What the advantage function of a run asks of the rollouts beyond tokens and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.algorithm import ADVANTAGE_FN

if TYPE_CHECKING:
    from trinity.common.config import Config


@dataclass(frozen=True)
class Needs:
    """Which tensors the explorer has to make possible.

    Attributes:
        baseline: `reward_baselines`: a greedy run of each task.
        teacher: `teacher_logprobs`: the log-probabilities of the first auxiliary model.
        components: `reward_components`: names of the metrics that are the columns; None where it is not asked for.
    """

    baseline: bool = False
    teacher: bool = False
    components: tuple[str, ...] | None = None


def needs_of(config: Config) -> Needs:
    """Return what the advantage function names in its call; nothing where the experience pipeline computes it.

    Raises:
        ConfigError: an unknown advantage function.
    """
    function = ADVANTAGE_FN.get(config.algorithm.advantage_fn)
    if function is None or not function.compute_in_trainer():
        return Needs()
    names = ADVANTAGE_FN.contents[str(config.algorithm.advantage_fn)].reads
    keys = tuple((config.algorithm.advantage_fn_args or {}).get("gdpo_reward_keys") or ())
    return Needs(
        baseline="reward_baselines" in names,
        teacher="teacher_logprobs" in names,
        components=keys if "reward_components" in names else None,
    )
