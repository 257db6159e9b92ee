"""What a program hears of its run: steps, evaluations and checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.errors import WorkflowError
from trinity.monitor import headline
from trinity.runtime.failure import user_place

if TYPE_CHECKING:
    from trinity.common.config import StagePlan

EVALUATION = ("eval/", "bench/")


@dataclass(frozen=True)
class StepEvent:
    """An explore step or a training step is done.

    Attributes:
        stage: name of the stage; None for a run without stages.
        actor: `explorer` or `trainer`, or the name that the configuration gives them.
        step: number of the step, from 1.
        metrics: what was logged of it.
    """

    stage: str | None
    actor: str
    step: int
    metrics: Mapping[str, float] = field(repr=False)


@dataclass(frozen=True)
class EvalEvent:
    """The model was evaluated.

    Attributes:
        stage: name of the stage; None for a run without stages.
        step: explore step after which it was; in mode bench the training step of the checkpoint.
        metrics: `eval/<taskset>/<metric>/<what>`, in mode bench under `bench/`.
    """

    stage: str | None
    step: int
    metrics: Mapping[str, float] = field(repr=False)


@dataclass(frozen=True)
class CheckpointEvent:
    """A checkpoint was written.

    Attributes:
        stage: name of the stage; None for a run without stages.
        step: training step.
        path: its folder; later ones may replace it (`trainer.max_checkpoints_to_keep`).
    """

    stage: str | None
    step: int
    path: Path


Event = StepEvent | EvalEvent | CheckpointEvent


class CallbackError(WorkflowError):
    """A callback of the program failed; the run was stopped."""

    default_code = "E5143"


@dataclass(frozen=True)
class Callbacks:
    """The functions that a program gives for events, each with one argument.

    Attributes:
        on_step: gets every `StepEvent`.
        on_eval: gets every `EvalEvent`.
        on_checkpoint: gets every `CheckpointEvent`.
    """

    on_step: Callable[[StepEvent], Any] | None = None
    on_eval: Callable[[EvalEvent], Any] | None = None
    on_checkpoint: Callable[[CheckpointEvent], Any] | None = None

    def tell(self, event: Event) -> Awaitable[Any] | None:
        """Call the function for an event; return what is to be awaited.

        Raises:
            CallbackError: the function raised.
        """
        name, function = self._of(event)
        if function is None:
            return None
        try:
            given = function(event)
        except Exception as error:
            raise failed(name, error) from error
        return given if inspect.isawaitable(given) else None

    def name_of(self, event: Event) -> str:
        """Return the name of the callback for an event."""
        return self._of(event)[0]

    def _of(self, event: Event) -> tuple[str, Callable[[Any], Any] | None]:
        if isinstance(event, StepEvent):
            return "on_step", self.on_step
        if isinstance(event, EvalEvent):
            return "on_eval", self.on_eval
        return "on_checkpoint", self.on_checkpoint


def failed(name: str, error: Exception) -> CallbackError:
    """Return the error of a callback that raised."""
    return CallbackError(
        f"callback {name} raised {type(error).__name__}: {error} ({user_place(error)}); the run was stopped after its "
        "step and can be continued by the same call",
        code="E5143",
    )


class Listener:
    """Makes events of what the sides of a run report.

    Args:
        send: takes each event, from any thread.
    """

    def __init__(self, send: Callable[[Event], object]) -> None:
        self._send = send
        self._stage: str | None = None
        self._job_dir = Path()

    def on_stage(self, stage: StagePlan) -> None:
        """Take the stage that begins."""
        self._stage, self._job_dir = stage.name, Path(stage.config.checkpoint_job_dir)

    def on_metrics(self, actor: str, step: int, data: Mapping[str, float]) -> None:
        """Send the events of one report."""
        for event in self._events(actor, step, data):
            self._send(event)

    def _events(self, actor: str, step: int, data: Mapping[str, float]) -> Iterator[Event]:
        if headline.TOTAL_STEPS in data:
            return
        if headline.CHECKPOINT in data:
            yield CheckpointEvent(self._stage, step, self._job_dir / f"global_step_{step}")
            return
        found = {name: value for name, value in data.items() if name.startswith(EVALUATION)}
        if found:
            yield EvalEvent(self._stage, step, found)
        else:
            yield StepEvent(self._stage, actor, step, dict(data))
