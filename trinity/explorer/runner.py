"""Runs one workflow: builds it, gives it the model, and turns whatever comes back into typed outcomes."""

from __future__ import annotations

import asyncio
import site
import sysconfig
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trinity
from trinity.common.errors import OutOfMemoryError
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows import Workflow, describe, reset_workflow
from trinity.common.workflows.task import Task
from trinity.explorer.acceptance import accept
from trinity.explorer.outcome import Failed, Outcome, Rejected, TimedOut
from trinity.runtime.worker_thread import WorkerThread
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper
    from trinity.explorer.supply import Supply

logger = get_logger("explorer")

_NOT_USER_CODE = (
    str(Path(trinity.__file__).parent),
    sysconfig.get_paths()["stdlib"],
    *site.getsitepackages(),
)
MAX_LOGGED_PER_PLACE = 3


def user_frame(error: BaseException) -> str:
    """Return `file:line in function` of the innermost frame outside this package and the installed ones.

    Where there is none, the innermost frame of all.
    """
    frames = traceback.extract_tb(error.__traceback__)
    cause = error.__cause__
    if cause is not None:
        frames.extend(traceback.extract_tb(cause.__traceback__))
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_USER_CODE)]
    chosen = (own or list(frames))[-1:]
    return f"{chosen[0].filename}:{chosen[0].lineno} in {chosen[0].name}" if chosen else "an unknown place"


class WorkflowRunner:
    """Attempts tasks one after another, each attempt under a deadline.

    Code that is not asynchronous runs in the runner's own thread. A thread whose call does not return in time is
    abandoned and replaced, and so is the workflow object that it holds.

    Args:
        name: identifies the runner in logs, and as a participant of the engine's rounds.
        model: wrapper of the rollout model; every attempt gets its own clone.
        max_timeout: deadline of an attempt in seconds.
        is_waiting: whether a participant waits for the others of a deterministic round; that time is not its own, so
            its deadline is put off.
        max_wait_s: longest duration of an attempt whose deadline is put off, in seconds.
        auxiliary_models: wrappers of further models; every attempt gets its own clones.
        supply: adds to the experiences of a run what the advantage function asks for.
    """

    def __init__(
        self,
        name: str,
        model: ModelWrapper,
        *,
        max_timeout: float,
        is_waiting: Callable[[str], Awaitable[bool]] | None = None,
        max_wait_s: float = 0.0,
        auxiliary_models: Sequence[ModelWrapper] = (),
        supply: Supply | None = None,
    ) -> None:
        self.name = name
        self.participant = name
        self.abandoned_count = 0
        self._model = model
        self._max_timeout = max_timeout
        self._is_waiting = is_waiting
        self._max_wait_s = max_wait_s
        self._auxiliary_models = tuple(auxiliary_models)
        self._supply = supply
        self._worker = WorkerThread(name)
        self._workflows: dict[type[Workflow], Workflow] = {}
        self._logged: Counter[str] = Counter()

    async def attempt(self, task: Task, runs: range, *, is_greedy: bool = False) -> tuple[list[Outcome], float]:
        """Return the outcome of each of `runs` and the duration of the attempt in seconds.

        Args:
            task: the task, with `batch_id` and `task_id`.
            runs: run numbers to do in one call; more than one only for a workflow that repeats itself.
            is_greedy: sample with temperature 0; the experiences are not meant for training.

        Raises:
            OutOfMemoryError: the engine ran out of memory, which no other attempt can mend.
        """
        started = time.monotonic()
        attempt = asyncio.ensure_future(self._guarded(task, runs, is_greedy=is_greedy))
        try:
            await asyncio.wait({attempt}, timeout=self._max_timeout)
            while not attempt.done() and await self._is_put_off(started):
                await asyncio.wait({attempt}, timeout=self._max_timeout)
        finally:
            is_late = not attempt.done()
            if is_late:
                attempt.cancel()
                self._abandon()
        seconds = time.monotonic() - started
        if is_late:
            place = f"{task.workflow.__name__} timed out"
            self._log(place, f"{place} on {_called(task, runs)}: no result within {self._max_timeout:g} s")
            return [TimedOut(self._max_timeout)] * len(runs), seconds
        if attempt.cancelled():
            return [Failed(f"{task.workflow.__name__} cancelled its own task")] * len(runs), seconds
        return attempt.result(), seconds

    async def _is_put_off(self, started: float) -> bool:
        if self._is_waiting is None or time.monotonic() - started >= self._max_wait_s:
            return False
        return await self._is_waiting(self.participant)

    def start_batch(self) -> None:
        """Forget which errors were logged, so that each batch shows its own."""
        self._logged.clear()

    def close(self) -> None:
        """Let the thread end after its present call; wait for nothing."""
        self._worker.close()

    async def _guarded(self, task: Task, runs: range, *, is_greedy: bool) -> list[Outcome]:
        try:
            return await self._execute(task, runs, is_greedy=is_greedy)
        except OutOfMemoryError:
            raise
        except RewardError as error:
            self._forget(task)
            return [Rejected(f"reward: {error}")] * len(runs)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the one door of user code: a broken rollout is data
            self._forget(task)
            place = user_frame(error)
            message = f"{type(error).__name__}: {error} ({place})"
            self._log(place, f"{task.workflow.__name__} failed on {_called(task, runs)}: {message}", error)
            return [Failed(message)] * len(runs)

    async def _execute(self, task: Task, runs: range, *, is_greedy: bool) -> list[Outcome]:
        model = self._model.for_run(task.batch_id, task.task_id, runs.start, self.participant, is_greedy=is_greedy)
        # No participant: a round of the rollout model must not wait for one of another engine.
        others = [other.for_run(task.batch_id, task.task_id, runs.start) for other in self._auxiliary_models]
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
        if self._supply is None or task.is_eval or is_greedy:
            return outcomes
        return [await self._supply.complete(outcome, task) for outcome in outcomes]

    def _prepare(self, task: Task, model: ModelWrapper, others: list[ModelWrapper]) -> Workflow:
        workflow = self._workflows.pop(task.workflow, None)
        if workflow is None:
            return task.to_workflow(model, others)
        workflow.model = model
        workflow.auxiliary_models = workflow.auxiliary_model_wrappers = others
        reset_workflow(workflow, task)
        return workflow

    def _forget(self, task: Task) -> None:
        self._workflows.pop(task.workflow, None)

    def _abandon(self) -> None:
        self.abandoned_count += 1
        self._worker.close()
        self._workflows.clear()
        self._worker = WorkerThread(f"{self.name}+{self.abandoned_count}")
        self.participant = self._worker.name

    def _log(self, place: str, message: str, error: BaseException | None = None) -> None:
        self._logged[place] += 1
        if self._logged[place] <= MAX_LOGGED_PER_PLACE:
            last = "; further ones of this batch are not shown" if self._logged[place] == MAX_LOGGED_PER_PLACE else ""
            logger.warning("%s%s", message, last)
            logger.debug("traceback of the failure", exc_info=error)


def _called(task: Task, runs: range) -> str:
    numbers = f"run {runs.start}" if len(runs) == 1 else f"runs {runs.start}..{runs.stop - 1}"
    return f"task {task.task_id} of batch {task.batch_id} ({numbers}, row {_row(task.index)})"


def _row(index: Any) -> Any:
    return index.get("index", index) if isinstance(index, dict) else index
