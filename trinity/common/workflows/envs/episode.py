"""The base of workflows in which an environment answers the model.

A rollout opens the environment, plays until it is done or the steps are used up, and closes it, whatever happens. An
environment that fails is a failure of the rollout (E5132), never a reward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trinity.common.errors import EnvironmentProblem, TrinityError, WorkflowError
from trinity.common.workflows.workflow import MultiTurnWorkflow, Workflow
from trinity.utils.declaration import declared_args
from trinity.utils.packages import is_installed, way_to_install

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.common.models.model import ModelWrapper
    from trinity.common.workflows.task import Task

ROUNDS, DONE, INVALID = "env_rounds", "env_done", "env_invalid_actions"


@dataclass(frozen=True)
class Reply:
    """What an environment says to a response of the model.

    Attributes:
        text: the next message to the model.
        is_done: the environment takes no further action.
        is_valid: the answer held an action that could be done.
    """

    text: str
    is_done: bool = False
    is_valid: bool = True


class Game(ABC):
    """One rollout within an environment.

    `reward` is that of the rollout so far, and `metrics` are its own numbers.
    """

    reward: float = 0.0

    @abstractmethod
    def begin(self) -> str:
        """Start the rollout; return the first message to the model."""

    @abstractmethod
    def answer(self, text: str) -> Reply:
        """Do what the model's response says."""

    def end(self, is_done: bool) -> None:  # noqa: B027  most games have nothing to do
        """Learn that no further answer comes; the environment may not be done."""

    def metrics(self) -> dict[str, float]:
        """Return numbers of the rollout beyond those of every episode."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release what the rollout holds."""


class OfEnvironment(Workflow):
    """What all workflows with an environment have: arguments and a row.

    Attributes:
        package: module of the environment's package; empty: nothing has to be installed.
    """

    needs = frozenset[str]()
    can_reset = True

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: list[Any] | None = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    def reset(self, task: Task) -> None:
        """Prepare for another task."""
        super().reset(task)
        self.workflow_args = declared_args(type(self), kind="workflow") | (task.workflow_args or {})
        self.raw_task: Mapping[str, Any] = task.raw_task or {}

    def value(self, column: str, default: Any) -> Any:
        """Return a column of the row; the default where it is absent or null."""
        found = self.raw_task.get(column)
        return default if found is None else found


class EpisodeWorkflow(OfEnvironment, MultiTurnWorkflow):
    """Base of workflows that are one conversation with an environment.

    A subclass defines `open`, and its system prompt. The experience of a rollout has the tokens that were sampled; it
    is one if the chat template continues the conversation, else as many as have to be. The rollout ends when the
    environment is done, after `max_steps` answers, when an answer was cut at its longest length, or when the
    conversation is longer than a prompt may be: `model.max_prompt_tokens`, which holds for `model.chat`, or
    `model.max_model_len` with `enable_prompt_truncation: false`. With another `prompt_truncation` than `stop` it
    continues with what is left of the conversation.
    """

    arguments: ClassVar[Mapping[str, Any] | None] = {}
    system_prompt: str = ""
    steps_argument = "max_env_steps"

    @property
    def max_steps(self) -> int:
        """Most responses of a rollout."""
        return int(self.workflow_args[self.steps_argument])

    def open(self) -> Game:
        """Return the environment of the task.

        Raises:
            WorkflowError: the subclass does not define it.
        """
        raise WorkflowError(f"{type(self).__name__} must define open()")

    def run(self) -> list[Experience]:
        """Return the experiences of one rollout."""
        from trinity.common.workflows.envs.turns import finished

        with self.opened() as game:
            turns, metrics = self.play(game)
            parts = self.score(game)
        return finished(turns, reward=sum(parts.values(), game.reward), metrics=metrics | game.metrics() | parts)

    def score(self, game: Game) -> dict[str, float]:
        """Return rewards beyond that of the environment, by name.

        They are metrics, too.
        """
        return {}

    @contextmanager
    def opened(self) -> Iterator[Game]:
        """Give the environment of the task, and close it.

        Raises:
            EnvironmentProblem: its package is not installed (E3301).
            WorkflowError: it failed (E5132).
        """
        with failures_named(self):
            game = self.open()
        try:
            yield game
        finally:
            with failures_named(self):
                game.close()

    def play(self, game: Game) -> tuple[list[Experience], dict[str, float]]:
        """Play a game to its end; return the turns and the common metrics.

        Raises:
            WorkflowError: the environment failed (E5132).
        """
        with failures_named(self):
            said = game.begin()
        messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        turns: list[Experience] = []
        is_done, num_invalid = False, 0
        while len(turns) < self.max_steps and not is_done:
            messages.append({"role": "user", "content": said})
            if turns and self.model.get_message_token_len(messages) >= self.model.max_model_len:
                break
            (turn,) = self.model.chat(messages, **(self.rollout_args | {"n": 1}))
            if turns and turn.truncate_status == "prompt_truncated":
                break
            turns.append(turn)
            if turn.truncate_status:
                break
            messages.append({"role": "assistant", "content": turn.response_text or ""})
            with failures_named(self):
                reply = game.answer(turn.response_text or "")
            said, is_done, num_invalid = reply.text, reply.is_done, num_invalid + (not reply.is_valid)
        with failures_named(self):
            game.end(is_done)
        self.messages = messages
        return turns, {ROUNDS: len(turns), DONE: int(is_done), INVALID: num_invalid}


@contextmanager
def failures_named(workflow: Workflow) -> Iterator[None]:
    """Make errors of an environment failures of the rollout.

    Raises:
        WorkflowError: whatever the environment raised (E5132).
    """
    try:
        yield
    except TrinityError:
        raise
    except Exception as error:
        raise WorkflowError(
            f"the environment of {type(workflow).__name__} failed: {type(error).__name__}: {error}; the rollout gets "
            "no reward; look at the row and at workflow_args of the taskset",
            code="E5132",
        ) from error


def need_package(workflow: Workflow, package: str) -> None:
    """Verify that the package of an environment can be imported.

    Raises:
        EnvironmentProblem: it is not installed (E3301).
    """
    if not is_installed(package):
        raise EnvironmentProblem(
            f"{type(workflow).__name__} needs the package {package}, which is not installed; run "
            f"{way_to_install(package)}",
            code="E3301",
        )
