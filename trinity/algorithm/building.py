"""A component of the algorithm, made as the configuration says."""

from __future__ import annotations

from typing import Any

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.common.config import AlgorithmConfig, Config
from trinity.common.config.mixture import num_expert_rows
from trinity.common.errors import ConfigError
from trinity.utils.registry import Registry


def build(
    registry: Registry, algorithm: AlgorithmConfig, key: str, *given: Any, default: str | None = None, **fixed: Any
) -> Any:
    """Return the component that `algorithm.<key>` names.

    It is made with `algorithm.<key>_args`; None where nothing is named. The rules of the configuration have checked the
    arguments of built-in components; those of a plugin are checked here.

    Args:
        registry: of the component.
        algorithm: the section.
        key: such as `policy_loss_fn`.
        given: positional arguments that the section does not set.
        default: name where the section has none.
        fixed: further arguments; one that the section has as well is an error.

    Raises:
        ConfigError: an unknown name (E1701), or arguments that the component does not take (E1302).
    """
    section = vars(algorithm)
    name = section[key] or default
    component = registry.get(name)
    if component is None:
        return None
    written = section[f"{key}_args"] or {}
    declared = {one: value for one, value in registry.arguments(str(name), None).items() if one not in written}
    try:
        return component(*given, **declared | fixed, **written)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"algorithm.{key}_args of {name}: {error}", code="E1302") from error


def num_rollouts(config: Config) -> int:
    """Return the rollouts of a training step, without the expert's rows."""
    size, algorithm = config.buffer.train_batch_size, config.algorithm
    if not mixes_experts(config):
        return size
    arguments = algorithm.sample_strategy_args or {}
    return size - num_expert_rows(arguments["expert_data_ratio"], size)


def mixes_experts(config: Config) -> bool:
    """Return whether the sample strategy adds rows of an expert.

    Plugins are imported already.
    """
    strategy = SAMPLE_STRATEGY.contents.get(config.algorithm.sample_strategy or "")
    return strategy is not None and strategy.mixes_experts
