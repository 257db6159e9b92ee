"""Runs one workflow and returns typed outcomes.

Outcomes of the runs of an attempt. An attempt is retried only if none of its runs completed.

    attempt --returned--> usable? --yes--> Completed
       |                     +----no-----> Rejected
       +--reward function failed---------> Rejected
       +--raised, or returned no list----> Failed    (retried)
       +--deadline-----------------------> TimedOut  (retried)
"""

from __future__ import annotations

import site
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trinity
from trinity.common.errors import EnginesLostError, OutOfMemoryError
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows import Workflow, describe, reset_workflow
from trinity.common.workflows.task import TEMPLATE_ARGS, Task, read_option
from trinity.explorer.acceptance import accept
from trinity.explorer.attempts import Runner, called
from trinity.explorer.outcome import DROPPED_CALLS, FOREIGN_TURNS, Completed, Failed, Outcome, unscored
from trinity.runtime.worker_thread import WorkerThread

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper
    from trinity.explorer.advantage_inputs import InputCompleter

_NOT_USER_CODE = (
    str(Path(trinity.__file__).parent),
    sysconfig.get_paths()["stdlib"],
    *site.getsitepackages(),
)


def user_frame(error: BaseException) -> str:
    """Return `file:line in function` of the innermost frame of user code.

    Frames of this package and of installed packages do not count.

    Where there is none, the innermost frame of all.
    """
    frames = traceback.extract_tb(error.__traceback__)
    cause = error.__cause__
    if cause is not None:
        frames.extend(traceback.extract_tb(cause.__traceback__))
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_USER_CODE)]
    chosen = (own or list(frames))[-1:]
    return f"{chosen[0].filename}:{chosen[0].lineno} in {chosen[0].name}" if chosen else "an unknown place"


class WorkflowRunner(Runner):
    """Attempts tasks in this process.

    Code that is not asynchronous runs in the runner's own thread. A thread whose call does not return in time is
    abandoned and replaced, and so is the workflow object that it holds.

    Args:
        name: see `Runner`.
        model: wrapper of the rollout model; every attempt gets its own clone.
        auxiliary_models: wrappers of further models; every attempt gets its own clones.
        completer: adds to the experiences of a run what the advantage function asks for.
        deadlines: further arguments of `Runner`.
    """

    def __init__(
        self,
        name: str,
        model: ModelWrapper,
        *,
        auxiliary_models: Sequence[ModelWrapper] = (),
        completer: InputCompleter | None = None,
        **deadlines: Any,
    ) -> None:
        super().__init__(name, **deadlines)
        self._model = model
        self._auxiliary_models = tuple(auxiliary_models)
        self._completer = completer
        self._worker = WorkerThread(name)
        self._workflows: dict[type[Workflow], Workflow] = {}

    def close(self) -> None:
        """Let the thread end after its present call; wait for nothing."""
        self._worker.close()

    async def perform(self, task: Task, runs: range, *, is_greedy: bool) -> list[Outcome]:
        """Return the outcome of each of `runs`; see `attempt`."""
        try:
            return await self._execute(task, runs, is_greedy=is_greedy)
        except (EnginesLostError, OutOfMemoryError):
            raise
        except RewardError as error:
            self._forget(task)
            return [unscored(error)] * len(runs)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the one call of user code: a broken rollout is data
            self._forget(task)
            place = user_frame(error)
            message = f"{type(error).__name__}: {error} ({place})"
            self._log(place, f"{task.workflow.__name__} failed on {called(task, runs)}: {message}", error)
            return [Failed(message)] * len(runs)

    async def _execute(self, task: Task, runs: range, *, is_greedy: bool) -> list[Outcome]:
        model = self._model.for_run(
            task.batch_id,
            task.task_id,
            runs.start,
            self.participant,
            is_greedy=is_greedy,
            template_args={name: read_option(task.format_args, name) for name in TEMPLATE_ARGS},
            num_runs=len(runs),
        )
        # No participant: a round of the rollout model must not wait for one of another engine.
        of_task, count = (task.batch_id, task.task_id, runs.start), len(runs)
        others = [other.for_run(*of_task, num_runs=count) for other in self._auxiliary_models]
        workflow = await self._worker.call(self._prepare, task, model, others)
        traits = describe(workflow)
        if traits.can_repeat:
            workflow.set_repeat_times(len(runs), runs.start)
        if traits.is_async:
            returned = await workflow.run_async()
        else:
            returned = await self._worker.call(workflow.run)
        if traits.can_reset:
            self._workflows[task.workflow] = workflow
        dropped = vars(workflow).get("dropped") or ()
        outcomes = accept(
            returned,
            task,
            runs=runs,
            can_repeat=traits.can_repeat,
            model_version=self._model.model_version,
            dropped=dropped,
        )
        _note_counts(outcomes, model)
        if self._completer is None or task.is_eval or is_greedy:
            return outcomes
        return [await self._completer.complete(outcome, task) for outcome in outcomes]

    def _prepare(self, task: Task, model: ModelWrapper, others: list[ModelWrapper]) -> Workflow:
        workflow = self._workflows.pop(task.workflow, None)
        if workflow is None:
            return task.to_workflow(model, others)
        # In place: an OpenAI client that the workflow keeps is one of the rollout that begins now.
        workflow.model = _taken_over(workflow.model, model)
        held = workflow.auxiliary_model_wrappers
        workflow.auxiliary_model_wrappers = [
            _taken_over(held[number] if number < len(held) else None, other) for number, other in enumerate(others)
        ]
        reset_workflow(workflow, task)
        return workflow

    def _forget(self, task: Task) -> None:
        self._workflows.pop(task.workflow, None)

    def abandon(self, *, is_overdue: bool) -> None:
        """Abandon the thread with its stuck call and continue in a new one."""
        self.abandoned_count += 1
        self._worker.close()
        self._workflows.clear()
        self._worker = WorkerThread(f"{self.name}+{self.abandoned_count}")
        self.participant = self._worker.name


def _note_counts(outcomes: Sequence[Outcome], model: ModelWrapper) -> None:
    """Note in an experience what the model counted, for the metrics."""
    first = next((outcome for outcome in outcomes if isinstance(outcome, Completed)), None)
    if first is not None:
        counts = {FOREIGN_TURNS: model.turns.foreign, DROPPED_CALLS: model.history.dropped}
        first.experiences[0].info.update({name: count for name, count in counts.items() if count})


def _taken_over(held: Any, model: ModelWrapper) -> ModelWrapper:
    return held.take_over(model) if isinstance(held, type(model)) else model
