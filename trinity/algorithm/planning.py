"""How many rollouts a training step takes, and how many steps a run plans."""

from __future__ import annotations

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.common.config import Config
from trinity.common.config.resolved import num_explored, num_trained, reuses_rollouts, sync_intervals


def mixes_experts(config: Config) -> bool:
    """Return whether the sample strategy adds rows of an expert.

    Raises:
        KeyError: the strategy is a plugin's that is not imported yet.
    """
    name = config.algorithm.sample_strategy
    return name is not None and SAMPLE_STRATEGY.contents[name].mixes_experts


def num_rollouts(config: Config) -> int:
    """Return the rollouts of a training step, without the expert's rows."""
    return num_trained(config, mixes_experts=mixes_experts(config))


def planned_steps(config: Config, explore_steps: int | None = None) -> int | None:
    """Return the number of training steps; None if only the data tell.

    `resolve` fills `trainer.total_steps` from `buffer.total_steps`, so that if the former is None, the latter is, too.

    Args:
        config: resolved configuration.
        explore_steps: explore steps that the explorer plans, where one runs beside the trainer.
    """
    if config.trainer.total_steps is not None:
        return int(config.trainer.total_steps)
    if config.mode != "both" or explore_steps is None:
        return None
    if reuses_rollouts(config):
        # Batches reuse rollouts of earlier steps, so the number of steps follows from the intervals of the syncs.
        if config.synchronizer.sync_style != "fixed":
            return None
        theirs, ours = sync_intervals(config)
        return max(1, -(-explore_steps * ours // theirs))
    return max(1, -(-explore_steps * num_explored(config) // num_rollouts(config)))


def steps_by_actor(config: Config) -> dict[str, int | None]:
    """Return the planned steps of trainer and explorer, by their names.

    The trainer is first, where there is one. A number is None if only the data determine it.
    """
    explored = {} if config.mode == "train" else {config.explorer.name: config.buffer.total_steps}
    trained = {config.trainer.name: planned_steps(config)} if config.mode in ("train", "both") else {}
    return trained | explored
