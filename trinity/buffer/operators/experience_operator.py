"""Bases of experience operators, and the operators of a configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS
from trinity.utils.declaration import Declared

if TYPE_CHECKING:
    from trinity.common.experience import Experience


class _Operator(Declared):
    """What operators of both forms declare.

    Attributes:
        drops_experiences: it may return fewer experiences than it is given.
        changes_rewards: it may change rewards.
        is_pure: its result depends only on the experiences that it is given, so that it can be applied to stored
            experiences again.
    """

    kind = "operator"
    drops_experiences: ClassVar[bool] = False
    changes_rewards: ClassVar[bool] = False
    is_pure: ClassVar[bool] = False


class ExperienceOperatorV1(_Operator, ABC):
    """One asynchronous step of the experience pipeline.

    Attributes:
        auxiliary_models: the clients of `explorer.auxiliary_models` by their `name`, by number where they have none;
            set before `prepare`.
    """

    auxiliary_models: Mapping[str | int, Any] = MappingProxyType({})

    async def prepare(self) -> None:
        """Acquire what `process` needs.

        The explorer calls this once, before the first explore step.
        """

    @abstractmethod
    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Return the experiences to keep, in order, and metrics by name.

        Args:
            exps: the experiences of one explore step; may be empty.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in a checkpoint, as JSON values.

        Only operators that carry state between steps need it.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned; called after `prepare`."""

    async def close(self) -> None:
        """Release what `prepare` acquired."""

    def set_auxiliary_model(self, auxiliary_models: Mapping[str | int, Any] | None = None) -> None:
        """Store the clients of the auxiliary models by name, for `process`."""
        self.auxiliary_models = dict(auxiliary_models or {})


class ExperienceOperator(_Operator, ABC):
    """A synchronous step of the experience pipeline, the older interface.

    It runs in a thread.
    """

    @abstractmethod
    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Return the experiences to keep, in order, and metrics by name."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in a checkpoint, as JSON values.

        Only operators that carry state between steps need it.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""

    def close(self) -> None:
        """Release what the constructor acquired."""


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
