"""Makes a function of the algorithm from the configuration."""

from __future__ import annotations

from typing import Any

from trinity.algorithm import BY_ROLE
from trinity.common.config import AlgorithmConfig


def build(algorithm: AlgorithmConfig, key: str, *given: Any, default: str | None = None, **fixed: Any) -> Any:
    """Return the function that `algorithm.<key>` names.

    It is made with `algorithm.<key>_args`; None where nothing is named. The rules of the configuration have checked the
    arguments of built-in functions; those of a plugin are checked here.

    Args:
        algorithm: the section.
        key: such as `policy_loss_fn`.
        given: positional arguments that the section does not set.
        default: name where the section has none.
        fixed: further arguments; one that the section has as well is an error.

    Raises:
        ConfigError: an unknown name (E1701), or arguments that the function does not take (E1302).
    """
    section, registry = vars(algorithm), BY_ROLE[key]
    name = section[key] or default
    if name is None:
        return None
    place = f"algorithm.{key}_args"
    return registry.build(str(name), section[f"{key}_args"], *given, key=place, code="E1302", fixed=fixed)
