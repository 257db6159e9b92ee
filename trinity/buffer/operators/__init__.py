"""Operators that process experiences before they are stored.

They run once per explore step. The table of contents imports no torch; a class is imported on first access.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trinity.buffer.operators.experience_operator import ExperienceOperator, ExperienceOperatorV1
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS, OPERATOR_CONTENTS

__all__ = [
    "EXPERIENCE_OPERATORS",
    "OPERATOR_CONTENTS",
    "ExperienceOperator",
    "ExperienceOperatorV1",
    "build_operators",
    "create_operators",
]


def create_operators(
    operator_configs: Sequence[Any], auxiliary_models: Mapping[str | int, Any] | None = None
) -> list[Any]:
    """Return the configured operators.

    Args:
        operator_configs: objects with `name` and `args`.
        auxiliary_models: clients of further models by name, for operators that take them.

    Raises:
        ConfigError: an unknown name (E1701), or arguments that an operator does not take.
    """
    operators = [operator for _, operator in build_operators(operator_configs)]
    for operator in operators:
        if isinstance(operator, ExperienceOperatorV1):
            operator.set_auxiliary_model(auxiliary_models)
    return operators


def build_operators(settings: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the configured operators with their names.

    They come from `data_processor.experience_pipeline.operators`.

    Args:
        settings: objects with `name` and `args`.

    Raises:
        ConfigError: an unknown name, or arguments that the operator does not take.
    """
    operators = []
    for index, entry in enumerate(settings):
        key = f"data_processor.experience_pipeline.operators[{index}].args"
        operators.append((entry.name, EXPERIENCE_OPERATORS.build(entry.name, entry.args, key=key, names_only=True)))
    return operators
