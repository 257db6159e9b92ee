"""A runner in a process of its own, as its parent sees it: started, served with engine calls, killed, replaced."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trinity.common.config import Config
from trinity.common.errors import DeadlineError, EnginesLostError, OutOfMemoryError, WorkflowError
from trinity.common.workflows.task import Task
from trinity.explorer.attempts import Runner, called
from trinity.explorer.isolation.child import EngineCall, RunnerProcess
from trinity.explorer.outcome import Failed, Outcome
from trinity.runtime.base import START_TIMEOUT_S, ActorDiedError, Handle, Resources, Runtime
from trinity.utils.deadline import bounded
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.models.model import InferenceModel
    from trinity.explorer.supply import Supply

logger = get_logger("explorer")

FETCH_TIMEOUT_S = 30.0
FETCH_GRACE_S = 30.0


@dataclass
class RunnerPlace:
    """Where runners with processes of their own are started.

    Attributes:
        runtime: starts the processes.
        config: the run's configuration.
        engines: the rollout model's, then those of the auxiliary models.
        gate: as many processes as may be started at once.
    """

    runtime: Runtime
    config: Config
    engines: Sequence[InferenceModel]
    gate: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.gate = asyncio.Semaphore(self.config.explorer.runner_prepare_concurrency)

    @property
    def versions(self) -> list[int]:
        """Versions of the weights that the engines serve."""
        return [engine.model_version for engine in self.engines]

    async def start(self, name: str) -> Handle:
        """Return a runner's process, ready for work.

        Raises:
            WorkflowError: it did not start in `runner_prepare_max_retries` + 1 attempts (E5634).
        """
        explorer = self.config.explorer
        failure: Exception | None = None
        async with self.gate:
            for _ in range(explorer.runner_prepare_max_retries + 1):
                try:
                    handle = await self.runtime.start(
                        RunnerProcess,
                        self.config,
                        name=f"{explorer.name}_{name}",
                        resources=Resources(env=explorer.env_vars, own_process=True),
                        runner_name=name,
                        engine_count=len(self.engines),
                    )
                    await bounded(handle.prepare(), START_TIMEOUT_S, what=name, setting="START_TIMEOUT_S")
                # Whatever keeps a process from starting may pass; the last reason is in the error.
                except Exception as error:  # noqa: BLE001
                    logger.warning("the process of %s did not start: %s", name, error)
                    failure = error
                else:
                    return handle
        raise WorkflowError(
            f"the process of {name} did not start in {explorer.runner_prepare_max_retries + 1} attempts "
            f"(explorer.runner_prepare_max_retries + 1): {failure}",
            code="E5634",
        ) from failure


class ProcessRunner(Runner):
    """Attempts tasks in a process of its own, which is killed when an attempt does not end by its deadline.

    Args:
        name: see `Runner`.
        place: where the process is started.
        supply: adds to the experiences of a run what the advantage function asks for.
        deadlines: further arguments of `Runner`.
    """

    def __init__(
        self,
        name: str,
        place: RunnerPlace,
        *,
        max_timeout: float,
        is_waiting: Callable[[str], Awaitable[bool]] | None = None,
        max_wait_s: float = 0.0,
        supply: Supply | None = None,
    ) -> None:
        super().__init__(name, max_timeout=max_timeout, is_waiting=is_waiting, max_wait_s=max_wait_s)
        self._place = place
        self._supply = supply
        self._starting: asyncio.Task[Handle] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._serving: dict[int, asyncio.Task[None]] = {}

    async def prepare(self) -> None:
        """Start the process; does nothing while there is one.

        Raises:
            WorkflowError: it did not start (E5634).
        """
        await self._process()

    async def attempt(
        self, task: Task, runs: range, *, is_greedy: bool = False, timeout_s: float | None = None
    ) -> tuple[list[Outcome], float]:
        """Return the outcome of each of `runs` and the duration in seconds, the start of a process not counted."""
        try:
            await self._process()
        except WorkflowError as error:
            self._log("start", str(error))
            return [Failed(str(error))] * len(runs), 0.0
        return await super().attempt(task, runs, is_greedy=is_greedy, timeout_s=timeout_s)

    async def perform(self, task: Task, runs: range, *, is_greedy: bool) -> list[Outcome]:
        """Return the outcome of each of `runs`: `Failed` where the process ended."""
        handle = await self._process()
        try:
            outcomes: list[Outcome] = await handle.perform(
                task, runs, participant=self.participant, is_greedy=is_greedy, versions=self._place.versions
            )
        except ActorDiedError as error:
            self._replace()
            self._log("died", f"{task.workflow.__name__} ended its process on {called(task, runs)}: {error}")
            return [Failed(str(error))] * len(runs)
        except (EnginesLostError, OutOfMemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a workflow's result or class that cannot travel is its failure
            message = f"{type(error).__name__}: {error}"
            self._log("travel", f"{task.workflow.__name__} on {called(task, runs)}: {message}", error)
            return [Failed(message)] * len(runs)
        if self._supply is None or task.is_eval or is_greedy:
            return outcomes
        return [await self._supply.complete(outcome, task) for outcome in outcomes]

    def abandon(self, *, is_overdue: bool) -> None:
        """Kill the process if it is late, whatever it does; otherwise it leaves a thread behind and goes on."""
        self.abandoned_count += 1
        self.participant = f"{self.name}+{self.abandoned_count}"
        if is_overdue:
            self._replace()

    def close(self) -> None:
        """Let the process end; wait for nothing."""
        if self._starting is not None and self._starting.done() and not self._starting.cancelled():
            if self._starting.exception() is None:
                self._starting.result().let_go()
        elif self._starting is not None:
            self._starting.cancel()
        for task in list(self._tasks):
            task.cancel()

    async def _process(self) -> Handle:
        """Return the process, started if there is none or the last attempt to start it failed."""
        starting = self._starting
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception() is not None)):
            starting = self._starting = asyncio.ensure_future(self._start())
        # `RunnerPlace.start` has the deadlines; others may wait for the same start.
        return await asyncio.shield(starting)

    async def _start(self) -> Handle:
        handle = await self._place.start(self.name)
        self._spawn(self._serve(handle))
        return handle

    def _replace(self) -> None:
        """Kill the process and start another one."""
        old, self._starting = self._starting, None
        if old is None:
            return
        self.restart_count += 1
        self._starting = asyncio.ensure_future(self._start_after(old))

    async def _start_after(self, old: asyncio.Task[Handle]) -> Handle:
        for call in self._serving.values():
            call.cancel()
        if old.done() and not old.cancelled() and old.exception() is None:
            await old.result().kill()
        return await self._start()

    # -------------------------------------------------------------- engine calls
    async def _serve(self, handle: Handle) -> None:
        """Answer the engine calls of a process until it is gone."""
        try:
            while True:
                calls = await bounded(
                    handle.fetch(FETCH_TIMEOUT_S),
                    FETCH_TIMEOUT_S + FETCH_GRACE_S + self._max_timeout,
                    what=f"{self.name} to say what it asks of the engines",
                    setting="explorer.max_timeout",
                )
                for call in calls:
                    if call.method:
                        self._serving[call.number] = self._spawn(self._answer(handle, call))
                    elif call.number in self._serving:
                        self._serving[call.number].cancel()
        except ActorDiedError:
            return  # its attempt fails by itself
        except DeadlineError as error:
            self._log("silent", str(error))
            self._replace()

    async def _answer(self, handle: Handle, call: EngineCall) -> None:
        engine = self._place.engines[call.engine]
        value, failure = None, None
        try:
            value = getattr(engine, call.method)(*call.args, **(call.kwargs or {}))
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:  # noqa: BLE001 - it is the process's to handle
            failure = error
        finally:
            self._serving.pop(call.number, None)
        try:
            await bounded(
                handle.answer(call.number, value, failure, engine=call.engine, version=engine.model_version),
                self._max_timeout + FETCH_GRACE_S,
                what=f"{self.name} to take an engine's answer",
                setting="explorer.max_timeout",
            )
        except ActorDiedError:
            return

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
